//! Number formats and the arithmetic of quantizers, shared by all generated code.
//!
//! Everything is inlined into its caller, so that it is compiled with the caller's CPU features, and
//! everything gives the same bits whatever those features are.

use crate::abi::Fault;
use half::{bf16, f16};

/// IEEE binary16 bits to f32.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

/// f32 to IEEE binary16 bits, to nearest even; overflow gives an infinity.
#[inline(always)]
pub fn f32_to_f16(value: f32) -> u16 {
    f16::from_f32(value).to_bits()
}

/// bfloat16 bits to f32.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// f32 to bfloat16 bits, to nearest even.
#[inline(always)]
pub fn f32_to_bf16(value: f32) -> u16 {
    bf16::from_f32(value).to_bits()
}

/// An 8-bit exponent as half of OCP E8M0: 2^(e - 128). The two smallest are subnormal in f32.
#[inline(always)]
pub fn e8m0_half_to_f32(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// Half of an unsigned e4m3 number; bit 7 is ignored and 0x7f is zero.
#[inline(always)]
pub fn ue4m3_half_to_f32(bits: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(bits >> 3 & 15), u32::from(bits & 7));
    match (exponent, mantissa) {
        (15, 7) => 0.0,
        (0, _) => mantissa as f32 * (1.0 / 1024.0),
        // Bias 7, and one less for the half.
        _ => f32::from_bits((exponent + 127 - 8) << 23 | mantissa << 20),
    }
}

/// A fault that was found in a part which starts at `first`.
#[inline(always)]
pub fn offset(fault: Fault, first: usize) -> Fault {
    match fault {
        Fault::NonFinite(at) => Fault::NonFinite(first + at),
        Fault::InvalidCode(at) => Fault::InvalidCode(first + at),
        Fault::ScaleOverflow(at) => Fault::ScaleOverflow(at),
    }
}

/// Partial results of a reduction: enough for one AVX-512 register, a whole number of any narrower.
const LANES: usize = 16;

/// Bits of the largest |x|. The order of unsigned integers is the order of magnitudes, NaN on top, so
/// this needs no floating-point comparison and vectorizes in any order.
#[inline(always)]
fn abs_max_bits(x: &[f32]) -> u32 {
    let mut worst = [0u32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (worst, x) in worst.iter_mut().zip(chunk) {
            *worst = (*worst).max(x.to_bits() & 0x7fff_ffff);
        }
    }
    let rest = rest.iter().map(|x| x.to_bits() & 0x7fff_ffff);
    worst.into_iter().chain(rest).fold(0, u32::max)
}

/// Refuses NaN and infinities, with the position of the first.
#[inline(always)]
pub fn check_finite(x: &[f32]) -> Result<(), Fault> {
    if abs_max_bits(x) < 0x7f80_0000 {
        return Ok(());
    }
    Err(Fault::NonFinite(x.iter().position(|x| !x.is_finite()).unwrap_or(0)))
}

/// max |x| of finite values; 0 for none.
#[inline(always)]
pub fn abs_max(x: &[f32]) -> f32 {
    f32::from_bits(abs_max_bits(x))
}

/// The first of the values of greatest magnitude, with its sign; +0 if all are zeros.
#[inline(always)]
pub fn signed_abs_max(x: &[f32]) -> f32 {
    let magnitude = abs_max(x);
    if magnitude == 0.0 {
        return 0.0;
    }
    x.iter().copied().find(|x| x.abs() == magnitude).unwrap_or(0.0)
}

/// Values that [`abs_mean`] sums together.
const ABS_MEAN_CHUNK: usize = 4096;

/// mean |x|, rounded to f32; 0 for none. The order of the sum is part of the definition, so that every device gets
/// the same bits: chunks of 4096 values, each as sixteen interleaved sums in f64 that are then added in order, and
/// the chunks' sums added in order. Chunks can thus be summed side by side.
#[inline(always)]
pub fn abs_mean(x: &[f32]) -> f32 {
    if x.is_empty() {
        return 0.0;
    }
    let sum = x.chunks(ABS_MEAN_CHUNK).fold(0.0, |sum, chunk| sum + abs_sum(chunk));
    (sum / x.len() as f64) as f32
}

/// The sum of |x| over one chunk.
#[inline(always)]
fn abs_sum(x: &[f32]) -> f64 {
    let mut sums = [0f64; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(x.abs());
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += f64::from(x.abs());
    }
    sums.into_iter().fold(0.0, |sum, part| sum + part)
}

/// To the nearest integer, ties toward zero.
#[inline(always)]
pub fn round_half_toward_zero(x: f32) -> f32 {
    let whole = x.trunc();
    if (x - whole).abs() > 0.5 { whole + 1f32.copysign(x) } else { whole }
}

/// -1, 0 or 1; 0 where |x| is below `threshold`.
#[inline(always)]
pub fn sign(x: f32, threshold: f64) -> f32 {
    if f64::from(x.abs()) < threshold { 0.0 } else { 1f32.copysign(x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e8m0_is_a_power_of_two() {
        for e in 0..=255u8 {
            assert_eq!(f64::from(e8m0_half_to_f32(e)), 2f64.powi(i32::from(e) - 128), "e = {e}");
        }
    }

    #[test]
    fn ue4m3_follows_its_definition() {
        for bits in 0..=255u8 {
            let (e, m) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
            let expected = match bits & 0x7f {
                0 | 0x7f => 0.0,
                _ if e == 0 => m * 2f64.powi(-9) * 0.5,
                _ => (1.0 + m / 8.0) * 2f64.powi(e - 7) * 0.5,
            };
            assert_eq!(f64::from(ue4m3_half_to_f32(bits)), expected, "bits = {bits:#x}");
        }
    }

    #[test]
    fn ties_go_toward_zero() {
        let cases = [(0.5, 0.0), (-0.5, -0.0), (1.5, 1.0), (0.500_000_06, 1.0), (-0.75, -1.0), (2.0, 2.0)];
        for (x, expected) in cases {
            assert_eq!(round_half_toward_zero(x), expected, "x = {x}");
        }
    }

    #[test]
    fn the_first_of_equal_magnitudes_wins() {
        assert_eq!(signed_abs_max(&[1.0, -2.0, 2.0]), -2.0);
        assert!(signed_abs_max(&[-0.0, -0.0]).is_sign_positive());
    }

    #[test]
    fn non_finite_values_are_found() {
        let mut x = [0.5f32; 40];
        assert_eq!(check_finite(&x), Ok(()));
        x[37] = f32::NAN;
        assert_eq!(check_finite(&x), Err(Fault::NonFinite(37)));
        x[3] = f32::NEG_INFINITY;
        assert_eq!(check_finite(&x), Err(Fault::NonFinite(3)));
    }
}
