//! f32 to blocks, by each quantizer of the format.

use crate::emit::kernels::{Kernels, passing_on};
use crate::emit::listed::{Limits, Made};
use crate::emit::quantize;
use crate::plan::{FormatPlan, QuantizerPlan};
use gristmill_spec::model::{CpuVariant, Quantizer, quantizer_function};
use gristmill_spec::vocab::{Abi, Op};

/// Adds the kernels of a format.
pub(super) fn list(kernels: &mut Kernels<'_>, plan: &FormatPlan<'_>) {
    let variants = kernels.variants(Op::Quantize);
    if variants.is_empty() {
        return;
    }
    for (number, quantizer) in plan.format.quantizers.iter().enumerate() {
        let made = match QuantizerPlan::new(plan, quantizer) {
            Ok(planned) => quantize::quantize(plan, quantizer, &planned),
            Err(error) => {
                kernels.errors.push(error);
                continue;
            }
        };
        let name = quantizer.name.as_str();
        let body = quantizer_function(name);
        kernels.body.push_str(&made.text);
        for &serving in &variants {
            let (_, _, variant) = serving;
            let blocks = kernels.function(Some(name), serving, &body, |kernels, ident| {
                let what = format!("f32 to blocks of `{}` by `{name}`", kernels.name());
                kernels.pass_on(Op::Quantize, variant, &what, ident, (&body, &[]));
            });
            let (step, over) = match made.has_step {
                true => (step(kernels, variant, quantizer), "row or tensor"),
                false => ("None".to_string(), "block"),
            };
            kernels.push(Made {
                serving,
                quantizer: Some((number, name)),
                plan: format!("{name} over the {over}"),
                code: format!("Code::Quantize {{ step: {step}, blocks: {blocks}, weighs: {} }}", made.weighs),
                text: &made.text,
                limits: Limits::NONE,
            });
        }
    }
}

/// Adds what computes the step of a row or tensor; an expression of it.
fn step(kernels: &mut Kernels<'_>, variant: &CpuVariant, quantizer: &Quantizer) -> String {
    let name = &quantizer.name;
    let ident = format!("step_{name}_{}", variant.ident());
    let what = format!("The step of `{name}` for a row or tensor");
    let callee = format!("step_{name}");
    kernels.body.push_str(&passing_on(variant, &what, None, &Abi::STEP, &ident, (&callee, &[])));
    format!("Some({}::{ident})", kernels.name())
}
