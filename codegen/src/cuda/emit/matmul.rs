//! Matrix products: what [`dp4a`], [`mma`], [`pipelined`] and [`wgmma`] have in common.
//!
//! All take integer sums over the same runs as the CPU's loops and add the runs' f32 terms in the order of k, so
//! that every variant gives the CPU's bits. What is summed in parallel are integers, whose order doesn't matter.

use super::activations;
use super::fused::{self, Fused};
use super::pipelined::Tiling;
use super::split::Split;
use super::wgmma::{self, Warpgroups};
use super::{dp4a, float, mma, pipelined};
use crate::Error;
use crate::emit::{constant_word, format_words, uses_outer, words};
use crate::plan::{Dot, FormatPlan, PackPlan, exact_k};
use crate::refusal::fitted;
use gristmill_spec::model::{CudaBudget, CudaVariant, Packing};
use gristmill_spec::vocab::{CudaActivations, CudaAlgorithm, Strategy};
use std::fmt::Write;

/// Rows of a panel that the skeleton reads.
pub(super) const DP4A_ROWS: u32 = 16;
/// Rows of a panel in fragment order: two tiles of `mma`.
pub(super) const MMA_ROWS: u32 = 32;

/// A CUDA product, resolved.
#[derive(Clone, Debug)]
pub struct CudaMatmul<'a> {
    /// The format.
    pub format: &'a FormatPlan<'a>,
    /// Its codes in the packing.
    pub pack: PackPlan<'a>,
    /// The skeleton.
    pub algorithm: CudaAlgorithm,
    /// Most threads of a CUDA block.
    pub threads: u32,
    /// Fewest threads of a CUDA block; any whole number of warps from there on will do.
    pub fewest: u32,
    /// Rows that a CUDA block does.
    pub rows: u32,
    /// Tokens that a CUDA block does.
    pub tokens: u32,
    /// Fields are multiplied where they stand in the byte.
    pub shift_free: bool,
    /// Largest k for which every sum is exact.
    pub k_max: u64,
    /// How warps divide the tile, where the kernel copies ahead.
    tiling: Option<Tiling>,
    /// How warpgroups divide the tile, where they multiply.
    division: Option<Warpgroups>,
    /// How k may be divided over CUDA blocks.
    pub split: Option<Split>,
    /// What a CUDA block has room for, where it quantizes its tokens for itself.
    pub fused: Option<Fused>,
}

