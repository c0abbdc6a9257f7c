//! Matrix products: what [`dp4a`], [`mma`], [`pipelined`] and [`wgmma`] have in common.
//!
//! All take integer sums over the same runs as the CPU's loops and add the runs' f32 terms in the order of k, so
//! that every variant gives the CPU's bits. What is summed in parallel are integers, whose order doesn't matter.

use super::epilogue::epilogue;
use super::header::Part;
use super::operands::lookup;
use super::parameters::fields;
use super::product::{CudaMatmul, DP4A_ROWS, MMA_ROWS, round_bytes, rounds_in};
use super::tiles::{Fused, Split, Tiling, Warpgroups};
use super::{activations, dp4a, form, fused, mma, one_token, pipelined, wgmma};
use crate::Error;
use crate::emit::{constant_word, format_words};
use crate::plan::pack::fitted;
use crate::plan::{Dot, FormatPlan, PackPlan, Term, TermTypes, exact_k, exact_over, longest_row, up_to};
use gristmill_spec::model::{CudaBody, CudaBudget, CudaVariant, Packing};
use gristmill_spec::vocab::{CudaAbi, CudaActivations, CudaAlgorithm, Strategy};
use std::fmt::Write;

/// Fields of a byte for which a lane has the activations in one load of sixteen bytes, four to each.
const MOST_FIELDS: u32 = 4;

/// Bytes that terms may take if they are kept for two rounds.
const ROUNDS: u32 = 32 * 1024;

