//! What the compiler refuses: variants that no exact loop can be written for, each with a code and its place in a spec.

use crate::error::{Error, once};
use crate::plan::packed::packed_plan;
use crate::plan::{FormatPlan, QuantizerPlan};
use gristmill_spec::model::SpecSet;
use gristmill_spec::vocab::Op;

/// What of a checked set can't be compiled, for processors and for GPUs: every kernel is planned and none is written.
pub fn refusals(set: &SpecSet) -> Vec<Error> {
    let mut errors = Vec::new();
    for (index, format) in set.formats.iter().enumerate() {
        let plan = FormatPlan::new(format, &set.activations[format.activations]);
        if crate::emit::variants(set, Op::Quantize, index).next().is_some() {
            let planned = format.quantizers.iter().map(|quantizer| QuantizerPlan::new(&plan, quantizer));
            errors.extend(planned.filter_map(Result::err));
        }
        for (_, _, variant) in crate::emit::variants(set, Op::Matmul, index) {
            if let Some(packing) = variant.packing {
                errors.extend(packed_plan(&plan, &set.packings[packing], variant).err());
            }
        }
        errors.extend(crate::cuda::refusals(set, &plan, index));
    }
    once(errors)
}