impl<'a> CudaMatmul<'a> {
    /// Plans a variant and proves its sums.
    pub fn new(
        plan: &'a FormatPlan<'a>,
        packing: &'a Packing,
        variant: &CudaVariant,
    ) -> Result<CudaMatmul<'a>, Error> {
        let origin = &variant.origin;
        let pack = fitted(plan, packing, origin)?;
        let wrong = |what: &str| Error::cuda_order(packing, variant.algorithm, what, origin);
        if pack.trits() {
            return Err(wrong("codes of bits; nothing takes trits apart there"));
        }
        let threads = variant.threads;
        let (rows, tokens) = match variant.algorithm {
            CudaAlgorithm::Blocks
            | CudaAlgorithm::Fma
            | CudaAlgorithm::MmaF16
            | CudaAlgorithm::MmaBf16
            | CudaAlgorithm::WgmmaF16
            | CudaAlgorithm::WgmmaBf16 => {
                let what = format!("`{}` computes no product of integers", variant.algorithm);
                return Err(Error::passed(plan, what));
            }
            CudaAlgorithm::Dp4a => {
                pack.check_form(Strategy::Multiply, origin)?;
                if packing.rows != DP4A_ROWS {
                    return Err(wrong("sixteen rows, four of them to a load of sixteen bytes"));
                }
                (DP4A_ROWS, variant.tokens.max(1))
            }
            CudaAlgorithm::Mma | CudaAlgorithm::Wgmma => {
                let in_order = packing.rows == MMA_ROWS
                    && pack.tile.k == if pack.bits() == 2 { 64 } else { 32 }
                    && (0..MMA_ROWS).all(|row| {
                        (0..pack.tile.k).all(|k| pack.bit(row, k) == fragment(pack.bits(), row, k))
                    });
                if !in_order {
                    return Err(wrong("the order of fragments that docs/cuda.md describes"));
                }
                let fewest = if variant.algorithm == CudaAlgorithm::Wgmma { 32 } else { 8 };
                (MMA_ROWS, variant.tokens.max(fewest))
            }
        };
        let most = CudaBudget::default().shared;
        // With few tokens the warps of `mma` share the k of one panel; with many, all copy ahead.
        let shares = match variant.algorithm {
            CudaAlgorithm::Mma => tokens <= 16,
            other => other != CudaAlgorithm::Wgmma,
        };
        let bytes = round_bytes(plan, variant.algorithm, threads, tokens);
        if shares && bytes > most {
            let message = format!(
                "a tile of {tokens} tokens and {threads} threads needs {bytes} bytes of shared memory, of which a CUDA block has {most}"
            );
            return Err(Error::shared_memory(plan, origin, &message));
        }
        let tiles = if plan.unit == 0 { u32::MAX } else { plan.unit.div_ceil(pack.tile.k) };
        // A sum for each field costs registers for every token; with many tokens the shifts cost less.
        let apart = pack.fields > 1 && pack.table.is_none();
        let by_row = variant.algorithm == CudaAlgorithm::Wgmma;
        let shift_free =
            apart && (by_row || variant.algorithm == CudaAlgorithm::Dp4a && tokens <= 2 && tiles > 1);
        let k_max = if by_row && shift_free {
            exact_k_in_place(plan, &pack)
        } else {
            exact_k(plan, &pack, Dot::Direct { shift_free })
        };
        if u64::from(plan.unit) > k_max {
            return Err(Error::overflow(plan, origin));
        }
        let mut resolved = CudaMatmul {
            format: plan,
            algorithm: variant.algorithm,
            threads,
            // As many as there are outputs.
            fewest: if variant.algorithm == CudaAlgorithm::Dp4a && variant.body.is_none() {
                threads.min(128).max(DP4A_ROWS * tokens)
            } else {
                threads
            },
            rows,
            tokens,
            shift_free,
            k_max: if plan.unit == 0 { k_max } else { u64::MAX },
            tiling: None,
            division: None,
            split: None,
            fused: None,
            pack,
        };
        if variant.activations == CudaActivations::Fused {
            let room = Fused::new(&resolved).map_err(|what| Error::shared_memory(plan, origin, &what))?;
            resolved.k_max = resolved.k_max.min(u64::from(room.k));
            resolved.fused = Some(room);
        }
        if by_row {
            let division =
                Warpgroups::new(&resolved).map_err(|what| Error::shared_memory(plan, origin, &what))?;
            resolved.rows = division.panels * MMA_ROWS;
            resolved.division = Some(division);
        } else if !shares {
            let tiling = Tiling::new(&resolved, origin)?;
            resolved.rows = tiling.panels * MMA_ROWS;
            resolved.tiling = Some(tiling);
        }
        // What is written by hand divides k if it knows of the grid's layers.
        let knows = variant.body.as_ref().is_none_or(|body| body.text.contains("gm_blocks_z()"));
        if knows && variant.algorithm != CudaAlgorithm::Dp4a {
            resolved.split = resolved.by_stages();
        }
        Ok(resolved)
    }

    fn by_stages(&self) -> Option<Split> {
        let k = self.pack.tile.k;
        match (self.tiling, self.division) {
            (Some(tiling), _) => Split::of(self, tiling.tiles * k, false),
            (None, Some(_)) => Split::of(self, k, false),
            (None, None) => Split::of(self, self.threads / 32 * mma::AHEAD * k, true),
        }
    }

    /// Name of the kernel: all that its text depends on. Formats that packing has made alike share one.
    pub fn name(&self) -> String {
        let (format, pack) = (self.format, &self.pack);
        let mut name = format!("matmul_{}_{}bit", self.algorithm, pack.bits());
        if pack.table.is_some() {
            name.push_str("_lookup");
        }
        name.push_str(&format_words(format, format.min() != 0));
        name.push_str(&constant_word(format));
        let _ = write!(name, "_{}x{}", self.threads, self.tokens);
        if self.fused.is_some() {
            name.push_str("_fused");
        }
        name
    }

    /// The plan in words.
    pub fn describe(&self) -> String {
        let dot = match self.algorithm {
            CudaAlgorithm::Mma => "u8 x i8 mma.sync into i32",
            CudaAlgorithm::Wgmma if self.shift_free => {
                "u8 x i8 wgmma into i32, fields masked where they stand, sums shifted once at the end"
            }
            CudaAlgorithm::Wgmma => "u8 x i8 wgmma into i32",
            _ if self.shift_free => "u8 x i8 dp4a, masked fields with a sum each, shifted once at the end",
            _ => "u8 x i8 dp4a into i32",
        };
        let unit = self.format.extent();
        let k = match (self.fused, self.k_max) {
            (Some(fused), _) => {
                format!("; activations quantized by each CUDA block, up to k = {}", fused.k)
            }
            (None, u64::MAX) => String::new(),
            (None, k_max) => format!("; exact up to k = {k_max}"),
        };
        let ahead = self.tiling.map(|tiling| tiling.describe());
        let ahead = ahead.or(self.division.map(|division| division.describe()));
        let ahead = ahead.map_or(String::new(), |words| format!("; {words}"));
        let split = self.split.map_or(String::new(), |split| format!("; {}", split.describe()));
        format!(
            "{} rows x {} tokens a CUDA block of {} threads; {} of {} bits; {dot}; {unit}{ahead}{split}{k}",
            self.rows,
            self.tokens,
            self.threads,
            self.pack.packing.name,
            self.pack.bits()
        )
    }
}

