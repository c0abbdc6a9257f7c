//! Which variants serve a format.

use crate::Error;
use crate::plan::FormatPlan;
use crate::plan::packed::{PackedPlan, packed_plan};
use gristmill_spec::model::{CpuVariant, Kernel, SpecSet};
use gristmill_spec::vocab::Op;

/// The kernels of `op` that serve a format, with their variants and the places of these among all of the op.
pub(crate) fn variants(
    set: &SpecSet,
    op: Op,
    format: usize,
) -> impl Iterator<Item = (&Kernel, usize, &CpuVariant)> {
    set.kernels
        .iter()
        .filter(move |kernel| kernel.op == op)
        .flat_map(|kernel| kernel.cpu.iter().map(move |variant| (kernel, variant)))
        .enumerate()
        .map(|(order, (kernel, variant))| (kernel, order, variant))
        .filter(move |(_, _, variant)| variant.formats.contains(&format) && in_range(set, format, variant))
}

/// Whether a format is one for the strategy of a variant; if not, it is left to other variants. A lookup that takes codes of some
/// width leaves formats whose sums do not fit its tables (one without `code_bits` is to serve all of its formats, or is refused), a
/// staged product those whose codes cost next to nothing to decode, one by tiles those whose runs do not fill any.
fn in_range(set: &SpecSet, format: usize, variant: &CpuVariant) -> bool {
    let Some(packing) = variant.packing.filter(|_| variant.leaves_formats()) else { return true };
    let format = &set.formats[format];
    let plan = FormatPlan::new(format, &set.activations[format.activations]);
    match packed_plan(&plan, &set.packings[packing], variant) {
        Ok(PackedPlan::Multiply(plan)) => plan.staged.is_some() || plan.tiles.is_some(),
        Ok(PackedPlan::Lookup(_)) => true,
        Err(error) => !matches!(error, Error::Spec(diagnostic) if diagnostic.code == "lookup-range"),
    }
}
