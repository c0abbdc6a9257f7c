//! Number formats and the arithmetic of quantizers, shared by all generated code.
//!
//! Everything is inlined into its caller, so that it is compiled with the caller's CPU features, and
//! everything gives the same bits whatever those features are. Loops go over indices: what adapters of
//! iterators are made of is compiled apart and called, without the caller's features, where link-time
//! optimization is off.

#![allow(clippy::needless_range_loop, reason = "adapters of iterators are not inlined everywhere, see above")]

use crate::abi::Fault;
use core::mem::MaybeUninit;
use gristmill_spec::vocab::DType;
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

/// The nearest number that binary16 holds, ties to even; overflow gives an infinity. The same as there and back
/// again, without the calls that the conversions are. NaN becomes an infinity.
#[inline(always)]
pub fn round_to_f16(value: f32) -> f32 {
    let bits = value.to_bits() & MAGNITUDE;
    let magnitude = f32::from_bits(bits);
    // Below the smallest normal number all steps are 2^-24, as those of f32 are between a half and one.
    let small = (magnitude + 0.5) - 0.5;
    let rounded = bits.saturating_add(0xfff + (bits >> 13 & 1)) & !0x1fff;
    let normal = if rounded < 0x4780_0000 { f32::from_bits(rounded) } else { f32::INFINITY };
    (if bits < 0x3880_0000 { small } else { normal }).copysign(value)
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

/// Values rounded to nearest even to the bits of f16 (`to` is that) or bf16, each with the result of [`f32_to_f16`] or
/// [`f32_to_bf16`], but in a form that vectorizes.
///
/// # Safety
///
/// `dst` has room for as many.
#[inline(always)]
pub unsafe fn narrow(values: &[f32], dst: *mut u16, to: DType) {
    // SAFETY: the caller answers for the room.
    let dst = unsafe { core::slice::from_raw_parts_mut(dst.cast::<MaybeUninit<u16>>(), values.len()) };
    if let DType::F16 = to {
        for i in 0..values.len() {
            dst[i] = MaybeUninit::new(narrow_to_f16(values[i]));
        }
    } else {
        for i in 0..values.len() {
            dst[i] = MaybeUninit::new(narrow_to_bf16(values[i]));
        }
    }
}

#[inline(always)]
fn narrow_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & MAGNITUDE;
    // The last bit of numbers from 0.5 up to 1 is worth what the last bit of a subnormal f16 is.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let rounded = magnitude.wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    let normal = rounded.wrapping_sub((127 - 15) << 10).min(0x7c00);
    let number = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    let made = if magnitude > 0x7f80_0000 { nan } else { number };
    (bits >> 16 & 0x8000 | made) as u16
}

#[inline(always)]
fn narrow_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let made = if bits & MAGNITUDE > 0x7f80_0000 { bits | 0x40_0000 } else { rounded };
    (made >> 16) as u16
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

/// Bits of a number but for its sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// Bits of the largest |x|. The order of unsigned integers is the order of magnitudes, NaN on top, so
/// this needs no floating-point comparison and vectorizes in any order.
#[inline(always)]
fn abs_max_bits(x: &[f32]) -> u32 {
    let mut worst = 0;
    for x in x {
        worst = worst.max(x.to_bits() & MAGNITUDE);
    }
    worst
}

/// max |x|, 0 for none; refuses NaN and infinities, with the position of the first.
#[inline(always)]
pub fn finite_abs_max(x: &[f32]) -> Result<f32, Fault> {
    let worst = abs_max_bits(x);
    if worst < 0x7f80_0000 { Ok(f32::from_bits(worst)) } else { Err(first_non_finite(x)) }
}

#[cold]
#[inline(never)]
fn first_non_finite(x: &[f32]) -> Fault {
    Fault::NonFinite(x.iter().position(|x| !x.is_finite()).unwrap_or(0))
}

/// Refuses NaN and infinities, with the position of the first.
#[inline(always)]
pub fn check_finite(x: &[f32]) -> Result<(), Fault> {
    match finite_abs_max(x) {
        Ok(_) => Ok(()),
        Err(fault) => Err(fault),
    }
}

/// max |x| of finite values; 0 for none.
#[inline(always)]
pub fn abs_max(x: &[f32]) -> f32 {
    f32::from_bits(abs_max_bits(x))
}

