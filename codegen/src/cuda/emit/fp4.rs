//! `mma_fp4`: many tokens. Weights that are FP4 with a scale for each run go to tensor cores as they are in the file; activations
//! are quantized to the same, by the rule of `nearest-level`.

use super::activations::VALUES;
use super::halves::RINGS;
use super::parameters::kernel;
use super::rows_product::{RowsProduct, product_kernel};
use gristmill_spec::model::{Fp4, Scalar};
use gristmill_spec::vocab::CudaAbi;

/// What stands in front of the kernels.
const HEADERS: &str = concat!(include_str!("../../../cuda/mma_tile.h"), include_str!("../../../cuda/fp4.h"));

/// Elements that are staged at once.
pub const STAGE: u32 = 128;

/// Threads of a CUDA block of the kernel that quantizes activations.
pub const QUANTIZE_THREADS: u32 = 256;

/// Bytes of a stage: codes and scales.
pub fn stage_bytes(fp4: &Fp4) -> u32 {
    STAGE / 2 + STAGE / fp4.run
}

/// Shared memory of a CUDA block.
pub fn shared_bytes(fp4: &Fp4, rows: u32, tokens: u32) -> u32 {
    (RINGS.0 * rows + RINGS.1 * tokens) * stage_bytes(fp4)
}

/// The kernel `QUANTIZE`, and what the products of the unit share with it.
pub fn prelude(fp4: &Fp4, quantize: &str) -> String {
    let Fp4 { scale, codes, scales, elements, next, .. } = fp4;
    let scale = if *scale == Scalar::E8m0Half { "GM_E8M0" } else { "GM_E4M3" };
    let elements: Vec<String> = elements.iter().map(ToString::to_string).collect();
    let body = "    quantize_rows(src, from, src_stride, (u8 *)dst, dst_stride, rows, k, fault);
    (void)to;
";
    format!(
        "#define {scale}
#define ELEMENTS_OF_A_WORD {{{elements}}}
enum : u32 {{ CODES_AT = {codes}, SCALES_AT = {scales}, NEXT = {next} }};

{VALUES}{HEADERS}
{kernel}
",
        elements = elements.join(", "),
        kernel = kernel(QUANTIZE_THREADS, quantize, &CudaAbi::CONVERT, body),
    )
}

/// The kernel.
pub fn emit(plan: &RowsProduct<'_>, fp4: &Fp4, function: &str) -> String {
    let RowsProduct { threads, rows, tokens, .. } = *plan;
    let (of_rows, of_tokens) = RINGS;
    let body = format!(
        "    GM_SHARED(u32, w_codes, {of_rows} * {rows} * {words});
    GM_SHARED(u8, w_scales, {of_rows} * {rows} * {runs});
    GM_SHARED(u32, x_codes, {of_tokens} * {tokens} * {words});
    GM_SHARED(u8, x_scales, {of_tokens} * {tokens} * {runs});
    product<{rows}, {tokens}, {threads}>(a, w_codes, w_scales, x_codes, x_scales);
",
        words = STAGE / 8,
        runs = STAGE / fp4.run,
    );
    product_kernel(threads, function, &body)
}