/// Bytes of shared memory that one round takes: the f32 terms of every run that the CUDA block's threads do at once, or the
/// integer sums of its warps.
pub(super) fn round_bytes(plan: &FormatPlan<'_>, algorithm: CudaAlgorithm, threads: u32, tokens: u32) -> u32 {
    let runs_by_rows = match algorithm {
        CudaAlgorithm::Mma | CudaAlgorithm::Wgmma => threads / 32 * MMA_ROWS,
        _ if plan.unit == 0 => threads / 32 * DP4A_ROWS,
        _ => threads / 4 * DP4A_ROWS,
    };
    let arrays = if plan.offset { 2 } else { 1 };
    runs_by_rows * tokens * arrays * 4
}

/// The largest k for which the sums of each row are exact where a row's codes are all in one field, multiplied where it stands.
fn exact_k_in_place(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> u64 {
    let worst = u64::from(pack.operand_max) << pack.place(pack.fields - 1);
    let limit = ((1u64 << 31) - 1) / (128 * worst.max(1));
    // A tile of slack, since k is padded to whole tiles.
    limit.saturating_sub(u64::from(pack.tile.k)).min(exact_k(plan, pack, Dot::Direct { shift_free: false }))
}

/// How many rounds of terms stand in shared memory: two, so that adding one overlaps the next, where that leaves room for
/// other CUDA blocks on a multiprocessor.
pub(super) fn rounds_kept(plan: &CudaMatmul<'_>) -> u32 {
    rounds_in(plan, 32 * 1024)
}

/// The same, where `most` bytes leave that room.
pub(super) fn rounds_in(plan: &CudaMatmul<'_>, most: u32) -> u32 {
    let bytes = round_bytes(plan.format, plan.algorithm, plan.threads, plan.tokens);
    if 2 * bytes <= most { 2 } else { 1 }
}

/// The bit of (row, k) in fragment order: lane `row % 8 * 4 + k % 32 / 8` has sixteen bytes, and in them the operands of
/// `mma.m16n8k32` for rows `row % 8` and that plus 8, 16 and 24, and for both fours of its eight k.
fn fragment(bits: u32, row: u32, k: u32) -> u32 {
    let (half, other, g) = (row / 16, row / 8 % 2, row % 8);
    let (step, t, four, byte) = (k / 32, k % 32 / 8, k % 8 / 4, k % 4);
    let lane = (g * 4 + t) * 128;
    match bits {
        2 => lane + (2 * step + four) * 32 + byte * 8 + (2 * half + other) * 2,
        4 => lane + (2 * half + four) * 32 + byte * 8 + other * 4,
        _ => half * 4096 + lane + (2 * other + four) * 32 + byte * 8,
    }
}

/// The unit: argument struct, finish, and the kernel, which is `body` where that is written by hand.
pub fn emit(plan: &CudaMatmul<'_>, body: Option<&str>) -> String {
    let kernel = match (body, &plan.tiling, &plan.division) {
        (Some(body), _, _) => body.to_string(),
        (None, Some(tiling), _) => pipelined::pipelined(plan, tiling),
        (None, None, Some(division)) => wgmma::wgmma(plan, division),
        (None, None, None) if plan.algorithm == CudaAlgorithm::Mma => mma::mma(plan),
        (None, None, None) if plan.fused.is_some() => fused::fused(plan),
        (None, None, None) => dp4a::dp4a(plan),
    };
    let words = match (&plan.division, &plan.fused) {
        (Some(_), _) => wgmma::vocabulary(plan),
        (None, Some(_)) => activations::functions(plan.format.activations),
        (None, None) => String::new(),
    };
    format!("{words}{}{}{}{kernel}", arguments(plan), lookup(plan), finish(plan))
}

/// The parameter: docs/cuda.md. It has 144 bytes: with more, nvcc 13.0 takes fields from the parameter anew wherever they are
/// used, which costs the loops of `mma` a tenth more instructions.
fn arguments(plan: &CudaMatmul<'_>) -> String {
    let x = match plan.fused {
        Some(_) => {
            "const void *x;
    u64 x_first;
    u64 *fault;
    u32 x_type;
    u32 sides;"
        }
        None => {
            "const i8 *x;
    u64 x_stride;
    const f32 *x_scales;
    const i32 *x_sums;"
        }
    };
    format!(
        "struct Matmul {{
    const u8 *codes;
    u64 stride;
    const f32 *scales;
    const f32 *mins;
    i32 min;
    u32 k;
    const u8 *table;
    const f32 *outer;
    u32 units;
    u32 x_blocks;
    {x}
    const f32 *bias;
    f32 *y;
    u32 m;
    u32 n;
    i32 *parts;
}};

"
    )
}

