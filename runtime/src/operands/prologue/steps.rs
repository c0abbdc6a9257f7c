//! The arithmetic of the steps of a prologue, shared by all generated code.
//!
//! Each step works on a row where it lies, in f32 but where f64 is said, one rounding for each operation and none fused, in one
//! order: everything gives the same bits whatever the processor is. Functions are inlined into their callers and loops go over
//! indices, for the reasons that [`crate::number`] gives.

#![allow(
    clippy::needless_range_loop,
    reason = "adapters of iterators are not inlined everywhere, see `number`"
)]

use crate::abi::Fault;
use crate::number;
use gristmill_spec::vocab::GateFunction;

/// Elements that are worked on together, and partial sums of a norm.
const LANES: usize = 16;

/// `row = x`, which is as long. Refuses NaN and infinities, with the position of the first.
#[inline(always)]
pub fn copy(x: &[f32], row: &mut [f32]) -> Result<(), Fault> {
    number::check_finite(x)?;
    row.copy_from_slice(x);
    Ok(())
}

/// `row = f(row) * up`, element by element; `function` is a number of [`GateFunction`].
///
/// With z = x for `silu` and z = x * (1.595769 + 0.07135482 * (x * x)) for `gelu-tanh`, e = [`exp`] of `-|z|`:
/// f(x) = x * ((1 if z >= 0, else e) / (1 + e)). `squared-relu` is p * p with p = 0 where x < 0, else x.
#[inline(always)]
pub fn gate(row: &mut [f32], up: &[f32], function: u32) -> Result<(), Fault> {
    number::check_finite(up)?;
    let up = &up[..row.len()];
    if function == GateFunction::Silu as u32 {
        for i in 0..row.len() {
            row[i] = row[i] * sigmoid(row[i]) * up[i];
        }
    } else if function == GateFunction::GeluTanh as u32 {
        for i in 0..row.len() {
            row[i] = row[i] * sigmoid(gelu_argument(row[i])) * up[i];
        }
    } else {
        for i in 0..row.len() {
            let positive = if row[i] < 0.0 { 0.0 } else { row[i] };
            row[i] = positive * positive * up[i];
        }
    }
    Ok(())
}

/// `2 * sqrt(2 / pi) * (x + 0.044715 * x^3)`.
#[inline(always)]
fn gelu_argument(x: f32) -> f32 {
    x * (1.595_769 + 0.071_354_82 * (x * x))
}

/// `1 / (1 + e^-z)`, without overflow on the way.
#[inline(always)]
fn sigmoid(z: f32) -> f32 {
    let e = exp(-z.abs());
    (if z >= 0.0 { 1.0 } else { e }) / (1.0 + e)
}

