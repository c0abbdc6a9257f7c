//! Loads that widen, and what puts planes of codes together, against plain arithmetic: every number of every type, on every
//! ISA that this processor has.

use crate::number;

/// Compares lanes with `expected`. What NaN carries is not compared.
fn same(what: &str, lanes: &[f32], expected: impl Iterator<Item = f32>) {
    for (lane, (found, expected)) in lanes.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
        assert!(same, "{what}, lane {lane}: {found:e} instead of {expected:e}");
    }
}

/// 2^exponent, by its bits.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// Half of OCP E8M0.
fn e8m0_half(e: u8) -> f32 {
    power_of_two(i32::from(e) - 128) as f32
}

/// Half of an e4m3 number without a sign.
fn ue4m3_half(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3), f64::from(bits & 7));
    let number = match exponent {
        0 => mantissa * power_of_two(-10),
        _ => (8.0 + mantissa) * power_of_two(exponent - 11),
    };
    number as f32
}

/// Takes every number through the four loads of a module.
macro_rules! check {
    ($module:ident, $($feature:tt),+) => {{
        use super::$module as simd;
        let name = stringify!($module);
        let present = true $(&& detected!($feature))+;
        if present {
            let halves: Vec<u16> = (0..=u16::MAX).collect();
            for group in halves.chunks_exact(simd::LANES) {
                let mut lanes = [0f32; simd::LANES];
                // SAFETY: the features were detected; a group and `lanes` are as long as a vector.
                unsafe { simd::store_f32(lanes.as_mut_ptr(), simd::load_f16(group.as_ptr())) };
                same(name, &lanes, group.iter().map(|&bits| number::f16_to_f32(bits)));
                // SAFETY: as above.
                unsafe { simd::store_f32(lanes.as_mut_ptr(), simd::load_bf16(group.as_ptr())) };
                same(name, &lanes, group.iter().map(|&bits| number::bf16_to_f32(bits)));
            }
            let bytes: Vec<u8> = (0..=u8::MAX).collect();
            for group in bytes.chunks_exact(simd::LANES) {
                let mut lanes = [0f32; simd::LANES];
                // SAFETY: as above.
                unsafe { simd::store_f32(lanes.as_mut_ptr(), simd::load_e8m0_half(group.as_ptr())) };
                same(name, &lanes, group.iter().map(|&e| e8m0_half(e)));
            }
            // As packed: bit 7 is cleared, and 0x7f is 0.
            let bytes: Vec<u8> = (0..0x80).map(|bits| if bits == 0x7f { 0 } else { bits }).collect();
            for group in bytes.chunks_exact(simd::LANES) {
                let mut lanes = [0f32; simd::LANES];
                // SAFETY: as above.
                unsafe { simd::store_f32(lanes.as_mut_ptr(), simd::load_ue4m3_half(group.as_ptr())) };
                same(name, &lanes, group.iter().map(|&bits| ue4m3_half(bits)));
            }
        }
    }};
}

/// Takes every pair of bytes through `nibbles`, and bytes through the shifts of planes.
macro_rules! check_planes {
    ($module:ident, $($feature:tt),+) => {{
        use super::$module as simd;
        let name = stringify!($module);
        let present = true $(&& detected!($feature))+;
        if present {
            // What a store of floats puts into memory are the bits of a vector.
            let bytes_of = |vector: simd::I| -> Vec<u8> {
                let mut lanes = [0f32; simd::LANES];
                // SAFETY: the features were detected; `lanes` is as long as a vector.
                unsafe { simd::store_f32(lanes.as_mut_ptr(), simd::as_f32(vector)) };
                lanes.iter().flat_map(|lane| lane.to_bits().to_le_bytes()).collect()
            };
            let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            for group in halves.chunks_exact(2 * simd::LANES) {
                // SAFETY: as above; a group is as long as half a vector.
                let found = bytes_of(unsafe { simd::and(simd::nibbles(group.as_ptr()), simd::bytes(0xf)) });
                let expected: Vec<u8> = group
                    .chunks_exact(2)
                    .flat_map(|two| [two[0] & 15, two[1] & 15, two[0] >> 4, two[1] >> 4])
                    .collect();
                assert_eq!(found, expected, "{name}: nibbles of {group:?}");
            }
            let bytes: Vec<u8> = (0..4 * simd::LANES).map(|i| (i * 89 + 45) as u8).collect();
            // SAFETY: as above; `bytes` is as long as a vector.
            let (left, both) = unsafe {
                let vector = simd::load(bytes.as_ptr());
                let left = simd::and(simd::shift_left::<3>(vector), simd::bytes(0x18));
                (bytes_of(left), bytes_of(simd::or(vector, simd::bytes(0x41))))
            };
            assert_eq!(left, bytes.iter().map(|byte| byte << 3 & 0x18).collect::<Vec<u8>>(), "{name}");
            assert_eq!(both, bytes.iter().map(|byte| byte | 0x41).collect::<Vec<u8>>(), "{name}");
        }
    }};
}