impl<'a> CudaMatmul<'a> {
    /// Plans a variant and proves its sums.
    pub fn new(
        plan: &'a FormatPlan<'a>,
        packing: &'a Packing,
        variant: &CudaVariant,
    ) -> Result<CudaMatmul<'a>, Error> {
        let origin = &variant.origin;
        let pack = fitted(plan, packing, origin)?;
        let (rows, tokens) = tile(plan, &pack, variant)?;
        let threads = variant.threads;
        // With few tokens the warps of `mma` share the k of one panel; with many, all copy ahead.
        let shares = match variant.algorithm {
            CudaAlgorithm::Mma => tokens <= 16,
            other => other != CudaAlgorithm::Wgmma,
        };
        let bytes = round_bytes(plan, variant.algorithm, threads, tokens);
        if shares && bytes > CudaBudget::default().shared {
            return Err(Error::large_tile(plan.format, origin, (tokens, threads), bytes));
        }
        let tiles = if plan.k_group == 0 { u32::MAX } else { plan.k_group_tiles(pack.tile.k) };
        // A sum for each field costs registers for every token; with many tokens the shifts cost less.
        let apart = pack.fields > 1 && pack.table.is_none();
        let by_row = variant.algorithm == CudaAlgorithm::Wgmma;
        let shift_free = apart
            && (by_row && plan.k_group == 0
                || variant.algorithm == CudaAlgorithm::Dp4a && tokens <= 2 && tiles > 1);
        let k_max = if by_row && shift_free {
            exact_k_in_place(plan, &pack)
        } else {
            exact_k(plan, &pack, Dot::Direct { shift_free })
        };
        let k_max = longest_row(plan, k_max, origin)?;
        let fused = variant.activations == CudaActivations::Fused;
        let rounds = match (shares, plan.k_group == 0, fused) {
            (false, ..) => 0,
            // Sums of a panel are added while those of the next are taken; a CUDA block that doesn't quantize has one panel.
            (true, true, fused) => 1 + u32::from(fused),
            (true, false, true) => rounds_in(bytes, fused::ROUNDS),
            (true, false, false) => rounds_in(bytes, ROUNDS),
        };
        let mut resolved = CudaMatmul {
            rounds,
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
            k_max,
            tiling: None,
            division: None,
            split: None,
            fused: None,
            pack,
        };
        if fused {
            let room = Fused::new(&resolved, origin)?;
            resolved.k_max = resolved.k_max.min(u64::from(room.k));
            resolved.fused = Some(room);
        }
        if by_row {
            let division = Warpgroups::new(&resolved, origin)?;
            resolved.rows = division.panels * MMA_ROWS;
            resolved.division = Some(division);
        } else if !shares {
            let tiling = Tiling::new(&resolved, origin)?;
            resolved.rows = tiling.panels * MMA_ROWS;
            resolved.tiling = Some(tiling);
        }
        // What is written by hand divides k if it knows of the grid's layers.
        let knows = variant.body.as_ref().is_none_or(CudaBody::divides_k);
        if knows && variant.algorithm != CudaAlgorithm::Dp4a {
            resolved.split = resolved.by_stages();
        }
        Ok(resolved)
    }

    /// Whether it is tensor cores' product of a single token.
    fn is_of_one_token(&self) -> bool {
        self.algorithm == CudaAlgorithm::Mma && self.tokens == 1
    }

    fn by_stages(&self) -> Option<Split> {
        let k = self.pack.tile.k;
        match (self.tiling, self.division) {
            (Some(tiling), _) => Split::of(self, tiling.tiles * k, false),
            (None, Some(_)) => Split::of(self, k, false),
            (None, None) if self.is_of_one_token() => None,
            (None, None) => Split::of(self, self.threads / 32 * mma::AHEAD * k, true),
        }
    }

    /// Bytes of shared memory of a CUDA block.
    pub fn shared_bytes(&self) -> u32 {
        match (&self.tiling, &self.division, &self.fused) {
            (Some(tiling), ..) => tiling.shared_bytes(self),
            (None, Some(division), _) => division.shared_bytes(self),
            (None, None, Some(room)) => room.shared_bytes(self),
            (None, None, None) => {
                self.rounds * round_bytes(self.format, self.algorithm, self.threads, self.tokens)
            }
        }
    }

    /// Bytes that so many packed weights take: of a tile, a run or a super-block of a panel.
    pub fn packed_size(&self) -> (u32, u32) {
        let (format, tile, rows) = (self.format, &self.pack.tile, self.pack.packing.rows);
        let runs = if format.k_group == 0 { 0 } else { format.runs() };
        let arrays = if runs == 0 { 0 } else { u32::from(format.has_scales()) + u32::from(format.offset) };
        // An f32 of each row, and where they share it the integers of its runs.
        let words = if runs > 1 { TermTypes::F32.words(Term::Scale, runs, rows) } else { rows };
        let terms = arrays * 4 * words;
        // Runs are padded to whole tiles.
        let (elements, tiles) = match runs {
            0 => (tile.k, 1),
            _ => (runs * format.k_group, runs * format.k_group_tiles(tile.k)),
        };
        (tiles * tile.bytes + terms, rows * elements)
    }

    /// Parts of the vocabulary that the kernel uses.
    pub(super) fn parts(&self) -> &'static [Part] {
        match (self.algorithm, self.tiling) {
            (CudaAlgorithm::Mma, Some(_)) => &[Part::Copies, Part::Overlap, Part::Tensor],
            (CudaAlgorithm::Mma, None) => &[Part::Overlap, Part::Tensor],
            _ => &[Part::Overlap],
        }
    }

    /// Bytes of shared memory that a launch gives each CUDA block, beyond what the kernel declares.
    pub fn shared_at_launch(&self) -> u32 {
        self.division.map_or(0, |division| division.shared_bytes(self))
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
        let extent = self.format.extent();
        let k = match self.fused {
            Some(fused) => format!("; activations quantized by each CUDA block, up to k = {}", fused.k),
            None => up_to(self.k_max),
        };
        let ahead = self.tiling.map(|tiling| tiling.describe());
        let ahead = ahead.or(self.division.map(|division| division.describe()));
        let ahead = ahead.map_or(String::new(), |words| format!("; {words}"));
        let split = self.split.map_or(String::new(), |split| format!("; {}", split.describe()));
        format!(
            "{} rows x {} tokens a CUDA block of {} threads; {} of {} bits; {dot}; {extent}{ahead}{split}{k}",
            self.rows,
            self.tokens,
            self.threads,
            self.pack.packing.name,
            self.pack.bits()
        )
    }
}