/// Four codes to four operands by a table of sixteen bytes in registers.
fn lookup(plan: &CudaMatmul<'_>) -> String {
    if plan.pack.table.is_none() {
        return String::new();
    }
    "GM_DEVICE u32 lookup(u32x4 table, u32 codes) {
    u32 out = 0;
    GM_UNROLL for (u32 i = 0; i < 32; i += 8) {
        const u32 code = codes >> i & 15;
        const u32 low = code & 4 ? table.y : table.x, high = code & 4 ? table.w : table.z;
        out |= ((code & 8 ? high : low) >> (8 * (code & 3)) & 0xff) << i;
    }
    return out;
}

"
    .to_string()
}

/// What takes part in finishing an output besides its sum and the bias.
pub(super) struct Finish {
    /// A factor of the row.
    outer: bool,
    /// The token's scale.
    pub(super) x_scale: bool,
}

impl Finish {
    pub(super) fn of(plan: &CudaMatmul<'_>) -> Finish {
        Finish { outer: uses_outer(plan.format), x_scale: plan.format.activations.block.is_none() }
    }

    /// Arguments of `finished` that are the row's, in its order; each is an array of `Matmul`.
    pub(super) fn of_row(&self) -> Vec<&'static str> {
        if self.outer { vec!["outer", "bias"] } else { vec!["bias"] }
    }
}

/// Statements that multiply `y` by what is the row's or the format's.
fn by_row(plan: &CudaMatmul<'_>) -> String {
    let (format, value) = (plan.format, &plan.format.format.value);
    let mut steps = String::new();
    if uses_outer(format) {
        steps.push_str("    y = y * outer;\n");
    }
    if !format.has_scales() && value.unit != 1.0 {
        let _ = writeln!(steps, "    y = y * {};", float(value.unit));
    }
    steps
}