/// The first of the values of greatest magnitude, with its sign; +0 if all are zeros. `magnitude` is [`abs_max`]
/// of the same values.
#[inline(always)]
pub fn signed_abs_max(x: &[f32], magnitude: f32) -> f32 {
    if magnitude == 0.0 {
        return 0.0;
    }
    // Positions in a chunk are below 2^32 - 1, which stands for none.
    for chunk in x.chunks(u32::MAX as usize) {
        // The smallest position: that vectorizes, and a search does not.
        let mut first = u32::MAX;
        for i in 0..chunk.len() {
            let same = chunk[i].to_bits() & MAGNITUDE == magnitude.to_bits();
            first = first.min(if same { i as u32 } else { u32::MAX });
        }
        if let Some(value) = chunk.get(first as usize) {
            return if value.is_sign_negative() { -magnitude } else { magnitude };
        }
    }
    magnitude
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
    let mut sum = 0.0;
    let mut first = 0;
    while first < x.len() {
        sum += abs_sum(&x[first..x.len().min(first + ABS_MEAN_CHUNK)]);
        first += ABS_MEAN_CHUNK;
    }
    (sum / x.len() as f64) as f32
}

/// The sum of |x| over one chunk.
#[inline(always)]
fn abs_sum(x: &[f32]) -> f64 {
    let mut sums = [0f64; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for i in 0..16 {
            sums[i] += f64::from(chunk[i].abs());
        }
    }
    for i in 0..rest.len() {
        sums[i] += f64::from(rest[i].abs());
    }
    let mut sum = 0.0;
    for part in sums {
        sum += part;
    }
    sum
}

/// To the nearest integer, ties toward zero.
#[inline(always)]
pub fn round_half_toward_zero(x: f32) -> f32 {
    let whole = x.trunc();
    if (x - whole).abs() > 0.5 { whole + 1f32.copysign(x) } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every f16, what lies in the middle between neighbours, and one bit to both sides of each; NaN of all kinds.
    #[test]
    fn narrowing_is_rounding_to_nearest_even() {
        let mut values = Vec::new();
        // Few where a test is interpreted.
        for bits in (0..=0x7c00u16).step_by(if cfg!(miri) { 257 } else { 1 }) {
            let here = f16::from_bits(bits).to_f32();
            let next = f16::from_bits((bits + 1).min(0x7bff)).to_f32();
            let middle = here / 2.0 + next / 2.0;
            for value in [here, middle] {
                let around = [value.to_bits().saturating_sub(1), value.to_bits(), value.to_bits() + 1];
                values.extend(around.map(f32::from_bits));
            }
        }
        // The borders of bf16, subnormal f32, the largest of all, infinities and NaN.
        for high in (0..=0x7fffu32).step_by(if cfg!(miri) { 501 } else { 7 }) {
            values.extend([0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| f32::from_bits(high << 16 | low)));
        }
        let both: Vec<f32> = values.iter().flat_map(|x| [*x, -*x]).collect();
        let mut found = vec![0u16; both.len()];
        // SAFETY: there is room for as many.
        unsafe { narrow(&both, found.as_mut_ptr(), DType::F16) };
        for (x, found) in both.iter().zip(&found) {
            assert_eq!(*found, f16::from_f32_const(*x).to_bits(), "{x:e} ({:#x})", x.to_bits());
        }
        // SAFETY: as above.
        unsafe { narrow(&both, found.as_mut_ptr(), DType::Bf16) };
        for (x, found) in both.iter().zip(&found) {
            assert_eq!(*found, bf16::from_f32_const(*x).to_bits(), "{x:e} ({:#x})", x.to_bits());
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
        assert_eq!(signed_abs_max(&[1.0, -2.0, 2.0], 2.0), -2.0);
        assert_eq!(signed_abs_max(&[1.0, 2.0, -2.0], 2.0), 2.0);
        assert!(signed_abs_max(&[-0.0, -0.0], 0.0).is_sign_positive());
    }

    /// Around every number of binary16, and around every middle of two.
    #[test]
    fn rounding_to_binary16_is_a_conversion_there_and_back() {
        // Miri takes a minute for a thousand; 0x7bff is the largest one.
        for bits in (0..0x7c00u16).rev().step_by(if cfg!(miri) { 331 } else { 1 }) {
            let (low, high) = (f16_to_f32(bits), f16_to_f32(bits + 1));
            let middle = if high.is_finite() { (low + high) / 2.0 } else { 65520.0 };
            for near in [low, middle] {
                for bits in near.to_bits().saturating_sub(2)..near.to_bits() + 3 {
                    for value in [f32::from_bits(bits), -f32::from_bits(bits)] {
                        let expected = f16_to_f32(f32_to_f16(value));
                        assert_eq!(round_to_f16(value).to_bits(), expected.to_bits(), "{value:e}");
                    }
                }
            }
        }
        assert_eq!(round_to_f16(f32::MAX), f32::INFINITY);
        assert_eq!(round_to_f16(f32::INFINITY), f32::INFINITY);
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