/// Rows of a panel, and tokens of a CUDA block, for a variant that multiplies integers of `pack`.
fn tile(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, variant: &CudaVariant) -> Result<(u32, u32), Error> {
    let (packing, origin) = (pack.packing, &variant.origin);
    let wrong = |what: &str| Error::cuda_order(packing, variant.algorithm, what, origin);
    if pack.trits() {
        return Err(wrong("codes of bits; nothing takes trits apart there"));
    }
    match variant.algorithm {
        CudaAlgorithm::Blocks
        | CudaAlgorithm::Fma
        | CudaAlgorithm::MmaF16
        | CudaAlgorithm::MmaBf16
        | CudaAlgorithm::WgmmaF16
        | CudaAlgorithm::WgmmaBf16
        | CudaAlgorithm::MmaFp4 => {
            let what = format!("`{}` computes no product of integers", variant.algorithm);
            Err(Error::passed(plan.format, what))
        }
        CudaAlgorithm::Dp4a => {
            pack.check_form(Strategy::Multiply, origin)?;
            if packing.rows != DP4A_ROWS {
                return Err(wrong("sixteen rows, four of them to a load of sixteen bytes"));
            }
            if pack.fields > MOST_FIELDS {
                return Err(wrong(
                    "codes of two bits or more: a lane loads the activations of up to four fields at once",
                ));
            }
            Ok((DP4A_ROWS, variant.tokens.max(1)))
        }
        CudaAlgorithm::Mma | CudaAlgorithm::Wgmma => {
            let in_order = packing.rows == MMA_ROWS
                && pack.tile.k == if pack.bits() == 2 { 64 } else { 32 }
                && (0..MMA_ROWS)
                    .all(|row| (0..pack.tile.k).all(|k| pack.bit(row, k) == fragment(pack.bits(), row, k)));
            if !in_order {
                return Err(wrong("the order of fragments that docs/cuda.md describes"));
            }
            let tokens = match (variant.algorithm, variant.tokens) {
                (CudaAlgorithm::Wgmma, tokens) => tokens.max(32),
                (_, 0) => 8,
                (_, tokens) => tokens,
            };
            Ok((MMA_ROWS, tokens))
        }
    }
}

/// The largest k for which the sums of each row are exact where a row's codes are all in one field, multiplied where it stands.
fn exact_k_in_place(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> u64 {
    let worst = u64::from(pack.operand_max) << pack.place(pack.fields - 1);
    exact_over(128 * worst.max(1), pack.tile.k).min(exact_k(plan, pack, Dot::Direct { shift_free: false }))
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

/// The unit: argument struct, epilogue, and the kernel, which is `body` where that is written by hand.
pub fn emit(plan: &CudaMatmul<'_>, body: Option<&str>) -> String {
    let generated = || match (&plan.tiling, &plan.division, &plan.fused) {
        (Some(tiling), ..) => pipelined::pipelined(plan, tiling),
        (None, Some(division), _) => wgmma::wgmma(plan, division),
        (None, None, _) if plan.is_of_one_token() => one_token::one_token(plan),
        (None, None, _) if plan.algorithm == CudaAlgorithm::Mma => mma::mma(plan),
        (None, None, Some(room)) => fused::fused(plan, room),
        (None, None, None) => dp4a::dp4a(plan),
    };
    let kernel = body.map_or_else(|| without_blanks(&generated()), str::to_string);
    let words = match (&plan.division, &plan.fused) {
        (Some(_), _) => wgmma::vocabulary(plan),
        (None, Some(_)) => activations::functions(plan.format.activations),
        (None, None) => String::new(),
    };
    let groups = if body.is_none() { form::arguments(plan) } else { String::new() };
    format!("{words}{}{groups}{}{}{kernel}", arguments(plan), lookup(plan), epilogue(plan))
}

/// Text without the lines of spaces that parts leave which are empty.
fn without_blanks(text: &str) -> String {
    let blank = |line: &str| !line.is_empty() && line.trim().is_empty();
    text.lines().filter(|line| !blank(line)).flat_map(|line| [line, "\n"]).collect()
}

/// The parameter: docs/cuda.md. It has 128 bytes: with more than 144, nvcc 13.0 takes fields from the parameter anew wherever they
/// are used, which costs the loops of `mma` a tenth more instructions.
pub(super) fn arguments(plan: &CudaMatmul<'_>) -> String {
    let x = if plan.fused.is_some() { &CudaAbi::RAW } else { &CudaAbi::QUANTIZED };
    fields("Matmul", &CudaAbi::MATMUL, x.declarations)
}
