//! `mma_f16` and `mma_bf16`: many tokens. The kernel stands in `halves.h`; here is what it takes of a tile.

use super::rows_product::{RowsProduct, product_kernel};

/// k of a stage: two steps of `mma.m16n8k16`.
pub const STAGE: u32 = 32;
/// Rows of a warp: two tiles of `mma`.
const WARP_ROWS: u32 = 32;
/// Tokens of a warp, at most.
const WARP_TOKENS: u32 = 64;
/// Stages in shared memory, of weights and of activations.
pub(super) const RINGS: (u32, u32) = (2, 3);
/// What stands in front of the kernels.
pub const HEADERS: &str =
    concat!(include_str!("../../../cuda/mma_tile.h"), include_str!("../../../cuda/halves.h"));

/// Rows that a CUDA block does: those of the warps that do not share any.
pub fn rows(threads: u32, tokens: u32) -> u32 {
    threads / 32 / tokens.div_ceil(WARP_TOKENS) * WARP_ROWS
}

/// Shared memory of a CUDA block.
pub fn shared_bytes(rows: u32, tokens: u32) -> u32 {
    (RINGS.0 * rows + RINGS.1 * tokens) * STAGE * 2
}

/// The kernel, behind what it says of itself.
pub fn emit(plan: &RowsProduct<'_>, function: &str) -> String {
    let RowsProduct { precision, threads, rows, tokens, .. } = *plan;
    let (of_rows, of_tokens) = RINGS;
    let body = format!(
        "    GM_SHARED(u16, rows, {of_rows} * {rows} * {STAGE});
    GM_SHARED(u16, x, {of_tokens} * {tokens} * {STAGE});
    product_of_halves<{function}_tile>(a, rows, x);
"
    );
    format!(
        "struct {function}_tile {{
    static constexpr u32 ROWS = {rows}, TOKENS = {tokens}, THREADS = {threads}, ACROSS = {across};
    GM_DEVICE u32 two(f32 low, f32 high) {{ return gm_two_{precision}(low, high); }}
    GM_DEVICE void multiply(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {{ gm_mma_16816_{precision}(c, a, b); }}
}};

{kernel}",
        across = tokens.div_ceil(WARP_TOKENS),
        kernel = product_kernel(threads, function, &body),
    )
}
