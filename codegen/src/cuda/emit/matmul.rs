//! Matrix products: `dp4a` over row-interleaved panels, `mma.sync` over panels in fragment order.
//!
//! Both take integer sums over the same runs as the CPU's loops and add the runs' f32 terms in the order of k, so
//! that every variant gives the CPU's bits. What is summed in parallel are integers, whose order doesn't matter.

use super::float;
use crate::Error;
use crate::emit::{constant_word, format_words, uses_outer};
use crate::plan::{Dot, FormatPlan, PackPlan, exact_k};
use gristmill_spec::model::{CudaVariant, Packing};
use gristmill_spec::vocab::{CudaAlgorithm, Strategy};
use std::fmt::Write;

/// Rows of a panel that the skeleton reads.
const DP4A_ROWS: u32 = 16;
/// Rows of a panel in fragment order: two tiles of `mma`.
const MMA_ROWS: u32 = 32;

/// A CUDA product, resolved.
#[derive(Clone, Debug)]
pub struct CudaMatmul<'a> {
    /// The format.
    pub format: &'a FormatPlan<'a>,
    /// Its codes in the packing.
    pub pack: PackPlan<'a>,
    /// The skeleton.
    pub algorithm: CudaAlgorithm,
    /// Threads of a CUDA block.
    pub threads: u32,
    /// Rows that a CUDA block does.
    pub rows: u32,
    /// Tokens that a CUDA block does.
    pub tokens: u32,
    /// Fields are multiplied where they stand in the byte.
    pub shift_free: bool,
    /// Largest k for which every sum is exact.
    pub k_max: u64,
}

impl<'a> CudaMatmul<'a> {
    /// Plans a variant and proves its sums.
    pub fn new(
        plan: &'a FormatPlan<'a>,
        packing: &'a Packing,
        variant: &CudaVariant,
    ) -> Result<CudaMatmul<'a>, Error> {
        let pack = PackPlan::fit(plan, packing)?;
        let wrong = |what: &str| Error::CudaPacking {
            packing: packing.name.clone(),
            file: packing.origin.file.clone(),
            line: packing.origin.line,
            algorithm: variant.algorithm,
            needs: what.to_string(),
        };
        if pack.trits() {
            return Err(wrong("codes of bits; nothing takes trits apart there"));
        }
        let threads = variant.threads;
        let (rows, tokens) = match variant.algorithm {
            CudaAlgorithm::Blocks => {
                return Err(Error::plan(plan.format, "`blocks` computes no product; use `dp4a` or `mma`"));
            }
            CudaAlgorithm::Dp4a => {
                PackPlan::check_form(packing, pack.tile, pack.fields, Strategy::Multiply)?;
                if packing.rows != DP4A_ROWS {
                    return Err(wrong("sixteen rows, four of them to a load of sixteen bytes"));
                }
                (DP4A_ROWS, 1)
            }
            CudaAlgorithm::Mma => {
                let in_order = packing.rows == MMA_ROWS
                    && pack.tile.k == if pack.bits() == 2 { 64 } else { 32 }
                    && (0..MMA_ROWS).all(|row| {
                        (0..pack.tile.k).all(|k| pack.bit(row, k) == fragment(pack.bits(), row, k))
                    });
                if !in_order {
                    return Err(wrong("the order of fragments that docs/cuda.md describes"));
                }
                // Warps beside each other do panels of rows; where a row is one sum, they share the row's k.
                let rows = if plan.unit == 0 { MMA_ROWS } else { MMA_ROWS * (threads / 32) };
                (rows, variant.tokens.max(8))
            }
        };
        let tiles = if plan.unit == 0 { u32::MAX } else { plan.unit.div_ceil(pack.tile.k) };
        let shift_free =
            variant.algorithm == CudaAlgorithm::Dp4a && pack.fields > 1 && pack.table.is_none() && tiles > 1;
        let k_max = exact_k(plan, &pack, Dot::Direct { shift_free });
        if u64::from(plan.unit) > k_max {
            return Err(Error::plan(
                plan.format,
                &format!("sums over runs of {} could overflow 32 bits", plan.unit),
            ));
        }
        Ok(CudaMatmul {
            format: plan,
            algorithm: variant.algorithm,
            threads,
            rows,
            tokens,
            shift_free,
            k_max: if plan.unit == 0 { k_max } else { u64::MAX },
            pack,
        })
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
        name
    }

    /// The plan in words.
    pub fn describe(&self) -> String {
        let dot = match self.algorithm {
            CudaAlgorithm::Mma => "u8 x i8 mma.sync into i32",
            CudaAlgorithm::Dp4a | CudaAlgorithm::Blocks if self.shift_free => {
                "u8 x i8 dp4a, masked fields with a sum each, shifted once at the end"
            }
            CudaAlgorithm::Dp4a | CudaAlgorithm::Blocks => "u8 x i8 dp4a into i32",
        };
        let unit = match self.format.unit {
            0 => "one integer sum a row".to_string(),
            unit => format!("integer sums over {unit} elements"),
        };
        let k =
            if self.k_max == u64::MAX { String::new() } else { format!("; exact up to k = {}", self.k_max) };
        format!(
            "{} rows x {} tokens a CUDA block of {} threads; {} of {} bits; {dot}; {unit}{k}",
            self.rows,
            self.tokens,
            self.threads,
            self.pack.packing.name,
            self.pack.bits()
        )
    }
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
    let kernel = match (body, plan.algorithm) {
        (Some(body), _) => body.to_string(),
        (None, CudaAlgorithm::Mma) => mma(plan),
        (None, CudaAlgorithm::Dp4a | CudaAlgorithm::Blocks) => dp4a(plan),
    };
    format!("{ARGUMENTS}{}{}{kernel}", lookup(plan), finish(plan))
}

