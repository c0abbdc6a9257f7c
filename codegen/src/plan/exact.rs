//! How far integer sums are exact.

use super::format::FormatPlan;
use crate::Error;
use gristmill_spec::model::Origin;

/// The smallest and largest int8 activation that a caller can hand in.
const ACTIVATION: (i64, i64) = (-128, 127);

/// The largest k for which an i32 holds a sum that each k adds at most so much to; k is padded by at most `padding` elements.
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

/// How often an i16 lane can take `count` products of operands in `smallest..=largest` with activations before
/// it could leave its range.
pub(super) fn steps_in_i16(smallest: i64, largest: i64, count: i64) -> i64 {
    let (low, high) = ACTIVATION;
    let products = [smallest * low, smallest * high, largest * low, largest * high].map(|p| p * count);
    let over = products.into_iter().filter(|&p| p > 0).map(|p| i64::from(i16::MAX) / p);
    let under = products.into_iter().filter(|&p| p < 0).map(|p| i64::from(i16::MIN) / p);
    over.chain(under).min().unwrap_or(i64::from(u16::MAX))
}
