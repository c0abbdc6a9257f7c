//! Rows of blocks as values of a type: what `dequantize` gives, rounded where it is to be an f16 or a bf16.

use super::dequantize;
use crate::emit::kernels::{Decoding, Kernels};
use crate::emit::listed::{Limits, Made};
use gristmill_spec::vocab::Op;

/// Adds the kernels of a format.
pub(super) fn list(kernels: &mut Kernels<'_>, decoding: &Decoding<'_>) {
    let variants = kernels.variants(Op::Embed);
    if variants.is_empty() {
        return;
    }
    let own = embed();
    let text = format!("{}{own}", dequantize::text(decoding));
    for serving in variants {
        let (_, _, variant) = serving;
        let function = kernels.function(None, serving, "embed", |kernels, ident| {
            let decoder = format!("dequantize_{}", variant.ident());
            dequantize::decoder(kernels, variant, &decoder);
            let what = format!("Rows of `{}` to f32, f16 or bf16", kernels.name());
            kernels.pass_on(Op::Embed, variant, &what, ident, ("embed", &[&decoder]));
        });
        let plan = format!("decode: {}", decoding.words);
        let code = format!("Code::Embed({function})");
        kernels.push(Made { serving, quantizer: None, plan, code, text: &text, limits: Limits::NONE });
    }
    kernels.body.push_str(&own);
}

/// The body, which takes the `dequantize` that was compiled for its variant: no decoder is compiled twice.
fn embed() -> String {
    "/// Blocks that are decoded together.
     const CHUNK: usize = if ELEMENTS < 512 { 512 / ELEMENTS } else { 1 };
     /// Blocks of a row to values of type `to`.
     ///
     /// # Safety
     ///
     /// As for `decode`; `dst` is aligned for that type.
     #[inline(always)]
     unsafe fn embed(
         decode: gristmill_runtime::abi::DequantizeFn, src: *const u8, dst: *mut u8, blocks: usize, outer: f32, to: DType,
     ) -> Result<(), Fault> {
         if let DType::F32 = to {
             // SAFETY: passed on; `dst` is aligned for f32.
             return unsafe { decode(src, dst.cast(), blocks, outer) };
         }
         let mut values = [0.0f32; CHUNK * ELEMENTS];
         let mut first = 0;
         while first < blocks {
             let some = (blocks - first).min(CHUNK);
             // SAFETY: the caller answers for `blocks` blocks; `values` has room for those of a chunk.
             let decoded = unsafe { decode(src.add(first * BYTES), values.as_mut_ptr(), some, outer) };
             if let Err(fault) = decoded {
                 return Err(number::offset(fault, first * ELEMENTS));
             }
             // SAFETY: the caller answers for room for the values of all blocks, two bytes each.
             unsafe { number::narrow(&values[..some * ELEMENTS], dst.cast::<u16>().add(first * ELEMENTS), to) };
             first += some;
         }
         Ok(())
     }\n"
        .to_string()
}