/// `finished_row`: what `finished` does behind the token's scale.
pub(super) fn finished_row(plan: &CudaMatmul<'_>) -> String {
    let of_row = Finish::of(plan).of_row();
    let parameters: Vec<String> = of_row.iter().map(|name| format!("f32 {name}")).collect();
    format!(
        "GM_DEVICE f32 finished_row(const Matmul &a, f32 y, {}) {{
{}    return a.bias == nullptr ? y : y + bias;
}}

",
        parameters.join(", "),
        by_row(plan)
    )
}

/// `finished` and `finish`: from the sum over k to the output, in the order of the scalar reference.
fn finish(plan: &CudaMatmul<'_>) -> String {
    let format = plan.format;
    let used = Finish::of(plan);
    let mut steps = String::new();
    if used.x_scale {
        let operator = if format.activations.keeps_multiplier { "/" } else { "*" };
        let _ = writeln!(steps, "    y = y {operator} x_scale;");
    }
    steps += &by_row(plan);
    let x_scale = used.x_scale.then_some("x_scale");
    let names = || used.of_row().into_iter().chain(x_scale);
    let parameters: Vec<String> = names().map(|name| format!("f32 {name}")).collect();
    let mut loads = String::new();
    // What the kernel made itself it has at hand.
    let at_hand = x_scale.filter(|_| plan.fused.is_some());
    for name in names().filter(|name| Some(*name) != at_hand) {
        let index = if name == "x_scale" { "a.x_scales + token" } else { &format!("a.{name} + row") };
        let null = if name == "bias" { "a.bias == nullptr ? 0.0f : " } else { "" };
        let _ = writeln!(loads, "    const f32 {name} = {null}gm_load({index});");
    }
    format!(
        "GM_DEVICE f32 finished(const Matmul &a, f32 y, {parameters}) {{
{steps}    return a.bias == nullptr ? y : y + bias;
}}

GM_DEVICE void finish(const Matmul &a, u32 row, u32 token, f32 y{at_hand}) {{
{loads}    gm_store(a.y + (u64)token * a.n + row, finished(a, y, {arguments}));
}}

",
        parameters = parameters.join(", "),
        arguments = names().collect::<Vec<_>>().join(", "),
        at_hand = at_hand.map_or(String::new(), |name| format!(", f32 {name}")),
    )
}

/// An expression of a sum with what the operands leave out: value = operand + min.
pub(super) fn corrected(plan: &CudaMatmul<'_>, sum: &str, x_sum: &str) -> String {
    if plan.format.min() == 0 { format!("(f32)({sum})") } else { format!("(f32)({sum} + {x_sum} * a.min)") }
}

/// The terms of one run: what is added to y, and what is subtracted then. `scale` and `min` are those of the row's run.
pub(super) fn terms(plan: &CudaMatmul<'_>, sum: &str, scale: &str, min: &str) -> (String, Option<String>) {
    let format = plan.format;
    let has_x = format.activations.block.is_some();
    let sum = corrected(plan, sum, "x_sum");
    let scaled = match (format.has_scales(), has_x) {
        (true, true) => format!("{scale} * x_scale * {sum}"),
        (true, false) => format!("{scale} * {sum}"),
        (false, true) => format!("x_scale * {sum}"),
        (false, false) => sum,
    };
    let subtracted = format
        .offset
        .then(|| if has_x { format!("{min} * x_scale * (f32)x_sum") } else { format!("{min} * (f32)x_sum") });
    (scaled, subtracted)
}

/// A super-block's terms in a panel.
pub(super) struct Parts {
    /// Runs of a super-block.
    pub(super) runs: u32,
    /// Words that its scales take, or its minima.
    pub(super) words: u32,
    /// Its elements.
    pub(super) elements: u32,
}

impl Parts {
    /// Where runs have integers; `rows` of a panel.
    pub(super) fn of(plan: &CudaMatmul<'_>, rows: u32) -> Option<Parts> {
        let runs = plan.format.superblock.as_ref()?.runs;
        Some(Parts { runs, words: words(runs, rows), elements: runs * plan.format.unit })
    }

