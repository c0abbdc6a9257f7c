//! What rounding by `signed-absmax` becomes where importance is given (ggml's Q4_0 and Q5_0).

use super::k::{Integers, scan};
use super::{SMALLEST, inverse, largest, nearest, weigh};

/// Parameters of `signed-absmax`.
#[derive(Clone, Copy, Debug)]
pub struct SignedAbsMax {
    /// What the weight of greatest magnitude becomes without importance.
    pub levels: f32,
    /// Smallest integer.
    pub low: f32,
    /// Largest integer.
    pub high: f32,
}

/// Scales that are tried on either side of the one that makes the weight of greatest magnitude `levels`, 0.1 of a step apart.
const STEPS: u32 = 9;

/// One scale, and the integer of each weight: `w = scale * integer`, squared errors counted by `importance`.
///
/// `stored` rounds the scale to the type that it is stored in.
#[inline(always)]
pub fn signed_absmax<const E: usize>(
    x: &[f32; E],
    importance: &[f32; E],
    rule: &SignedAbsMax,
    stored: impl Fn(f32) -> f32,
) -> ([i32; E], f32) {
    let max = largest(x);
    if max.abs() < SMALLEST {
        return ([0; E], 0.0);
    }
    let weights = weigh(x, importance);
    let integers = Integers { top: rule.levels, low: rule.low, high: rule.high };
    let mut codes = [0f32; E];
    let scale = scan(x, &weights, &mut codes, max, integers, STEPS);
    // By the scale as it will be read.
    let per = inverse(stored(scale));
    (x.map(|x| nearest(x * per, rule.low, rule.high) as i32), scale)
}
