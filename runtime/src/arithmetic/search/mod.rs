//! Quantizers that are algorithms: formats whose scales have to be searched for.
//!
//! A spec names one (`algorithm = "k-min"`), the checker proves that the format has the structure that it
//! fills in, and generated code writes what it returns by the format's own layouts. Nothing in here knows a
//! format by name. Everything is inlined into its caller, so that it is compiled with the caller's CPU
//! features; sums are sequential in f32 without fused multiply-add, so that every ISA gives the same bits.
//!
//! The rules are those of ggml's reference quantizers, so that the blocks are the same to the byte; only
//! [`grid`], [`shifted`] and [`alternating`] are searches of their own. Input is finite (checked before). A scale that comes out infinite or NaN,
//! because sums overflowed, is returned as it is: storing it is refused there.
//!
//! All take the importance of each weight, too: what a squared error of it costs, finite and not negative. It takes the place
//! of the weights that a search has on its own.

pub mod alternating;
pub mod columns;
pub mod grid;
pub mod k;
pub mod levels;
pub mod range;
pub mod rounding;
pub mod shifted;

/// What an algorithm found for a block of `E` weights in `R` runs.
#[derive(Clone, Copy, Debug)]
pub struct Found<const E: usize, const R: usize> {
    /// The code of each weight.
    pub codes: [u16; E],
    /// The scale of the block.
    pub scale: f32,
    /// The integer factor of the scale, run by run (the stored bits where a run has a scale of its own).
    pub runs: [i32; R],
    /// The minimum of the block.
    pub min: f32,
    /// The integer factor of the minimum, run by run.
    pub min_runs: [i32; R],
}

impl<const E: usize, const R: usize> Found<E, R> {
    /// All zeros.
    const ZERO: Found<E, R> = Found { codes: [0; E], scale: 0.0, runs: [0; R], min: 0.0, min_runs: [0; R] };
}

/// What is added to every importance, in parts of the mean of its block: what was never active keeps a sensible value.
const FLOOR: f32 = 1e-6;

/// The importance of a block's weights in parts of its mean; that of a block without any is the same for all.
#[inline(always)]
fn relative<const E: usize>(importance: &[f32; E]) -> [f32; E] {
    // As f64, which neither the sum nor the quotient leaves.
    let mut sum = 0f64;
    for &importance in importance {
        sum += f64::from(importance);
    }
    if sum == 0.0 {
        return [1.0; E];
    }
    let mean = sum / E as f64;
    importance.map(|importance| (f64::from(importance) / mean) as f32 + FLOOR)
}

/// What squared errors count by, given the importance of the weights: that times the square root of x^2 plus twice the mean of
/// x^2 in the block, as ggml has it for most formats.
#[inline(always)]
fn weigh<const E: usize>(x: &[f32; E], importance: &[f32; E]) -> [f32; E] {
    let mut sum = 0f32;
    for x in x {
        sum += x * x;
    }
    let floor = 2.0 * (sum / E as f32);
    let mut weights = relative(importance);
    for (weight, x) in weights.iter_mut().zip(x) {
        *weight *= (floor + x * x).sqrt();
    }
    weights
}

/// Scales of a run that are tried at once, a vector lane to each.
const TRIALS: usize = 8;

/// Runs whose largest magnitude is below this count as zero.
const SMALLEST: f32 = 1e-15;

/// To the nearest integer (ties to even) from `low` to `high`; NaN gives `low`.
#[inline(always)]
fn nearest(value: f32, low: f32, high: f32) -> f32 {
    value.round_ties_even().max(low).min(high)
}

/// 1 / `value`, 0 where that is not finite: a block too small for a finite inverse counts as all zero.
#[inline(always)]
fn inverse(value: f32) -> f32 {
    let inverse = 1.0 / value;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The first of the values of greatest magnitude, with its sign; 0 for none. Any that is not finite wins.
#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    let mut largest = 0f32;
    for &value in values {
        if !value.is_finite() {
            return value;
        }
        if value.abs() > largest.abs() {
            largest = value;
        }
    }
    largest
}
