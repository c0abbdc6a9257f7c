//! Split-K: k divided over CUDA blocks, where a matrix has fewer tiles than a device has multiprocessors.
//!
//! Only where a row is one integer sum, so that parts of it may be added in any order. The blocks of a tile, a layer of
//! the grid each, have a part of k. A warp stores the sums of its part and counts at a counter of its place in the tile; the
//! warp that counts last adds the others' sums to its own and finishes the outputs. No warp waits for another block, and the
//! counter is back at zero for the next launch.

use super::operands::WORDS;
use super::product::CudaMatmul;
use super::tiles::Split;
use crate::text::joined;
use gristmill_spec::vocab::CudaAlgorithm;

/// Cycles between a load of weights from the device's memory and its use.
const TRIP: u32 = 800;
/// Threads whose loads a multiprocessor has under way at once: half of what most devices can hold.
const THREADS: u32 = 1024;

impl Split {
    /// For plans whose kernel divides k. `waits`: a stage is what its threads load at once and then wait for.
    pub fn of(plan: &CudaMatmul<'_>, stage: u32, waits: bool) -> Option<Split> {
        if plan.format.k_group != 0 {
            return None;
        }
        if waits {
            return Some(Split { stage, cycles: TRIP, blocks_per_sm: (THREADS / plan.threads).max(1) });
        }
        // Pairs of int8 that a multiprocessor multiplies in a cycle: on sm_90, and on sm_80.
        let pairs = if plan.algorithm == CudaAlgorithm::Wgmma { 4096 } else { 2048 };
        let products = u64::from(plan.rows) * u64::from(plan.tokens) * u64::from(stage);
        Some(Split { stage, cycles: products.div_ceil(pairs) as u32, blocks_per_sm: 1 })
    }

    /// Its numbers, each by the name of its field in the registry.
    pub(crate) fn fields(self) -> [(&'static str, u32); 3] {
        let Split { stage, cycles, blocks_per_sm } = self;
        [("stage", stage), ("cycles", cycles), ("blocks_per_sm", blocks_per_sm)]
    }

    /// In words.
    pub fn describe(self) -> String {
        format!("split-K by stages of {} where tiles are few", self.stage)
    }
}

/// `share`: where a part of k begins.
pub(super) const SHARE: &str = "\
// The first of `count` stages or tiles of k that layer z of the grid has; there are at least as many as layers.
GM_DEVICE u32 share(u32 count, u32 z) { return gm_blocks_z() == 1 ? z * count : z * count / gm_blocks_z(); }

";

/// Statements that add up what all layers have of a warp's sums, of which a lane has fours in so many `columns` of both halves of its
/// rows. `four` is how to name sum `i` of that of column `c` and `half`. Warps that are not the last one return.
pub(super) fn gather(
    plan: &CudaMatmul<'_>,
    warps: u32,
    columns: u32,
    four: &dyn Fn(u32) -> String,
) -> String {
    let count = 2 * columns;
    let each = format!(
        "GM_UNROLL for (u32 half = 0; half < 2; half++)\n        GM_UNROLL for (u32 c = 0; c < {columns}; c++)"
    );
    let place = format!("half * {columns} + c");
    let values = joined((0..4).map(|i| format!("(u32){}", four(i))), ", ");
    let added = joined((0..4).map(|i| format!("{} += (i32)more.{};", four(i), WORDS[i as usize])), " ");
    let layer = warps * count * 32;
    format!(
        "if (gm_blocks_z() > 1) {{
        {begin}
        u32x4 *const parts = (u32x4 *)a.parts + (u64)tile * gm_blocks_z() * {layer} + gm_warp() * {own} + gm_lane();
        {each} gm_store(parts + gm_block_z() * {layer} + ({place}) * 32, u32x4{{{values}}});
        {counted}
        for (u32 z = 0; z < gm_blocks_z(); z++) {{
            if (z == gm_block_z()) continue;
            {each} {{
                const u32x4 more = gm_load(parts + z * {layer} + ({place}) * 32);
                {added}
            }}
        }}
    }}
    ",
        begin = TILE,
        own = count * 32,
        counted = counted(plan),
    )
}

/// The number of the tile.
pub(super) const TILE: &str = "const u32 tile = gm_block_y() * gm_blocks() + gm_block();";

/// Statements behind which the last of a place's warps knows what the others stored, and no other warp is.
pub(super) fn counted(plan: &CudaMatmul<'_>) -> String {
    format!(
        "gm_sync_warp();
        u32 before = 0;
        if (gm_lane() == 0) before = gm_count((u32 *)a.parts - 1 - tile * {} - gm_warp(), gm_blocks_z());
        if (gm_shfl(before, 0) + 1 < gm_blocks_z()) return;
        gm_sync_warp();",
        plan.threads / 32
    )
}
