//! How far integer sums are exact.

use super::format::FormatPlan;
use crate::Error;
use gristmill_spec::model::Origin;

/// The largest k for which an i32 holds a sum that each k adds at most so much to; k is padded by fewer than `padding` elements.
pub(crate) fn exact_over(each: u64, padding: u32) -> u64 {
    (i32::MAX as u64 / each).saturating_sub(padding.into())
}

/// The longest row of a variant whose sums are exact over `k_max` elements.
///
/// # Errors
/// A run has more.
pub(crate) fn longest_row(plan: &FormatPlan<'_>, k_max: u64, variant: &Origin) -> Result<u64, Error> {
    match plan.k_group {
        0 => Ok(k_max),
        k_group if u64::from(k_group) > k_max => Err(Error::overflow(plan.format, k_group, variant)),
        _ => Ok(u64::MAX),
    }
}

/// That in words, behind others.
pub(crate) fn up_to(k_max: u64) -> String {
    if k_max == u64::MAX { String::new() } else { format!("; exact up to k = {k_max}") }
}
