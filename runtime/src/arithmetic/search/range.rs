//! Quantizers that read scale and minimum off the block: `min-max` and `mean`.

use super::k::{Trials, fit};
use super::{Found, inverse, relative, weigh};

/// Codes spread evenly from the smallest value to the largest (ggml's Q4_1 and Q5_1).
///
/// `top` is the largest code. Of equal extremes the first counts, which matters for the sign of a zero. With `importance` scale
/// and minimum are searched for as in `k-min`.
#[inline(always)]
pub fn min_max<const E: usize>(x: &[f32; E], importance: Option<&[f32; E]>, top: f32) -> Found<E, 1> {
    if let Some(importance) = importance {
        let (mut codes, mut trial) = ([0f32; E], [0f32; E]);
        let (scale, min) = fit(x, &weigh(x, importance), &mut codes, &mut trial, top, Trials::WEIGHTED_ANY);
        return Found { codes: codes.map(|code| code as u16), scale, min: -min, ..Found::ZERO };
    }
    let (mut min, mut max) = (f32::MAX, f32::MIN);
    for &x in x {
        if x < min {
            min = x;
        }
        if x > max {
            max = x;
        }
    }
    let scale = (max - min) / top;
    let inverse = inverse(scale);
    // Rounds half up; not below 0, because x >= min.
    let codes = x.map(|x| ((x - min) * inverse + 0.5).trunc().min(top) as u16);
    Found { codes, scale, min, ..Found::ZERO }
}

/// One bit a weight, its sign, and the mean magnitude as scale (ggml's Q1_0), which `importance` weighs. Zeros count as
/// positive.
#[inline(always)]
pub fn mean<const E: usize>(x: &[f32; E], importance: Option<&[f32; E]>) -> Found<E, 1> {
    let scale = match importance {
        Some(importance) => {
            let (mut sum, mut all) = (0f32, 0f32);
            for (x, weight) in x.iter().zip(relative(importance)) {
                sum += weight * x.abs();
                all += weight;
            }
            sum / all
        }
        None => {
            let mut sum = 0f32;
            for x in x {
                sum += x.abs();
            }
            sum / E as f32
        }
    };
    Found { codes: x.map(|x| u16::from(x >= 0.0)), scale, ..Found::ZERO }
}