    /// An expression of the first word of `array` for super-block `block` of `panel`.
    pub(super) fn at(&self, array: &str, panel: &str, block: &str) -> String {
        let Parts { runs, words, .. } = self;
        format!("a.{array} + ((u64)({panel}) * (a.units / {runs}) + {block}) * {words}")
    }

    /// An expression of token `token`'s scale of super-block `block`; none where a row of activations has one.
    pub(super) fn x_scale(&self, plan: &CudaMatmul<'_>, token: &str, block: &str) -> Option<String> {
        let of = plan.format.activations.block?;
        Some(format!("a.x_scales + (u64)({token}) * a.x_blocks + {block} * {} / {of}", self.elements))
    }
}

/// The integer terms of one run: its sum times its integer, and that of its minimum times the sum of its activations,
/// `x_sum`.
pub(super) fn integer_terms(
    plan: &CudaMatmul<'_>,
    sum: &str,
    scale: &str,
    min: &str,
) -> (String, Option<String>) {
    let sum = if plan.format.min() == 0 { format!("({sum})") } else { format!("({sum} + x_sum * a.min)") };
    (format!("{scale} * {sum}"), plan.format.offset.then(|| format!("{min} * x_sum")))
}

/// Statements that add the terms of a super-block to `y`: `sum` and `low` are the sums of its runs' integer terms, `scale`
/// and `min` what they share, `x_scale` the token's.
pub(super) fn add_terms(plan: &CudaMatmul<'_>, [y, sum, low, scale, min]: [&str; 5]) -> String {
    let x = if plan.format.activations.block.is_some() { " * x_scale" } else { "" };
    let mut out = format!("{y} = {y} + {scale}{x} * (f32){sum};");
    if plan.format.offset {
        let _ = write!(out, " {y} = {y} - {min}{x} * (f32){low};");
    }
    out
}

/// Statements that bind `x_sum` and `x_scale` of token `token` and run `unit`, where they are used.
pub(super) fn run_of_token(plan: &CudaMatmul<'_>) -> String {
    let format = plan.format;
    if let Some(fused) = &plan.fused {
        return fused.run_of_token(plan);
    }
    let mut out = String::new();
    if format.min() != 0 || format.offset {
        out.push_str("const i32 x_sum = gm_load(a.x_sums + (u64)token * a.units + unit);\n");
    }
    if let Some(block) = format.activations.block {
        let _ = writeln!(
            out,
            "const f32 x_scale = gm_load(a.x_scales + (u64)token * a.x_blocks + unit * {} / {block});",
            format.unit
        );
    }
    out
}

/// A word of packed codes, field by field, as operands: `(field, expression)`.
pub(super) fn fields(plan: &CudaMatmul<'_>, word: &str) -> Vec<String> {
    let bits = plan.pack.bits();
    let mask = (0..4).fold(0u32, |mask, byte| mask | ((1u32 << bits) - 1) << (8 * byte));
    (0..plan.pack.fields)
        .map(|field| {
            let shift = field * bits;
            let text = match (plan.pack.fields, plan.shift_free, shift) {
                (1, _, _) => word.to_string(),
                (_, true, _) => format!("{word} & {:#x}u", mask << shift),
                (_, false, 0) => format!("{word} & {mask:#x}u"),
                (_, false, _) => format!("{word} >> {shift} & {mask:#x}u"),
            };
            if plan.pack.table.is_some() { format!("lookup(table, {text})") } else { text }
        })
        .collect()
}

/// Statements in front of everything that reads what other kernels write: the kernel behind may begin, and `early`, which
/// touches weights only, is under way while those in front still run.
pub(super) fn wait(early: &str) -> String {
    format!("gm_launch_next();\n    {early}gm_wait_for_previous();\n    ")
}

/// The table in registers, where codes are looked up.
pub(super) fn load_table(plan: &CudaMatmul<'_>) -> &'static str {
    if plan.pack.table.is_some() {
        "const u32x4 table = gm_load_early((const u32x4 *)a.table);\n    "
    } else {
        ""
    }
}
