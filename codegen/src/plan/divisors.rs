//! Common divisors and multiples.

use gristmill_spec::model::ShapeRules;

/// The least common multiple.
pub(crate) fn lcm(a: u64, b: u64) -> u64 {
    (a / gcd(a, b)).saturating_mul(b)
}

/// The rules of a kernel that takes whole blocks of so many elements.
pub(crate) fn of_whole_blocks(mut shape: ShapeRules, elements: u32) -> ShapeRules {
    shape.k.multiple_of = lcm(shape.k.multiple_of.max(1), u64::from(elements));
    shape
}

pub(super) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
