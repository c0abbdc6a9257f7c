//! The Arm primitives against plain arithmetic, at the ends of the ranges that plans rely on.

use super::{neon, neondot, neoni8mm};
use std::arch::is_aarch64_feature_detected;

/// Bytes at both ends, around zero and mixed.
fn bytes() -> Vec<[u8; 16]> {
    let mut all = vec![[0; 16], [127; 16], [128; 16], [255; 16], [1; 16]];
    all.push(std::array::from_fn(|i| if i % 2 == 0 { 127 } else { 128 }));
    all.push(std::array::from_fn(|i| (i * 37 + 11) as u8));
    all.push(std::array::from_fn(|i| (255 - i * 13) as u8));
    all
}

fn vector(bytes: &[u8; 16]) -> neon::I {
    // SAFETY: sixteen bytes are readable behind the reference, and every aarch64 processor has NEON.
    unsafe { neon::load(bytes.as_ptr()) }
}

fn lanes(v: neon::I) -> [i32; 4] {
    // SAFETY: both are sixteen bytes of plain numbers.
    unsafe { std::mem::transmute(v) }
}

/// Four products a lane; `group` takes the activations of every lane from one place.
fn dot(sum: i32, a: &[u8; 16], x: &[u8; 16], signed: bool, group: Option<usize>) -> [i32; 4] {
    std::array::from_fn(|lane| {
        let products = (0..4).map(|j| {
            let a = a[4 * lane + j];
            let a = if signed { i32::from(a as i8) } else { i32::from(a) };
            a * i32::from(x[4 * group.unwrap_or(lane) + j] as i8)
        });
        sum + products.sum::<i32>()
    })
}

#[test]
fn products_in_sixteen_bits_are_exact_up_to_their_range() {
    for a in bytes() {
        for x in bytes() {
            let largest =
                a.iter().map(|&a| i32::from(a as i8)).flat_map(|a| [a * -128, a * 127]).map(i32::abs).max();
            // As often as a lane can take the largest product there could be with these operands.
            let times = (i32::from(i16::MAX) / largest.unwrap_or(0).max(1)).min(40);
            // SAFETY: every aarch64 processor has NEON.
            let found = unsafe {
                let mut sum = neon::zero_pairs();
                for _ in 0..times {
                    sum = neon::pairs(sum, vector(&a), vector(&x));
                }
                lanes(neon::widen(neon::splat(-9), sum))
            };
            let once = dot(0, &a, &x, true, None);
            assert_eq!(found, once.map(|sum| sum * times - 9), "{a:?} x {x:?}, {times} times");
        }
    }
}

#[test]
fn bytes_are_shifted_looked_up_and_made_signed_each_by_itself() {
    let table: [u8; 16] = std::array::from_fn(|i| (i * 17) as u8);
    for a in bytes() {
        let expected = |f: fn(u8) -> u8| lanes(vector(&a.map(f)));
        // SAFETY: every aarch64 processor has NEON.
        unsafe {
            assert_eq!(lanes(neon::shift::<4>(vector(&a))), expected(|a| a >> 4));
            assert_eq!(lanes(neon::signed(vector(&a))), expected(|a| a.wrapping_sub(128)));
            assert_eq!(lanes(neon::and(vector(&a), neon::bytes(0x0c))), expected(|a| a & 0x0c));
            let index = neon::and(vector(&a), neon::bytes(15));
            assert_eq!(lanes(neon::lookup(neon::table(&table), index)), expected(|a| (a & 15) * 17));
        }
    }
}

#[test]
fn integers_of_runs_are_multiplied_with_their_sums() {
    for a in bytes() {
        let signed = |i: usize| i32::from(a[i] as i8);
        for x in bytes() {
            let (sums, i16s) =
                (lanes(vector(&x)), x.chunks(2).map(|b| i32::from(i16::from_le_bytes([b[0], b[1]]))));
            let i16s: Vec<i32> = i16s.collect();
            // SAFETY: every aarch64 processor has NEON; the bytes read lie within the arrays.
            let (one, two) = unsafe {
                let sum = neon::splat(-3);
                let one = neon::add_product(sum, vector(&x), neon::integers(a.as_ptr().cast()));
                let two = neon::add_products(sum, vector(&x), neon::integer_pairs(a.as_ptr().cast()));
                (lanes(one), lanes(two))
            };
            let expected = std::array::from_fn(|i| sums[i].wrapping_mul(signed(i)).wrapping_sub(3));
            assert_eq!(one, expected, "{a:?} x {x:?}");
            let expected = std::array::from_fn(|i| {
                i16s[2 * i] * signed(2 * i) + i16s[2 * i + 1] * signed(2 * i + 1) - 3
            });
            assert_eq!(two, expected, "{a:?} x {x:?}");
        }
    }
}

