//! The primitives of the matrix unit against sums one by one; skipped where the processor lacks it.

use super::*;
use crate::CpuProfile;
use crate::simd::avx512::factor;
use crate::vocab::Feature;
use std::arch::x86_64::{_mm512_loadu_si512, _mm512_storeu_si512};

fn here() -> bool {
    let features = CpuProfile::detect().features;
    let all = [Feature::Avx512f, Feature::Avx512bw, Feature::AmxInt8].iter().all(|&f| features.has(f));
    if !all {
        eprintln!("skipped: this processor lacks AMX");
    }
    all
}

/// Bytes that look random and take both ends of their range.
fn bytes(count: usize, salt: u32) -> Vec<u8> {
    (0..count as u32)
        .map(|i| match i % 7 {
            0 => 255,
            1 => 128,
            _ => ((i + salt).wrapping_mul(2654435761) >> 13) as u8,
        })
        .collect()
}

/// Sums one by one, of operands as `value` takes them.
fn expected(
    x: &[i8],
    x_stride: usize,
    tokens: usize,
    w: &[u8],
    rows: usize,
    k: usize,
    value: fn(u8) -> i32,
) -> Vec<i32> {
    let mut all = Vec::new();
    for t in 0..tokens {
        for row in 0..rows {
            let products = (0..k)
                .map(|at| i32::from(x[t * x_stride + at]) * value(w[at / 4 * 32 * 4 + row * 4 + at % 4]));
            all.push(products.sum());
        }
    }
    all
}

/// One kind of products.
type Products = unsafe fn(Operands);
/// What a byte of operands stands for.
type Value = fn(u8) -> i32;

/// Whether sums of `tokens` tokens and `V` vectors of rows are the right ones, for tiles of every length.
fn check<const V: usize, const X: usize>(tokens: usize) {
    for (tile, tiles) in [(64, 1), (64, 5), (32, 3), (16, 2), (4, 9), (60, 2)] {
        let k = tile * tiles;
        // Exactly as long as it must be: what is read beyond the end is not ours.
        let x_stride = k + 12;
        let x: Vec<i8> = bytes((tokens - 1) * x_stride + k, 1).iter().map(|b| b.cast_signed()).collect();
        let w = bytes(k / 4 * 32 * 4, 2);
        let mut sums = vec![i32::MIN; 16 * X * TOKENS * V];
        let kinds: [(Products, Value); 2] =
            [(unsigned::<V, X>, |b| i32::from(b)), (signed::<V, X>, |b| i32::from(b.cast_signed()))];
        for (multiply, value) in kinds {
            // SAFETY: the processor has tiles, and the vectors are as long as it says.
            unsafe {
                let found = found();
                configure(tokens, tile, false);
                clear();
                for at in (0..k).step_by(tile) {
                    multiply(Operands {
                        x: x.as_ptr().add(at),
                        x_stride,
                        w: w.as_ptr().add(at * 32),
                        w_stride: 32 * 4,
                    });
                }
                store::<V, X>(sums.as_mut_ptr());
                give_back(&found);
            }
            let right = expected(&x, x_stride, tokens, &w, 16 * V, k, value);
            assert_eq!(sums[..right.len()], right[..], "{tokens} tokens, {tiles} tiles of {tile}, V = {V}");
        }
    }
}

/// Another library's tiles, of a shape that none of ours has, are as it left them after our products.
#[test]
fn tiles_are_given_back_as_they_were_found() {
    if !here() {
        return;
    }
    let mut theirs = Configuration { palette: 1, ..NONE };
    theirs.bytes_per_row[..8].copy_from_slice(&[64, 64, 32, 28, 24, 20, 16, 12]);
    theirs.rows[..8].copy_from_slice(&[3, 5, 7, 9, 11, 13, 15, 16]);
    for before in [NONE, theirs] {
        // SAFETY: the processor has tiles.
        unsafe {
            match before.palette {
                0 => asm!("tilerelease", options(nostack, nomem)),
                _ => asm!("ldtilecfg [{}]", in(reg) &raw const before, options(nostack, readonly)),
            }
            check::<2, 2>(32);
            assert!(peak(1, 1, 1) > 0);
            assert_eq!(found().0, before);
            give_back(&Found(NONE));
        }
    }
}

#[test]
fn sums_are_those_of_single_products() {
    if !here() {
        return;
    }
    for tokens in [1, 2, 15, 16] {
        check::<1, 1>(tokens);
        check::<2, 1>(tokens);
    }
    for tokens in [17, 31, 32] {
        check::<1, 2>(tokens);
        check::<2, 2>(tokens);
    }
}

#[test]
fn digits_are_products_of_sixteen_bits() {
    if !here() {
        return;
    }
    for (tokens, min, factors) in
        [(16, -32, [-128, 127]), (1, 0, [63, 1]), (5, -127, [-128, -1]), (16, 0, [0, 128 - 1])]
    {
        let x: Vec<i8> = bytes(tokens * K, 3).iter().map(|b| b.cast_signed()).collect();
        let codes: Vec<u8> = bytes(PLANE, 4).iter().map(|b| b & 0x7f).collect();
        let integer = |row: usize| factors[row % 2];
        let mut planes = vec![0u8; 2 * PLANE];
        // SAFETY: the processor has the instructions, and the vectors are as long as it says.
        let sums = unsafe {
            fill(
                &codes,
                &mut planes,
                |codes, integers| times_in_digits(codes, factor(integers), min),
                integer,
            );
            of_digits(&x, tokens, &planes, digits::<2>)
        };
        check_digits(&sums, 8, tokens, |t, row, k| {
            let value = i32::from(codes[k / 4 * 128 + row * 4 + k % 4]) + min;
            i32::from(x[t * K + k]) * value * integer(row)
        });
    }
}

