//! `fma`: few tokens, weights and products in f32. The kernel stands in `fma.h`.

use super::rows_product::{RowsProduct, product_kernel};

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
    let body = format!(
        "    GM_SHARED(f32, sums, {} * FMA_ROWS * {tokens});
    fma_product<{tokens}>(a, sums);
",
        threads / 32
    );
    product_kernel(threads, function, &body)
}