#[test]
fn integers_of_two_rows_to_a_byte_come_apart() {
    for a in bytes() {
        // SAFETY: every aarch64 processor has NEON; the bytes read lie within the array.
        let (one, upper, two, flagged) = unsafe {
            let one = neon::unsigned_integers(a.as_ptr());
            let flags = neon::integers(a.as_ptr().cast());
            (
                lanes(one),
                lanes(neon::shift_by(one, 4)),
                lanes(neon::unsigned_pairs(a.as_ptr())),
                lanes(neon::flagged(flags, neon::splat(4), neon::bytes(9))),
            )
        };
        assert_eq!(one, std::array::from_fn(|i| i32::from(a[i])));
        assert_eq!(upper, std::array::from_fn(|i| i32::from(a[i] >> 4)));
        assert_eq!(two, std::array::from_fn(|i| i32::from(a[2 * i]) | i32::from(a[2 * i + 1]) << 16));
        assert_eq!(flagged, std::array::from_fn(|i| if a[i] & 4 == 0 { 0 } else { 0x0909_0909 }));
    }
}

#[test]
fn dots_are_exact_for_all_operands() {
    let (dotprod, i8mm) = (is_aarch64_feature_detected!("dotprod"), is_aarch64_feature_detected!("i8mm"));
    for a in bytes() {
        for x in bytes() {
            let (va, vx) = (vector(&a), vector(&x));
            if dotprod {
                // SAFETY: the processor was asked.
                unsafe {
                    let sum = neon::splat(7);
                    assert_eq!(lanes(neondot::dot(sum, va, vx)), dot(7, &a, &x, true, None));
                    assert_eq!(lanes(neondot::dot_group::<0>(sum, va, vx)), dot(7, &a, &x, true, Some(0)));
                    assert_eq!(lanes(neondot::dot_group::<3>(sum, va, vx)), dot(7, &a, &x, true, Some(3)));
                }
            }
            if i8mm {
                // SAFETY: the processor was asked.
                unsafe {
                    let sum = neon::splat(7);
                    assert_eq!(lanes(neoni8mm::dot(sum, va, vx)), dot(7, &a, &x, false, None));
                    assert_eq!(lanes(neoni8mm::dot_group::<1>(sum, va, vx)), dot(7, &a, &x, false, Some(1)));
                    assert_eq!(lanes(neoni8mm::dot_group::<2>(sum, va, vx)), dot(7, &a, &x, false, Some(2)));
                }
            }
        }
    }
    let ran = usize::from(dotprod) + usize::from(i8mm);
    println!("ran {ran} of 2; skipped {}: this processor lacks dotprod or i8mm", 2 - ran);
}

#[test]
fn matrix_products_are_exact_for_all_operands() {
    if !is_aarch64_feature_detected!("i8mm") {
        println!("ran 0 of 1; skipped 1: this processor lacks i8mm");
        return;
    }
    for a in bytes() {
        for x in bytes() {
            // SAFETY: the processor was asked.
            let found = unsafe { lanes(neoni8mm::matrix(neon::splat(-5), vector(&a), vector(&x))) };
            let expected: [i32; 4] = std::array::from_fn(|lane| {
                let (row, token) = (lane / 2, lane % 2);
                let products = (0..8).map(|k| i32::from(a[8 * row + k]) * i32::from(x[8 * token + k] as i8));
                products.sum::<i32>() - 5
            });
            assert_eq!(found, expected, "{a:?} x {x:?}");
        }
    }
    let (a, b) = (vector(&std::array::from_fn(|i| i as u8)), vector(&std::array::from_fn(|i| 16 + i as u8)));
    // Lanes 0 to 3 are those of the first vector, 4 to 7 those of the second.
    let order = |v: neon::I| lanes(v).map(|lane| lane.to_le_bytes()[0] / 4);
    // SAFETY: the processor was asked.
    unsafe {
        assert_eq!(order(neoni8mm::in_turn::<0>(a, b)), [0, 4, 1, 5]);
        assert_eq!(order(neoni8mm::in_turn::<1>(a, b)), [2, 6, 3, 7]);
        assert_eq!(order(neoni8mm::halves::<0>(a, b)), [0, 1, 4, 5]);
        assert_eq!(order(neoni8mm::halves::<1>(a, b)), [2, 3, 6, 7]);
        assert_eq!(order(neoni8mm::every_second::<0>(a, b)), [0, 2, 4, 6]);
        assert_eq!(order(neoni8mm::every_second::<1>(a, b)), [1, 3, 5, 7]);
    }
}

#[test]
fn activations_are_read_from_any_address_and_no_further() {
    let bytes: [i8; 17] = std::array::from_fn(|i| i as i8 - 8);
    // SAFETY: the bytes read lie within the array, and every aarch64 processor has NEON.
    unsafe {
        let sixteen = lanes(neon::activations::<16>(bytes.as_ptr().add(1)));
        assert_eq!(sixteen[0].to_le_bytes().map(|b| b as i8), [-7, -6, -5, -4]);
        assert_eq!(sixteen[3].to_le_bytes().map(|b| b as i8), [5, 6, 7, 8]);
        // The last eight bytes of the array.
        let eight = lanes(neon::activations::<8>(bytes.as_ptr().add(9)));
        assert_eq!(eight[1].to_le_bytes().map(|b| b as i8), [5, 6, 7, 8]);
        let four = lanes(neon::broadcast(bytes.as_ptr().add(13)));
        assert_eq!(four[2].to_le_bytes().map(|b| b as i8), [5, 6, 7, 8]);
    }
}
