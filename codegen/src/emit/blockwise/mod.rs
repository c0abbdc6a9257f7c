//! Kernels of a format that go over its blocks one after the other, without a packing: an op is a file here and a line below.

mod dequantize;
mod embed;
mod quantize;

use super::kernels::{Decoding, Kernels};

/// Adds the kernels of each op, in the order of the generated module.
pub(super) fn list(kernels: &mut Kernels<'_>, decoding: &Decoding<'_>) {
    dequantize::list(kernels, decoding);
    embed::list(kernels, decoding);
    dequantize::body(kernels, decoding);
    quantize::list(kernels, decoding.plan);
}
