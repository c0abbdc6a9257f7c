//! `fma`: few tokens, weights and products in f32. The kernel stands in `fma.h`.

use super::rows_product::RowsProduct;

/// Rows that a CUDA block does.
pub const ROWS: u32 = 4;
/// What stands in front of the kernels.
pub const HEADER: &str = include_str!("../../../cuda/fma.h");

/// Shared memory of a CUDA block: a sum of each warp for each output.
pub fn shared_bytes(threads: u32, tokens: u32) -> u32 {
    threads / 32 * ROWS * tokens * 4
}

/// The kernel.
pub fn emit(plan: &RowsProduct<'_>, function: &str) -> String {
    let RowsProduct { threads, tokens, .. } = *plan;
    format!(
        "GM_KERNEL_WIDE({threads}) {function}(Rows a) {{
    GM_SHARED(f32, sums, {warps} * FMA_ROWS * {tokens});
    fma_product<{tokens}>(a, sums);
}}
GM_EXPORT({function})

",
        warps = threads / 32,
    )
}
