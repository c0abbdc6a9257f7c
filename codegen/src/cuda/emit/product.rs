//! A product of integers, resolved.

use super::tiles::{Fused, Split, Tiling, Warpgroups};
use crate::plan::{FormatPlan, PackPlan};
use gristmill_spec::vocab::CudaAlgorithm;

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
    /// How many rounds of terms or sums stand in shared memory; 0 where stages do.
    pub(super) rounds: u32,
    /// How warps divide the tile, where the kernel copies ahead.
    pub(super) tiling: Option<Tiling>,
    /// How warpgroups divide the tile, where they multiply.
    pub(super) division: Option<Warpgroups>,
    /// How k may be divided over CUDA blocks.
    pub split: Option<Split>,
    /// What a CUDA block has room for, where it quantizes its tokens for itself.
    pub fused: Option<Fused>,
}

/// Runs of one token that a warp of `mma` does between two barriers of its CUDA block: as many as it loads codes for at once.
pub(super) fn runs_of_warp(plan: &FormatPlan<'_>, algorithm: CudaAlgorithm, tokens: u32) -> u32 {
    if algorithm == CudaAlgorithm::Mma && tokens == 1 && (1..=32).contains(&plan.k_group) { 2 } else { 1 }
}

/// Elements that one round takes in each array of shared memory: the terms of every run that the CUDA block's threads do at once, or
/// the integer sums of its warps.
fn round_elements(plan: &FormatPlan<'_>, algorithm: CudaAlgorithm, threads: u32, tokens: u32) -> u32 {
    let runs_by_rows = match algorithm {
        CudaAlgorithm::Mma | CudaAlgorithm::Wgmma => {
            threads / 32 * MMA_ROWS * runs_of_warp(plan, algorithm, tokens)
        }
        _ if plan.k_group == 0 => threads / 32 * DP4A_ROWS,
        _ => threads / 4 * DP4A_ROWS,
    };
    runs_by_rows * tokens
}

/// Their bytes, in all arrays.
pub(super) fn round_bytes(plan: &FormatPlan<'_>, algorithm: CudaAlgorithm, threads: u32, tokens: u32) -> u32 {
    let arrays = if plan.offset { 2 } else { 1 };
    round_elements(plan, algorithm, threads, tokens) * arrays * 4
}

/// Declarations of what the threads of a CUDA block hand over to each other: sums of warps, or terms of runs.
pub(super) fn handed_over(plan: &CudaMatmul<'_>) -> String {
    let format = plan.format;
    // Terms of super-blocks are integers until they are added up.
    let ty = if format.k_group == 0 || format.superblock.is_some() { "i32" } else { "f32" };
    let names: &[&str] = match (format.k_group, format.offset) {
        (0, _) => &["parts"],
        (_, false) => &["added"],
        (_, true) => &["added", "subtracted"],
    };
    let each = round_elements(format, plan.algorithm, plan.threads, plan.tokens);
    names.iter().map(|name| format!("GM_SHARED({ty}, {name}, {} * {each});\n    ", plan.rounds)).collect()
}

/// How many rounds of terms stand in shared memory: two, so that adding one overlaps the next, where that leaves room for
/// other CUDA blocks on a multiprocessor, which `most` bytes do.
pub(super) fn rounds_in(bytes: u32, most: u32) -> u32 {
    if 2 * bytes <= most { 2 } else { 1 }
}

/// How a loop over rounds goes through the halves of a double buffer in shared memory: the other threads go on while some add up what a
/// round has left, and fill the other half. With one buffer all wait until it may be filled again.
pub(super) struct DoubleBuffer {
    /// The declaration of the half that a round fills.
    pub(super) declare: String,
    /// What stands behind a step of the loop.
    pub(super) flip: String,
    /// The end of a round.
    pub(super) meet: &'static str,
}

impl DoubleBuffer {
    /// Those of `plan`, where `name` is a variable that says which half a round fills.
    pub(super) fn of(plan: &CudaMatmul<'_>, name: &str) -> DoubleBuffer {
        match plan.rounds {
            2 => {
                DoubleBuffer { declare: format!("u32 {name} = 0;"), flip: format!(", {name} ^= 1"), meet: "" }
            }
            _ => DoubleBuffer {
                declare: format!("const u32 {name} = 0;"),
                flip: String::new(),
                meet: "gm_sync();",
            },
        }
    }
}