#[test]
fn digits_of_integers_are_multiplied_apart() {
    if !here() {
        return;
    }
    // The largest values and integers of q4_k and q5_k.
    check_split::<2>(15);
    check_split::<3>(31);
}

fn check_split<const BITS: u32>(most: u8) {
    for tokens in [1, 7, 16] {
        let x: Vec<i8> = bytes(tokens * K, 5).iter().map(|b| b.cast_signed()).collect();
        let codes: Vec<u8> = bytes(PLANE, 6).iter().map(|b| b & most).collect();
        let integer = |row: usize| [63, 0, 47, 1, 16][row % 5];
        let mut planes = vec![0u8; 2 * PLANE];
        // SAFETY: the processor has the instructions, and the vectors are as long as it says.
        let sums = unsafe {
            let split = |codes, integers| times_split::<BITS>(codes, factor(integers));
            fill(&codes, &mut planes, split, integer);
            of_digits(&x, tokens, &planes, unsigned_digits::<2>)
        };
        check_digits(&sums, BITS, tokens, |t, row, k| {
            i32::from(x[t * K + k]) * i32::from(codes[k / 4 * 128 + row * 4 + k % 4]) * integer(row)
        });
    }
}

/// k of the tests of digits, and bytes of the operands of one digit.
const K: usize = 64;
const PLANE: usize = K / 4 * 32 * 4;

/// The sums of both digits of `planes` and `tokens` tokens.
unsafe fn of_digits(x: &[i8], tokens: usize, planes: &[u8], add: unsafe fn(Operands, usize)) -> Vec<i32> {
    let mut sums = vec![i32::MIN; 32 * TOKENS * 2];
    // SAFETY: the caller answers for the instructions; activations, operands and sums are as long as they have to be.
    unsafe {
        configure(tokens, K, true);
        clear();
        add(Operands { x: x.as_ptr(), x_stride: K, w: planes.as_ptr(), w_stride: 32 * 4 }, PLANE);
        store::<2, 2>(sums.as_mut_ptr());
        give_back(&Found(NONE));
    }
    sums
}

fn check_digits(sums: &[i32], bits: u32, tokens: usize, product: impl Fn(usize, usize, usize) -> i32) {
    for t in 0..tokens {
        for row in 0..32 {
            let right: i32 = (0..K).map(|k| product(t, row, k)).sum();
            let (low, high) = (sums[t * 32 + row], sums[16 * 32 + t * 32 + row]);
            assert_eq!(low + (high << bits), right, "token {t}, row {row}");
        }
    }
}

#[test]
fn pairs_are_multiplied_with_integers() {
    let features = CpuProfile::detect().features;
    if ![Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vnni].iter().all(|&f| features.has(f)) {
        eprintln!("skipped: this processor lacks AVX-512 VNNI");
        return;
    }
    check_pairs::<8>();
    check_pairs::<16>();
    // Eight and four more, and fewer than eight.
    check_pairs::<12>();
    check_pairs::<2>();
}

fn check_pairs<const RUNS: usize>() {
    let x_sums: [i32; RUNS] = std::array::from_fn(|run| [i32::from(i16::MIN), 32767, -1, 1250][run % 4]);
    let integer = |lane: usize, run: usize| (lane * 37 + run * 11) as i16 % 128 - 64;
    let mut two_by_two = [0i32; 8];
    let mut sums = [0i32; LANES];
    // SAFETY: the processor has the instructions, and the vectors are as long as they say.
    unsafe {
        pairs::<RUNS>(x_sums.as_ptr(), two_by_two.as_mut_ptr());
        let mut sum = _mm512_loadu_si512([7i32; LANES].as_ptr().cast());
        for pair in 0..RUNS / 2 {
            let integers: [i16; 2 * LANES] = std::array::from_fn(|at| integer(at / 2, 2 * pair + at % 2));
            let integers = _mm512_loadu_si512(integers.as_ptr().cast());
            sum = add_products(sum, integers, two_by_two.as_ptr().add(pair));
        }
        _mm512_storeu_si512(sums.as_mut_ptr().cast(), sum);
    }
    for (lane, sum) in sums.into_iter().enumerate() {
        let right: i32 = (0..RUNS).map(|run| i32::from(integer(lane, run)) * x_sums[run]).sum();
        assert_eq!(sum, 7 + right, "{RUNS} runs, row {lane}");
    }
    assert_eq!(two_by_two[RUNS / 2..], [0; 8][RUNS / 2..], "{RUNS} runs: no more is written");
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn fill(
    codes: &[u8],
    planes: &mut [u8],
    digits: impl Fn(I, I) -> (I, I),
    integer: impl Fn(usize) -> i32,
) {
    let (low, high) = planes.split_at_mut(codes.len());
    for (at, codes) in codes.chunks(64).enumerate() {
        let integers: [i32; 16] = std::array::from_fn(|lane| integer(at % 2 * 16 + lane));
        // SAFETY: of both arrays and of each chunk 64 bytes are touched.
        unsafe {
            let integers = _mm512_loadu_si512(integers.as_ptr().cast());
            let (l, h) = digits(_mm512_loadu_si512(codes.as_ptr().cast()), integers);
            _mm512_storeu_si512(low[at * 64..][..64].as_mut_ptr().cast(), l);
            _mm512_storeu_si512(high[at * 64..][..64].as_mut_ptr().cast(), h);
        }
    }
}
