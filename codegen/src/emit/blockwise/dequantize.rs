//! Blocks to f32.

use crate::emit::format;
use crate::emit::kernels::{Decoding, Kernels};
use crate::emit::listed::{Limits, Made};
use gristmill_spec::model::CpuVariant;
use gristmill_spec::vocab::Op;

/// Adds the kernels of a format.
pub(super) fn list(kernels: &mut Kernels<'_>, decoding: &Decoding<'_>) {
    let text = text(decoding);
    for serving in kernels.variants(Op::Dequantize) {
        let (_, _, variant) = serving;
        let function =
            kernels.function(None, serving, "dequantize", |kernels, ident| decoder(kernels, variant, ident));
        let plan = format!("decode: {}", decoding.words);
        let code = format!("Code::Dequantize({function})");
        kernels.push(Made { serving, quantizer: None, plan, code, text: &text, limits: Limits::NONE });
    }
}

/// What decodes blocks, all of it.
pub(super) fn text(decoding: &Decoding<'_>) -> String {
    format!("{}{}", decoding.text, format::dequantize(decoding.plan))
}

/// Adds `dequantize` compiled for a variant, if the module has it not.
pub(super) fn decoder(kernels: &mut Kernels<'_>, variant: &CpuVariant, ident: &str) {
    if kernels.decoders.insert(ident.to_string()) {
        let what = format!("Blocks of `{}` to f32", kernels.name());
        kernels.pass_on(Op::Dequantize, variant, &what, ident, ("dequantize", &[]));
    }
}

/// Adds what the decoders call, if there are any.
pub(super) fn body(kernels: &mut Kernels<'_>, decoding: &Decoding<'_>) {
    if !kernels.decoders.is_empty() {
        kernels.body.push_str(&format::dequantize(decoding.plan));
    }
}
