//! Slices of f16 as f32.

use half::f16;

/// The values of `from` in `to`, as far as the shorter of both goes: exact, but for which of the NaNs one is.
///
/// It is here because `half` calls a function for every eight values.
pub fn widen_f16(from: &[f16], to: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            // SAFETY: the processor has the features.
            return unsafe { x86::avx512(from, to) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            // SAFETY: the processor has the features.
            return unsafe { x86::avx2(from, to) };
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        use crate::simd::neon::{LANES, load_f16, store_f32};
        // SAFETY: NEON is there on this architecture, and both arrays have as many values as a vector.
        by_lanes::<LANES>(from, to, |from, to| unsafe {
            store_f32(to.as_mut_ptr(), load_f16(from.as_ptr().cast()));
        });
    }
    #[cfg(not(target_arch = "aarch64"))]
    by_lanes::<1>(from, to, |[from], [to]| *to = from.to_f32());
}

/// `whole` for every `N` values, and the rest one by one.
#[inline(always)]
fn by_lanes<const N: usize>(from: &[f16], to: &mut [f32], whole: impl Fn(&[f16; N], &mut [f32; N])) {
    let len = from.len().min(to.len());
    let (from, from_rest) = from[..len].as_chunks::<N>();
    let (to, to_rest) = to[..len].as_chunks_mut::<N>();
    for (from, to) in from.iter().zip(to) {
        whole(from, to);
    }
    for (from, to) in from_rest.iter().zip(to_rest) {
        *to = from.to_f32();
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::by_lanes;
    use crate::simd::{avx2, avx512};
    use half::f16;

    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn avx512(from: &[f16], to: &mut [f32]) {
        // SAFETY: this function has the features, and both arrays have as many values as a vector.
        by_lanes::<{ avx512::LANES }>(from, to, |from, to| unsafe {
            avx512::store_f32(to.as_mut_ptr(), avx512::load_f16(from.as_ptr().cast()));
        });
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn avx2(from: &[f16], to: &mut [f32]) {
        // SAFETY: as above.
        by_lanes::<{ avx2::LANES }>(from, to, |from, to| unsafe {
            avx2::store_f32(to.as_mut_ptr(), avx2::load_f16(from.as_ptr().cast()));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every f16, by every width that this processor has, in slices of every length within two vectors.
    #[test]
    fn every_half_has_its_value() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        type Way = fn(&[f16], &mut [f32]);
        let plain: Way = |from, to| by_lanes::<1>(from, to, |[from], [to]| *to = from.to_f32());
        let ways: &[Way] = &[
            widen_f16,
            plain,
            #[cfg(target_arch = "x86_64")]
            |from, to| {
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                    // SAFETY: the processor has the features.
                    unsafe { x86::avx2(from, to) }
                } else {
                    widen_f16(from, to);
                }
            },
        ];
        for way in ways {
            let mut wide = vec![0.0f32; halves.len()];
            way(&halves, &mut wide);
            for (half, wide) in halves.iter().zip(&wide) {
                let expected = value(half.to_bits());
                let same = expected.to_bits() == wide.to_bits() || expected.is_nan() && wide.is_nan();
                assert!(same, "{:#06x}: {wide}, expected {expected}", half.to_bits());
            }
            for len in 0..=33 {
                for (from_len, to_len) in [(len, len), (len, len + 1), (len + 1, len)] {
                    let mut wide = vec![7.0f32; to_len];
                    way(&halves[0x3c00..][..from_len], &mut wide);
                    let written = wide.iter().take_while(|value| **value != 7.0).count();
                    assert_eq!(written, from_len.min(to_len));
                }
            }
        }
    }

    /// By the definition of binary16.
    fn value(bits: u16) -> f32 {
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 0x3ff));
        let magnitude = match exponent {
            0 => fraction * 2.0f32.powi(-24),
            31 if fraction == 0.0 => f32::INFINITY,
            31 => f32::NAN,
            _ => (1024.0 + fraction) * 2.0f32.powi(exponent - 25),
        };
        if bits >> 15 == 1 { -magnitude } else { magnitude }
    }
}
