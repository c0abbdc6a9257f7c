//! The plan of a variant that reads a packing, by its strategy.

use super::{FormatPlan, LookupPlan, MatmulPlan};
use crate::Error;
use gristmill_spec::model::{CpuVariant, Packing};
use gristmill_spec::vocab::Strategy;

/// The plan of a variant that reads a packing.
#[allow(clippy::large_enum_variant, reason = "one at a time, for as long as its code is written")]
pub(crate) enum PackedPlan<'a> {
    Multiply(MatmulPlan<'a>),
    Lookup(LookupPlan<'a>),
}

/// Plans a variant that reads `packing`.
///
/// # Errors
/// The packing does not go with the format or the variant, or a sum could overflow.
pub(crate) fn packed_plan<'a>(
    plan: &'a FormatPlan<'_>,
    packing: &'a Packing,
    variant: &CpuVariant,
) -> Result<PackedPlan<'a>, Error> {
    Ok(match variant.strategy {
        Strategy::Multiply | Strategy::Staged | Strategy::Tiles => {
            PackedPlan::Multiply(MatmulPlan::new(plan, packing, variant)?)
        }
        Strategy::Lookup => PackedPlan::Lookup(LookupPlan::new(plan, packing, variant)?),
    })
}