const ARGUMENTS: &str = "\
struct Matmul {
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
    const i8 *x;
    u64 x_stride;
    const f32 *x_scales;
    const i32 *x_sums;
    const f32 *bias;
    f32 *y;
    u32 m;
    u32 n;
};

";

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

/// `finish`: from the sum over k to the output, in the order of the scalar reference.
fn finish(plan: &CudaMatmul<'_>) -> String {
    let format = plan.format;
    let value = &format.format.value;
    let mut steps = String::new();
    if format.activations.block.is_none() {
        let operator = if format.activations.keeps_multiplier { "/" } else { "*" };
        let _ = writeln!(steps, "    y = y {operator} gm_load(a.x_scales + token);");
    }
    if uses_outer(format) {
        steps.push_str("    y = y * gm_load(a.outer + row);\n");
    }
    if !format.has_scales() && value.unit != 1.0 {
        let _ = writeln!(steps, "    y = y * {};", float(value.unit));
    }
    format!(
        "GM_DEVICE void finish(const Matmul &a, u32 row, u32 token, f32 y) {{
{steps}    if (a.bias != nullptr) y = y + gm_load(a.bias + row);
    gm_store(a.y + (u64)token * a.n + row, y);
}}

"
    )
}

/// An expression of a sum with what the operands leave out: value = operand + min.
fn corrected(plan: &CudaMatmul<'_>, sum: &str, x_sum: &str) -> String {
    if plan.format.min() == 0 { format!("(f32)({sum})") } else { format!("(f32)({sum} + {x_sum} * a.min)") }
}

/// The terms of one run: what is added to y, and what is subtracted then. `row` is the row in the packed matrix's
/// panel, `scale_at` the index of its scale.
fn terms(plan: &CudaMatmul<'_>, sum: &str, scale_at: &str) -> (String, Option<String>) {
    let format = plan.format;
    let has_x = format.activations.block.is_some();
    let sum = corrected(plan, sum, "x_sum");
    let scaled = match (format.has_scales(), has_x) {
        (true, true) => format!("gm_load(a.scales + {scale_at}) * x_scale * {sum}"),
        (true, false) => format!("gm_load(a.scales + {scale_at}) * {sum}"),
        (false, true) => format!("x_scale * {sum}"),
        (false, false) => sum,
    };
    let subtracted = format.offset.then(|| {
        if has_x {
            format!("gm_load(a.mins + {scale_at}) * x_scale * (f32)x_sum")
        } else {
            format!("gm_load(a.mins + {scale_at}) * (f32)x_sum")
        }
    });
    (scaled, subtracted)
}