#[cfg(target_arch = "x86_64")]
macro_rules! detected {
    ($feature:tt) => {
        std::arch::is_x86_feature_detected!($feature)
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! detected {
    ($feature:tt) => {
        std::arch::is_aarch64_feature_detected!($feature)
    };
}

#[test]
#[cfg(target_arch = "x86_64")]
fn every_number_is_widened_as_plain_arithmetic_does() {
    check!(sse41, "ssse3", "sse4.1");
    check!(avx2, "avx2", "f16c");
    check!(avx512, "avx512f", "avx512bw");
}

/// Integers as the halves of lanes, by what a multiplication of pairs makes of them.
#[test]
#[cfg(target_arch = "x86_64")]
fn integers_of_two_runs_share_a_lane() {
    macro_rules! check_both {
        ($module:ident, $($feature:tt),+) => {{
            use super::$module as simd;
            let present = true $(&& detected!($feature))+;
            for (first, second) in [(-128, 127), (127, -128), (0, -1), (-1, 0), (63, -32)] {
                if present {
                    let mut lanes = [[0f32; simd::LANES]; 2];
                    // SAFETY: the features were detected; `lanes` are as long as vectors.
                    unsafe {
                        let (first, second) = (simd::splat(first), simd::splat(second));
                        let pairs = simd::splat(3 | 5 << 16);
                        let products = [simd::both(first, second), simd::factor(first)]
                            .map(|integers| simd::to_f32(simd::add_products(simd::zero(), pairs, integers)));
                        for (lanes, products) in lanes.iter_mut().zip(products) {
                            simd::store_f32(lanes.as_mut_ptr(), products);
                        }
                    }
                    assert_eq!(lanes[0], [(3 * first + 5 * second) as f32; simd::LANES]);
                    assert_eq!(lanes[1], [(8 * first) as f32; simd::LANES]);
                }
            }
        }};
    }
    check_both!(avx2, "avx2");
    check_both!(avx512, "avx512f", "avx512bw");
}

/// Every product of signed bytes but those with an operand of -128, and two of the largest beside each other.
#[test]
#[cfg(target_arch = "x86_64")]
fn operands_take_the_signs_of_activations() {
    use super::avx2 as simd;
    if !(detected!("avx2") && detected!("f16c")) {
        return;
    }
    for a in -127..=127i32 {
        for b in -128..=127i32 {
            let mut lanes = [0f32; simd::LANES];
            // SAFETY: the features were detected; `lanes` is as long as a vector.
            unsafe {
                let differences = simd::bytes((a + 127) as u8);
                let a = simd::values(differences, -127);
                let pairs = simd::signed_pairs(simd::zero_pairs(), a, simd::bytes(b as u8));
                simd::store_f32(lanes.as_mut_ptr(), simd::to_f32(simd::widen(simd::zero(), pairs)));
            }
            assert_eq!(lanes, [(4 * a * b) as f32; simd::LANES], "{a} * {b}");
        }
    }
}

/// Both halves of every activation, and that products with the largest bytes fit where `pairs` adds up those of a run.
#[test]
#[cfg(target_arch = "x86_64")]
fn activations_are_split_without_loss() {
    use super::avx2 as simd;
    if !(detected!("avx2") && detected!("f16c")) {
        return;
    }
    let activations: Vec<i8> = (i8::MIN..=i8::MAX).collect();
    for group in activations.chunks_exact(32) {
        // SAFETY: the features were detected; a group is as long as a vector.
        let [lower, upper] = unsafe { simd::split(group.as_ptr()) };
        for (i, &x) in group.iter().enumerate() {
            let (lower, upper) = (i32::from(lower[i]), i32::from(upper[i]));
            assert_eq!(16 * upper + lower, i32::from(x));
            assert!(lower.abs().max(upper.abs()) <= 8, "{x} = 16 * {upper} + {lower}");
        }
    }
    for x in [-128i8, 127] {
        let run = [x; 32];
        let mut lanes = [0f32; simd::LANES];
        // SAFETY: as above; `lanes` is as long as a vector.
        unsafe {
            let [lower, upper] = simd::split(run.as_ptr());
            let mut sums = [simd::zero_pairs(); 2];
            for _ in 0..8 {
                for (sum, half) in sums.iter_mut().zip([&lower, &upper]) {
                    *sum = simd::pairs(*sum, simd::bytes(255), simd::broadcast(half.as_ptr()));
                }
            }
            let sum = simd::widen(simd::widen_upper(simd::zero(), sums[1]), sums[0]);
            simd::store_f32(lanes.as_mut_ptr(), simd::to_f32(sum));
        }
        assert_eq!(lanes, [(32 * 255 * i32::from(x)) as f32; simd::LANES]);
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn planes_are_put_together_as_plain_arithmetic_does() {
    check_planes!(sse41, "ssse3", "sse4.1");
    check_planes!(avx2, "avx2", "f16c");
    check_planes!(avx512, "avx512f", "avx512bw");
}

#[test]
#[cfg(target_arch = "aarch64")]
fn planes_are_put_together_as_plain_arithmetic_does() {
    check_planes!(neon, "neon");
}

#[test]
#[cfg(target_arch = "aarch64")]
fn every_number_is_widened_as_plain_arithmetic_does() {
    check!(neon, "neon");
}
