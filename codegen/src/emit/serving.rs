//! Which variants serve a format.

use crate::Error;
use crate::plan::FormatPlan;
use crate::plan::packed::packed_plan;
use gristmill_spec::model::{CpuVariant, Kernel, SpecSet};
use gristmill_spec::vocab::{Op, Strategy};

/// The kernels of `op` that serve a format, with their variants.
pub(crate) fn serving(
    set: &SpecSet,
    op: Op,
    format: usize,
) -> impl Iterator<Item = (&Kernel, usize, &CpuVariant)> {
    set.kernels
        .iter()
        .filter(move |kernel| kernel.op == op)
        .flat_map(|kernel| {
            kernel.cpu.iter().enumerate().map(move |(order, variant)| (kernel, order, variant))
        })
        .filter(move |(_, _, variant)| variant.formats.contains(&format) && in_range(set, format, variant))
}

/// Whether the sums of a format fit the tables of a lookup variant that takes codes of some width: like formats of wider
/// codes, those that do not are left to other variants. One without `code_bits` is to serve all of its formats, or is refused.
fn in_range(set: &SpecSet, format: usize, variant: &CpuVariant) -> bool {
    let (Strategy::Lookup, Some(_), Some(packing)) = (variant.strategy, variant.code_bits, variant.packing)
    else {
        return true;
    };
    let format = &set.formats[format];
    let plan = FormatPlan::new(format, &set.activations[format.activations]);
    let refusal = packed_plan(&plan, &set.packings[packing], variant).err();
    !matches!(refusal, Some(Error::Spec(diagnostic)) if diagnostic.code == "lookup-range")
}