/// Statements that bind `x_sum` and `x_scale` of token `token` and run `unit`, where they are used.
fn run_of_token(plan: &CudaMatmul<'_>) -> String {
    let format = plan.format;
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
fn fields(plan: &CudaMatmul<'_>, word: &str) -> Vec<String> {
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

/// The table in registers, where codes are looked up.
fn load_table(plan: &CudaMatmul<'_>) -> &'static str {
    if plan.pack.table.is_some() { "const u32x4 table = gm_load((const u32x4 *)a.table);\n    " } else { "" }
}

/// Four lanes have the sixteen rows of a tile, four rows each; lanes beside them have the next tiles.
fn dp4a(plan: &CudaMatmul<'_>) -> String {
    let pack = &plan.pack;
    let threads = plan.threads;
    let groups = threads / 4;
    let words = pack.fields;
    let vector = match words {
        4 => "u32x4",
        2 => "u32x2",
        _ => "u32",
    };
    let sums = if plan.shift_free { words } else { 1 };
    let mut step = String::new();
    for (row, name) in ["x", "y", "z", "w"].iter().enumerate() {
        for (field, operand) in fields(plan, &format!("w.{name}")).iter().enumerate() {
            let x = if words == 1 { "x".to_string() } else { format!("x.{}", ["x", "y", "z", "w"][field]) };
            let sum = if plan.shift_free { field } else { 0 };
            let _ = writeln!(
                step,
                "        sums[{sum}][{row}] = gm_dp4a_us({operand}, {x}, sums[{sum}][{row}]);"
            );
        }
    }
    let total: Vec<String> = (0..sums)
        .map(|field| match field * pack.bits() {
            0 => format!("sums[{field}][r]"),
            shift => format!("(sums[{field}][r] >> {shift})"),
        })
        .collect();
    let tile = format!(
        "        const u32x4 w = gm_load_once((const u32x4 *)(codes + (u64)tile * {}));
        const {vector} x = gm_load((const {vector} *)(xs + tile * {}));
{step}",
        pack.tile.bytes, pack.tile.k
    );
    let name = plan.name();
    let head = format!(
        "GM_KERNEL({threads}) {name}(const Matmul a) {{
    {shared}
    const u32 panel = gm_block(), token = gm_block_y(), group = gm_thread() / 4, quad = gm_thread() % 4;
    const u8 *codes = a.codes + panel * a.stride + quad * 16;
    const i8 *xs = a.x + token * a.x_stride;
    {table}",
        shared = if plan.format.unit == 0 {
            format!("GM_SHARED(i32, parts, {} * 16);", threads / 32)
        } else if plan.format.offset {
            format!("GM_SHARED(f32, added, {groups} * 16);\n    GM_SHARED(f32, subtracted, {groups} * 16);")
        } else {
            format!("GM_SHARED(f32, added, {groups} * 16);")
        },
        table = load_table(plan),
    );
    let body = if plan.format.unit == 0 {
        let x_sum = if plan.format.min() == 0 {
            String::new()
        } else {
            "const i32 x_sum = gm_load(a.x_sums + token);\n        ".to_string()
        };
        format!(
            "const u32 tiles = (u32)(a.stride / {bytes});
    i32 sums[{sums}][4] = {{}};
    for (u32 tile = group; tile < tiles; tile += {groups}) {{
{tile}    }}
    i32 dot[4];
    GM_UNROLL for (u32 r = 0; r < 4; r++) {{
        dot[r] = {total};
        for (u32 mask = 4; mask < 32; mask *= 2) dot[r] += gm_shfl_xor(dot[r], mask);
    }}
    if (gm_lane() < 4)
        GM_UNROLL for (u32 r = 0; r < 4; r++) parts[gm_warp() * 16 + gm_lane() * 4 + r] = dot[r];
    gm_sync();
    const u32 row = panel * 16 + gm_thread();
    if (gm_thread() < 16 && row < a.n) {{
        i32 dot = 0;
        for (u32 warp = 0; warp < {warps}; warp++) dot += parts[warp * 16 + gm_thread()];
        {x_sum}finish(a, row, token, {corrected});
    }}",
            bytes = pack.tile.bytes,
            total = total.join(" + "),
            warps = threads / 32,
            corrected = corrected(plan, "dot", "x_sum"),
        )
    } else {
        let tiles = plan.format.unit.div_ceil(pack.tile.k);
        let (scaled, subtracted) =
            terms(plan, "dot", &format!("((u64)panel * a.units + unit) * {DP4A_ROWS} + quad * 4 + r"));
        let (store, subtract) = match subtracted {
            Some(text) => (
                format!("subtracted[group * 16 + quad * 4 + r] = {text};"),
                " y = y - subtracted[i * 16 + gm_thread()];",
            ),
            None => (String::new(), ""),
        };
        format!(
            "f32 y = 0.0f;
    for (u32 first = 0; first < a.units; first += {groups}) {{
        const u32 unit = first + group;
        if (unit < a.units) {{
            i32 sums[{sums}][4] = {{}};
            for (u32 tile = unit * {tiles}; tile < (unit + 1) * {tiles}; tile++) {{
{tile}            }}
            {run}
            GM_UNROLL for (u32 r = 0; r < 4; r++) {{
                const i32 dot = {total};
                added[group * 16 + quad * 4 + r] = {scaled};
                {store}
            }}
        }}
        gm_sync();
        // Sixteen threads, a row each: the terms were computed in any order, they are added in the order of k.
        if (gm_thread() < 16) {{
            const u32 count = gm_min(a.units - first, {groups}u);
            for (u32 i = 0; i < count; i++) {{ y = y + added[i * 16 + gm_thread()];{subtract} }}
        }}
        gm_sync();
    }}
    const u32 row = panel * 16 + gm_thread();
    if (gm_thread() < 16 && row < a.n) finish(a, row, token, y);",
            run = run_of_token(plan),
            total = total.join(" + "),
        )
    };
    format!("{head}{body}\n}}\nGM_EXPORT({name})\n")
}

/// Statements that bind `w0` (and `w1`) of a tile and then `weights[2][4]`, operands of both halves of 32 rows.
fn fragments(plan: &CudaMatmul<'_>, step: u32) -> String {
    let mut out = String::from("        const u32 weights[2][4] = {");
    let words = ["x", "y", "z", "w"];
    for half in 0..2usize {
        out.push_str(if half == 0 { "{" } else { "}, {" });
        let operands: Vec<String> = match plan.pack.bits() {
            2 => {
                let low = fields(plan, &format!("w0.{}", words[2 * step as usize]));
                let high = fields(plan, &format!("w0.{}", words[2 * step as usize + 1]));
                vec![
                    low[2 * half].clone(),
                    low[2 * half + 1].clone(),
                    high[2 * half].clone(),
                    high[2 * half + 1].clone(),
                ]
            }
            4 => {
                let low = fields(plan, &format!("w0.{}", words[2 * half]));
                let high = fields(plan, &format!("w0.{}", words[2 * half + 1]));
                vec![low[0].clone(), low[1].clone(), high[0].clone(), high[1].clone()]
            }
            _ => [0, 2, 1, 3].map(|word| format!("w{half}.{}", words[word])).to_vec(),
        };
        out.push_str(&operands.join(", "));
    }
    out.push_str("}};\n");
    out
}

/// A warp has 32 rows; the tokens are columns, eight to an `mma`.
fn mma(plan: &CudaMatmul<'_>) -> String {
    let pack = &plan.pack;
    let format = plan.format;
    let warps = plan.threads / 32;
    let columns = plan.tokens / 8;
    let name = plan.name();
    let steps = pack.tile.k / 32;
    let mut tile = format!(
        "        const u32x4 w0 = gm_load_once((const u32x4 *)(codes + (u64)tile * {bytes}));\n",
        bytes = pack.tile.bytes
    );
    if pack.bits() == 8 {
        let _ = writeln!(
            tile,
            "        const u32x4 w1 = gm_load_once((const u32x4 *)(codes + (u64)tile * {} + 512));",
            pack.tile.bytes
        );
    }
    for step in 0..steps {
        let _ = write!(
            tile,
            "        {{
{weights}        GM_UNROLL for (u32 c = 0; c < {columns}; c++) {{
            const u32x2 x = gm_load((const u32x2 *)(xs[c] + tile * {k} + {offset}));
            const u32 b[2] = {{x.x, x.y}};
            gm_mma_16832_us(sums[0][c], weights[0], b);
            gm_mma_16832_us(sums[1][c], weights[1], b);
        }}
        }}
",
            weights = fragments(plan, step),
            k = pack.tile.k,
            offset = 32 * step,
        );
    }
    let head = format!(
        "GM_KERNEL({threads}) {name}(const Matmul a) {{
    {shared}
    const u32 g = gm_lane() / 4, t = gm_lane() % 4, first_token = gm_block_y() * {tokens};
    const u32 panel = {panel};
    const u8 *codes = a.codes + panel * a.stride + gm_lane() * 16;
    // Columns beyond the last token are computed from it and not stored.
    const i8 *xs[{columns}];
    GM_UNROLL for (u32 c = 0; c < {columns}; c++) xs[c] = a.x + gm_min(first_token + c * 8 + g, a.m - 1) * a.x_stride + t * 8;
    {table}",
        threads = plan.threads,
        tokens = plan.tokens,
        shared = if format.unit == 0 && warps > 1 {
            format!("GM_SHARED(i32, parts, {} * 32);", (warps - 1) * 8 * columns)
        } else {
            String::new()
        },
        panel = if format.unit == 0 {
            "gm_block()".to_string()
        } else {
            // The last warps may have no panel; they do the last one over and store nothing.
            format!("gm_min(gm_block() * {warps} + gm_warp(), (a.n - 1) / {MMA_ROWS})")
        },
        table = load_table(plan),
    );
    let each = |body: &str| {
        format!(
            "GM_UNROLL for (u32 half = 0; half < 2; half++)
        GM_UNROLL for (u32 c = 0; c < {columns}; c++)
            GM_UNROLL for (u32 i = 0; i < 4; i++) {{
                const u32 row = panel * {MMA_ROWS} + half * 16 + i / 2 * 8 + g, token = first_token + c * 8 + t * 2 + i % 2;
                {body}
            }}"
        )
    };
    let body = if format.unit == 0 {
        let x_sum = if format.min() == 0 {
            ""
        } else {
            "const i32 x_sum = gm_load(a.x_sums + token);\n                "
        };
        let reduce = if warps > 1 {
            format!(
                "// Warps have every {warps}th tile of the same rows; the first one adds them up.
    if (gm_warp() > 0)
        GM_UNROLL for (u32 half = 0; half < 2; half++)
            GM_UNROLL for (u32 c = 0; c < {columns}; c++)
                GM_UNROLL for (u32 i = 0; i < 4; i++)
                    parts[(((gm_warp() - 1) * 2 + half) * {columns} + c) * 128 + i * 32 + gm_lane()] = sums[half][c][i];
    gm_sync();
    if (gm_warp() > 0) return;
    GM_UNROLL for (u32 warp = 0; warp < {others}; warp++)
        GM_UNROLL for (u32 half = 0; half < 2; half++)
            GM_UNROLL for (u32 c = 0; c < {columns}; c++)
                GM_UNROLL for (u32 i = 0; i < 4; i++)
                    sums[half][c][i] += parts[((warp * 2 + half) * {columns} + c) * 128 + i * 32 + gm_lane()];
    ",
                others = warps - 1,
            )
        } else {
            String::new()
        };
        format!(
            "const u32 tiles = (u32)(a.stride / {bytes});
    i32 sums[2][{columns}][4] = {{}};
    for (u32 tile = gm_warp(); tile < tiles; tile += {warps}) {{
{tile}    }}
    {reduce}{each}",
            bytes = pack.tile.bytes,
            each = each(&format!(
                "if (row >= a.n || token >= a.m) continue;
                {x_sum}finish(a, row, token, {});",
                corrected(plan, "sums[half][c][i]", "x_sum")
            )),
        )
    } else {
        let tiles = format.unit.div_ceil(pack.tile.k);
        let (scaled, subtracted) = terms(
            plan,
            "sums[half][c][i]",
            &format!("((u64)panel * a.units + unit) * {MMA_ROWS} + half * 16 + i / 2 * 8 + g"),
        );
        let subtract = subtracted.map_or(String::new(), |text| {
            format!("\n                y[half][c][i] = y[half][c][i] - {text};")
        });
        format!(
            "const bool mine = gm_block() * {warps} + gm_warp() == panel;
    f32 y[2][{columns}][4] = {{}};
    for (u32 unit = 0; unit < a.units; unit++) {{
    i32 sums[2][{columns}][4] = {{}};
    for (u32 tile = unit * {tiles}; tile < (unit + 1) * {tiles}; tile++) {{
{tile}    }}
    {add}
    }}
    {store}",
            add = each(&format!(
                "(void)row;
                const u32 at = token;
                {{
                const u32 token = gm_min(at, a.m - 1);
                {run}                y[half][c][i] = y[half][c][i] + {scaled};{subtract}
                }}",
                run = run_of_token(plan),
            )),
            store = each("if (mine && row < a.n && token < a.m) finish(a, row, token, y[half][c][i]);"),
        )
    };
    format!("{head}{body}\n}}\nGM_EXPORT({name})\n")
}
