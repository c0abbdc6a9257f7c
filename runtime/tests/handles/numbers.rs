//! Number formats and sums whose order is part of their definition, at their boundaries.

use gristmill_runtime::abi::Fault;
use gristmill_runtime::number::{
    abs_max, abs_mean, bf16_to_f32, check_finite, f16_to_f32, f32_to_bf16, f32_to_f16, finite_abs_max,
    offset, round_half_toward_zero, round_to_f16, signed_abs_max,
};

#[test]
fn halves_are_those_of_the_standard() {
    for (value, bits) in [
        (0.0, 0),
        (-0.0, 0x8000),
        (1.0, 0x3c00),
        (65504.0, 0x7bff),
        (65519.9, 0x7bff),
        (65520.0, 0x7c00),
        (6.103_515_6e-5, 0x0400),
        (5.960_464_5e-8, 0x0001),
        (2.980_232_2e-8, 0),
        (f32::NEG_INFINITY, 0xfc00),
    ] {
        assert_eq!(f32_to_f16(value), bits, "{value:e}");
        assert_eq!(round_to_f16(value).to_bits(), f16_to_f32(bits).to_bits(), "{value:e}");
    }
    assert_eq!(f16_to_f32(0x3555), 0.333_251_95);
    assert_eq!(f16_to_f32(0x03ff), 1023.0 / 16_777_216.0);
    for (value, bits) in [
        (0.0, 0),
        (1.0, 0x3f80),
        (-2.5, 0xc020),
        (f32::MAX, 0x7f80),
        // Halfway between two: to the even one.
        (f32::from_bits(0x3f80_8000), 0x3f80),
        (f32::from_bits(0x3f81_8000), 0x3f82),
        (f32::from_bits(0x3f80_8001), 0x3f81),
    ] {
        assert_eq!(f32_to_bf16(value), bits, "{value:e}");
    }
    for bits in [0u16, 1, 0x3f80, 0x8001, 0x7f80, 0xff7f] {
        assert_eq!(bf16_to_f32(bits).to_bits(), u32::from(bits) << 16);
    }
}

#[test]
fn a_fault_is_told_where_it_is_in_the_whole() {
    assert_eq!(offset(Fault::NonFinite(3), 40), Fault::NonFinite(43));
    assert_eq!(offset(Fault::InvalidCode(3), 40), Fault::InvalidCode(43));
    // Which block's scale it is does not depend on where its elements begin.
    assert_eq!(offset(Fault::ScaleOverflow(3), 40), Fault::ScaleOverflow(3));
}

#[test]
fn greatest_magnitudes() {
    assert_eq!(abs_max(&[]).to_bits(), 0);
    assert_eq!(abs_max(&[1.0, -3.0, 2.0]), 3.0);
    assert_eq!(finite_abs_max(&[]), Ok(0.0));
    assert_eq!(finite_abs_max(&[-f32::MAX, 1.0]), Ok(f32::MAX));
    for (bad, at) in [(f32::INFINITY, 1), (f32::NEG_INFINITY, 1), (f32::NAN, 1)] {
        assert_eq!(finite_abs_max(&[1.0, bad, bad]), Err(Fault::NonFinite(at)));
        assert_eq!(check_finite(&[1.0, bad]), Err(Fault::NonFinite(at)));
    }
    assert_eq!(check_finite(&[f32::MAX, f32::MIN]), Ok(()));
    assert_eq!(signed_abs_max(&[], 0.0).to_bits(), 0);
    assert_eq!(signed_abs_max(&[0.5, -4.0, 4.0, 1.0], 4.0), -4.0);
    assert_eq!(signed_abs_max(&[0.5, 1.0, 4.0, -4.0], 4.0), 4.0);
    assert_eq!(signed_abs_max(&[-0.5], 0.5), -0.5);
    assert_eq!(signed_abs_max(&[-0.0, 0.0], 0.0).to_bits(), 0);
}

/// The mean as its definition says it: chunks of 4096, sixteen sums each, added in order.
fn mean_by_definition(x: &[f32]) -> f32 {
    let mut total = 0.0f64;
    for chunk in x.chunks(4096) {
        let mut sums = [0.0f64; 16];
        for (i, value) in chunk.iter().enumerate() {
            sums[i % 16] += f64::from(value.abs());
        }
        total += sums.iter().fold(0.0, |sum, part| sum + part);
    }
    (total / x.len() as f64) as f32
}

#[test]
fn means_are_summed_in_the_stated_order() {
    assert_eq!(abs_mean(&[]).to_bits(), 0);
    assert_eq!(abs_mean(&[-3.0]), 3.0);
    assert_eq!(abs_mean(&[-3.0, 1.0, 2.0, -2.0]), 2.0);
    // Numbers of very different size, so that another order would show; lengths around a vector and around chunks.
    let value = |i: usize| (i as f32 * 0.37).sin() * 2f32.powi((i * 7 % 61) as i32 - 30);
    let values: Vec<f32> = (0..3 * 4096 + 40).map(value).collect();
    for len in [1, 2, 15, 16, 17, 33, 4095, 4096, 4097, 8191, 8192, 8193, 3 * 4096 + 40] {
        let x = &values[..len];
        assert_eq!(abs_mean(x).to_bits(), mean_by_definition(x).to_bits(), "{len} values");
    }
}

#[test]
fn ties_are_rounded_toward_zero() {
    for (x, expected) in [
        (0.5f32, 0.0f32),
        (0.500_000_1, 1.0),
        (1.5, 1.0),
        (2.499_999_8, 2.0),
        (2.500_000_2, 3.0),
        (-0.5, -0.0),
        (-1.5, -1.0),
        (-1.75, -2.0),
        (3.0, 3.0),
        (-7.0, -7.0),
    ] {
        assert_eq!(round_half_toward_zero(x).to_bits(), expected.to_bits(), "{x}");
    }
}
