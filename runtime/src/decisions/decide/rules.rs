//! Rules on a shape, kept or broken.

use crate::reason::{BrokenRule, Dim, Rule};
use crate::registry::{DimRule, ShapeRules};
use crate::request::Shape;

#[inline]
pub(super) fn fits(rules: &ShapeRules, shape: Shape) -> bool {
    keeps(&rules.m, shape.m) && keeps(&rules.n, shape.n) && keeps(&rules.k, shape.k)
}

#[inline]
pub(super) fn keeps(rule: &DimRule, value: usize) -> bool {
    let value = value as u64;
    value >= rule.min
        && value <= rule.max
        && (rule.multiple_of <= 1 || value.is_multiple_of(rule.multiple_of))
}

/// What is left of an inclusive range when `min..=max` is taken out.
pub(super) fn without((from, to): (u64, u64), min: u64, max: u64) -> impl Iterator<Item = (u64, u64)> {
    let below = min.checked_sub(1).filter(|below| *below >= from).map(|below| (from, below.min(to)));
    let above = max.checked_add(1).filter(|above| *above <= to).map(|above| (above.max(from), to));
    below.into_iter().chain(above)
}

/// The first rule that `shape` breaks.
pub(crate) fn broken_rule(rules: &ShapeRules, shape: Shape) -> Option<BrokenRule> {
    let broken = |dim, rule: &DimRule, value: usize| {
        let found = value as u64;
        if keeps(rule, value) {
            None
        } else if found < rule.min {
            Some(BrokenRule { dim, rule: Rule::AtLeast(rule.min), found })
        } else if found > rule.max {
            Some(BrokenRule { dim, rule: Rule::AtMost(rule.max), found })
        } else {
            Some(BrokenRule { dim, rule: Rule::MultipleOf(rule.multiple_of), found })
        }
    };
    broken(Dim::M, &rules.m, shape.m)
        .or_else(|| broken(Dim::N, &rules.n, shape.n))
        .or_else(|| broken(Dim::K, &rules.k, shape.k))
}