/// e^x within 2 units in the last place for x from -87 to 0, and 0 below.
///
/// n = x / ln 2, rounded to an integer by the addition of 1.5 * 2^23, and r = x - n * ln 2 with ln 2 in two parts, multiplied and
/// subtracted one after the other; then a polynomial of degree 6 in r (Cephes' `expf`), by Horner's rule, times 2^n.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    let inside = if x < -87.0 { -87.0 } else { x };
    let rounded = inside * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = inside - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let p = ((((1.987_569_1e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r
        + 1.666_666_5e-1)
        * r
        + 5e-1;
    let p = p * (r * r) + r + 1.0;
    let power = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    if x < -87.0 { 0.0 } else { p * f32::from_bits(power) }
}

/// `row = row + residual`, which is kept in `sum` too if all of it is finite; else a fault with the position of the first that is not.
#[inline(always)]
pub fn add(row: &mut [f32], residual: &[f32], sum: &mut [f32]) -> Result<(), Fault> {
    let residual = &residual[..row.len()];
    for i in 0..row.len() {
        row[i] += residual[i];
    }
    number::check_finite(row)?;
    sum.copy_from_slice(row);
    Ok(())
}

/// `row = row * factor * weight` with `factor = 1 / sqrt(mean of squares + epsilon)`.
///
/// Squares are summed in f64, where they are exact: square i goes to partial sum i % 16, and partial sums are added in order. The
/// sum over the count, plus epsilon, its root and the inverse of that are f64 too; the factor is rounded to f32 once.
#[inline(always)]
pub fn rms_norm(row: &mut [f32], weight: &[f32], epsilon: f32) -> Result<(), Fault> {
    let mut sums = [0f64; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for at in 0..chunks.len() {
        for lane in 0..LANES {
            let x = f64::from(chunks[at][lane]);
            sums[lane] += x * x;
        }
    }
    for lane in 0..rest.len() {
        let x = f64::from(rest[lane]);
        sums[lane] += x * x;
    }
    let mut sum = 0.0;
    for part in sums {
        sum += part;
    }
    // Squares of finite f32 are finite, and so is what is added up of as many as memory holds.
    if !sum.is_finite() {
        number::check_finite(row)?;
    }
    let factor = (1.0 / (sum / row.len() as f64 + f64::from(epsilon)).sqrt()) as f32;
    let weight = &weight[..row.len()];
    for i in 0..row.len() {
        row[i] = row[i] * factor * weight[i];
    }
    Ok(())
}

/// `row = H (signs * row)`, block by block: [`Hadamard`](crate::Hadamard), which states the order. The block is a power of two from 2
/// on and divides the row.
#[inline(always)]
pub fn hadamard(row: &mut [f32], signs: Option<&[f32]>, block: usize) -> Result<(), Fault> {
    // Behind the transform it would fill its block.
    number::check_finite(row)?;
    signed_transform(row, signs, block);
    Ok(())
}

/// The same, whatever the row holds.
#[inline(always)]
pub(crate) fn signed_transform(row: &mut [f32], signs: Option<&[f32]>, block: usize) {
    let factor = inverse_root(block);
    if let Some(signs) = signs {
        let signs = &signs[..row.len()];
        for i in 0..row.len() {
            row[i] = row[i] * signs[i] * factor;
        }
    } else {
        for i in 0..row.len() {
            row[i] *= factor;
        }
    }
    butterflies(row, block);
}

/// Butterflies `(a + b, a - b)` of elements that are 1, 2, 4, ... apart, in every block of the row.
#[inline(always)]
pub(crate) fn butterflies(row: &mut [f32], block: usize) {
    let mut apart = 1;
    while apart < LANES && apart < block {
        near(row, apart);
        apart *= 2;
    }
    while apart < block {
        far(row, apart);
        apart *= 2;
    }
}

/// `1 / sqrt(block)`, rounded to f32 once.
#[inline(always)]
pub(crate) fn inverse_root(block: usize) -> f32 {
    (1.0 / (block as f64).sqrt()) as f32
}

/// Those of elements that are less than a chunk apart; the row is a multiple of twice that.
#[inline(always)]
fn near(row: &mut [f32], apart: usize) {
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    for at in 0..chunks.len() {
        let from = chunks[at];
        for i in 0..LANES {
            let other = from[i ^ apart];
            chunks[at][i] = if i & apart == 0 { from[i] + other } else { other - from[i] };
        }
    }
    for i in 0..rest.len() {
        if i & apart == 0 {
            (rest[i], rest[i + apart]) = (rest[i] + rest[i + apart], rest[i] - rest[i + apart]);
        }
    }
}

/// The same of elements that are a chunk or several apart.
#[inline(always)]
fn far(row: &mut [f32], apart: usize) {
    let mut first = 0;
    while first < row.len() {
        let (low, high) = row[first..first + 2 * apart].split_at_mut(apart);
        for i in 0..apart {
            (low[i], high[i]) = (low[i] + high[i], low[i] - high[i]);
        }
        first += 2 * apart;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_that_of_f64() {
        let mut worst = 0.0f64;
        for i in 0..=87_000 {
            let x = i as f32 / -1000.0;
            worst = worst.max((f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs());
        }
        assert!(worst < 2.5e-7, "{worst}");
        assert_eq!([exp(0.0), exp(-87.1), exp(f32::NEG_INFINITY)], [1.0, 0.0, 0.0]);
        assert!(exp(f32::NAN).is_nan());
    }

    /// A gate by its definition in f64, near zero, far away, and at the ends of f32.
    #[test]
    fn gates_are_close_to_their_definitions() {
        let mut values: Vec<f32> = (-4000..=4000).map(|i| i as f32 / 100.0).collect();
        values.extend([1e-30, -1e-30, 1e10, -1e10, 3e38, -3e38]);
        for function in GateFunction::ALL {
            let exact = |x: f64| match function {
                GateFunction::Silu => x / (1.0 + (-x).exp()),
                GateFunction::GeluTanh => {
                    0.5 * x
                        * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
                }
                GateFunction::SquaredRelu => x.max(0.0) * x.max(0.0),
            };
            let mut row = values.clone();
            assert_eq!(gate(&mut row, &vec![0.5; values.len()], *function as u32), Ok(()));
            for (x, found) in values.iter().zip(row) {
                let expected = exact(f64::from(*x)) * 0.5;
                let close = (f64::from(found) - expected).abs() <= 2e-6 * expected.abs() + 1e-6;
                assert!(close || expected.abs() > 1e38, "{function}({x}): {found}, expected {expected}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_named_where_it_is() {
        let fault = |at| Err(Fault::NonFinite(at));
        let mut row = [1.0f32; 40];
        let mut bad = row;
        bad[33] = f32::NAN;
        assert_eq!(copy(&bad, &mut row), fault(33));
        assert_eq!(gate(&mut row, &bad, GateFunction::SquaredRelu as u32), fault(33));
        let mut sum = [7.0; 40];
        assert_eq!(add(&mut row, &bad, &mut sum), fault(33));
        assert_eq!(sum, [7.0; 40]);
        assert_eq!(rms_norm(&mut bad, &[1.0; 40], 1e-5), fault(33));
        let mut bad = [1.0; 40];
        bad[5] = f32::INFINITY;
        assert_eq!(hadamard(&mut bad, None, 8), fault(5));
    }

    /// Squares beyond f32, and none at all.
    #[test]
    fn norms_of_large_and_of_small_rows() {
        for size in [1e-20f32, 1.0, 1e25, 3e38] {
            let mut row = [size, -size, size, -size];
            assert_eq!(rms_norm(&mut row, &[1.0, 2.0, 1.0, 1.0], 1e-45), Ok(()));
            let close = row.iter().zip([1.0, -2.0, 1.0, -1.0]).all(|(x, y)| (x - y).abs() <= 1e-5 * y.abs());
            assert!(close || size == 3e38, "{size}: {row:?}");
        }
        let mut row = [0.0f32; 3];
        assert_eq!(rms_norm(&mut row, &[1.0; 3], 1e-6), Ok(()));
        assert_eq!(row, [0.0; 3]);
    }
}
