//! 256-bit x86 without dot products.

use std::arch::x86_64::*;

/// Integer vector.
pub type I = __m256i;
/// Sums of [`pairs`].
pub type P = I;
/// Sums of bytes as i16: as many as a vector has bytes.
pub type W = (I, I);
/// Float vector.
pub type F = __m256;
/// 32-bit lanes of a vector.
pub const LANES: usize = 8;

/// Loads a vector from any address.
///
/// # Safety
///
/// A vector's worth of bytes is readable at `p`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn load(p: *const u8) -> I {
    // SAFETY: the caller answers for the bytes; the load takes any alignment.
    unsafe { _mm256_loadu_si256(p.cast()) }
}

/// Four neighbouring bytes in every lane.
///
/// # Safety
///
/// Four bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn broadcast(p: *const i8) -> I {
    // SAFETY: the caller answers for four bytes.
    _mm256_set1_epi32(unsafe { p.cast::<i32>().read_unaligned() })
}

/// Asks for the line at `p`, which is soon read; any address may be asked for.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(unused_unsafe, reason = "unsafe in older Rust")]
pub fn prefetch(p: *const u8) {
    // SAFETY: a prefetch touches no memory that the program could notice, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
}

/// All zeros.
#[inline]
#[target_feature(enable = "avx2")]
pub fn zero() -> I {
    _mm256_setzero_si256()
}

/// The same byte everywhere.
#[inline]
#[target_feature(enable = "avx2")]
pub fn bytes(value: u8) -> I {
    _mm256_set1_epi8(value as i8)
}

/// The same i32 in every lane.
#[inline]
#[target_feature(enable = "avx2")]
pub fn splat(value: i32) -> I {
    _mm256_set1_epi32(value)
}

/// Bitwise and.
#[inline]
#[target_feature(enable = "avx2")]
pub fn and(a: I, b: I) -> I {
    _mm256_and_si256(a, b)
}

/// Bitwise or.
#[inline]
#[target_feature(enable = "avx2")]
pub fn or(a: I, b: I) -> I {
    _mm256_or_si256(a, b)
}

/// Every byte moved right by `SHIFT` bits, with bits of its neighbour shifted in: to be masked.
#[inline]
#[target_feature(enable = "avx2")]
pub fn shift<const SHIFT: i32>(a: I) -> I {
    _mm256_srli_epi16::<SHIFT>(a)
}

/// Every byte moved left by `SHIFT` bits, with bits of its neighbour shifted in: to be masked.
#[inline]
#[target_feature(enable = "avx2")]
pub fn shift_left<const SHIFT: i32>(a: I) -> I {
    _mm256_slli_epi16::<SHIFT>(a)
}

/// Two neighbouring bytes to every lane, a nibble to each of its bytes: the low ones to the first two, the high ones to the
/// others. What stands above the nibbles is to be masked.
///
/// # Safety
///
/// Twice [`LANES`] bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn nibbles(p: *const u8) -> I {
    // SAFETY: the caller answers for the bytes; the load takes any alignment.
    let two = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(p.cast()) });
    or(two, _mm256_slli_epi32::<12>(two))
}

/// Arithmetic shift of every lane.
#[inline]
#[target_feature(enable = "avx2")]
pub fn shift_lanes<const SHIFT: i32>(a: I) -> I {
    _mm256_srai_epi32::<SHIFT>(a)
}

/// Sum of lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub fn add(a: I, b: I) -> I {
    _mm256_add_epi32(a, b)
}

/// Difference of lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub fn sub(a: I, b: I) -> I {
    _mm256_sub_epi32(a, b)
}

/// One byte to every lane, sign-extended.
///
/// # Safety
///
/// [`LANES`] bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn integers(p: *const i8) -> I {
    // SAFETY: the caller answers for the bytes; the load takes any alignment.
    _mm256_cvtepi8_epi32(unsafe { _mm_loadl_epi64(p.cast()) })
}

/// Two neighbouring bytes to the i16 halves of every lane, sign-extended.
///
/// # Safety
///
/// Twice [`LANES`] bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn integer_pairs(p: *const i8) -> I {
    // SAFETY: the caller answers for the bytes; the load takes any alignment.
    _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(p.cast()) })
}

/// One byte to every lane, zero-extended.
///
/// # Safety
///
/// [`LANES`] bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn unsigned_integers(p: *const u8) -> I {
    // SAFETY: the caller answers for the bytes; the load takes any alignment.
    _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(p.cast()) })
}

/// Two neighbouring bytes to the i16 halves of every lane, zero-extended.
///
/// # Safety
///
/// Twice [`LANES`] bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn unsigned_pairs(p: *const u8) -> I {
    // SAFETY: the caller answers for the bytes; the load takes any alignment.
    _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(p.cast()) })
}

/// Logical shift of every lane to the right, by less than 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub fn shift_by(a: I, count: i32) -> I {
    _mm256_srl_epi32(a, _mm_cvtsi32_si128(count))
}

/// `value` in the lanes in which `flags` has a bit of `bit`, and zero in the others.
#[inline]
#[target_feature(enable = "avx2")]
pub fn flagged(flags: I, bit: I, value: I) -> I {
    _mm256_andnot_si256(_mm256_cmpeq_epi32(and(flags, bit), _mm256_setzero_si256()), value)
}

/// Adds the product of lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub fn add_product(sum: I, a: I, b: I) -> I {
    _mm256_add_epi32(sum, _mm256_mullo_epi32(a, b))
}

/// Adds the products of both i16 halves of lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub fn add_products(sum: I, a: I, b: I) -> I {
    _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
}

/// A table of sixteen bytes, ready for [`lookup`].
#[inline]
#[target_feature(enable = "avx2")]
pub fn table(entries: &[u8; 16]) -> I {
    // SAFETY: sixteen bytes are readable behind the reference.
    let table = unsafe { _mm_loadu_si128(entries.as_ptr().cast()) };
    _mm256_broadcastsi128_si256(table)
}

/// `table[index]` for every byte; indices are below sixteen.
#[inline]
#[target_feature(enable = "avx2")]
pub fn lookup(table: I, index: I) -> I {
    _mm256_shuffle_epi8(table, index)
}

/// No pairs summed yet.
#[inline]
#[target_feature(enable = "avx2")]
pub fn zero_pairs() -> P {
    zero()
}

/// Adds u8 x i8 products to i16 lanes, two to a lane, saturating: the plan proves that they don't.
#[inline]
#[target_feature(enable = "avx2")]
pub fn pairs(sum: P, a: I, b: I) -> P {
    _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b))
}

/// A [`table`] of differences from `min` as one of values, which fit in signed bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub fn values(table: I, min: i32) -> I {
    _mm256_add_epi8(table, _mm256_set1_epi8(min as i8))
}

/// Adds i8 x i8 products to i16 lanes, two to a lane, of which no byte of `a` is -128: it has no opposite.
#[inline]
#[target_feature(enable = "avx2")]
pub fn signed_pairs(sum: P, a: I, b: I) -> P {
    _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_abs_epi8(b), _mm256_sign_epi8(a, b)))
}

/// Adds the two i16 halves of every lane of `pairs` to `sum`.
#[inline]
#[target_feature(enable = "avx2")]
pub fn widen(sum: I, pairs: P) -> I {
    _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// The same with sums of upper halves of activations, see [`split`].
#[inline]
#[target_feature(enable = "avx2")]
pub fn widen_upper(sum: I, pairs: P) -> I {
    _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(16)))
}

/// Activations as 16 * upper + lower, both from -8 to 8: the lower halves, and the upper ones. Products with bytes of eight of them, two by
/// two, fit in the i16 lanes of [`pairs`].
///
/// # Safety
///
/// 32 bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn split(p: *const i8) -> [[i8; 32]; 2] {
    // SAFETY: the caller answers for the bytes; the load takes any alignment.
    let x = unsafe { _mm256_loadu_si256(p.cast()) };
    let nibble = _mm256_set1_epi8(15);
    let signed = table(&[0, 1, 2, 3, 4, 5, 6, 7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff]);
    let lower = lookup(signed, and(x, nibble));
    let upper = lookup(signed, and(shift::<4>(x), nibble));
    // What a negative lower half takes is given to the upper one.
    let upper = _mm256_sub_epi8(upper, _mm256_cmpgt_epi8(zero(), lower));
    let mut halves = [[0; 32]; 2];
    for (half, vector) in halves.iter_mut().zip([lower, upper]) {
        // SAFETY: a half has as many bytes as the vector.
        unsafe { _mm256_storeu_si256(half.as_mut_ptr().cast(), vector) };
    }
    halves
}

/// Adds four u8 x i8 products to every lane by way of i16 operands: exact for all of them.
#[inline]
#[target_feature(enable = "avx2")]
pub fn wide(sum: I, a: I, b: I) -> I {
    let (even, odd) = signed_words(b);
    wide_words(sum, a, even, odd)
}

/// The same with the activations of [`words`].
#[inline]
#[target_feature(enable = "avx2")]
pub fn wide_words(sum: I, a: I, even: I, odd: I) -> I {
    let even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(0xff)), even);
    let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(a), odd);
    _mm256_add_epi32(sum, _mm256_add_epi32(even, odd))
}

/// Bytes as i16: the even ones, and the odd ones.
#[inline]
#[target_feature(enable = "avx2")]
fn signed_words(a: I) -> (I, I) {
    (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(a)), _mm256_srai_epi16::<8>(a))
}

/// The activations of `N` fours as pairs of i16, for [`wide_words`]: the first and third of each four, and the second and
/// fourth.
///
/// # Safety
///
/// Four times `N` bytes are readable at `p`; `N` is a multiple of eight.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn words<const N: usize>(p: *const i8) -> [[i32; N]; 2] {
    const { assert!(N.is_multiple_of(8)) };
    let mut words = [[0; N]; 2];
    for at in (0..N).step_by(8) {
        // SAFETY: the caller answers for the bytes, and `at` lies 8 below the ends of both arrays or further.
        unsafe {
            let (even, odd) = signed_words(_mm256_loadu_si256(p.add(4 * at).cast()));
            _mm256_storeu_si256(words[0].as_mut_ptr().add(at).cast(), even);
            _mm256_storeu_si256(words[1].as_mut_ptr().add(at).cast(), odd);
        }
    }
    words
}

/// `N` pairs of neighbouring sums, which fit in sixteen bits, as i16: for [`add_products`] with the integers of [`both`].
///
/// # Safety
///
/// Twice `N` sums are readable at `p`; `N` is a multiple of four.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn sum_pairs<const N: usize>(p: *const i32) -> [i32; N] {
    const { assert!(N.is_multiple_of(4)) };
    let mut pairs = [0; N];
    for at in (0..N).step_by(4) {
        // SAFETY: the caller answers for the sums, and `at` lies four below the end of the array or further.
        unsafe {
            let of_four: *const __m128i = p.add(2 * at).cast();
            let of_four = _mm_packs_epi32(_mm_loadu_si128(of_four), _mm_loadu_si128(of_four.add(1)));
            _mm_storeu_si128(pairs.as_mut_ptr().add(at).cast(), of_four);
        }
    }
    pairs
}

/// An integer of each row, for [`times`] and [`times_words`]: in both halves of its lane.
#[inline]
#[target_feature(enable = "avx2")]
pub fn factor(integers: I) -> I {
    both(integers, integers)
}

/// Two integers of each row in the halves of its lane.
#[inline]
#[target_feature(enable = "avx2")]
pub fn both(first: I, second: I) -> I {
    _mm256_blend_epi16::<0xaa>(first, _mm256_slli_epi32::<16>(second))
}

/// Four values of each row times the [`factor`] of it, less `zero`: `operands` are values less `min`, and results fit in sixteen bits. The
/// first and the third of each lane, and the second and the fourth.
#[inline]
#[target_feature(enable = "avx2")]
pub fn times_words(operands: I, factor: I, min: i32, zero: i32) -> (I, I) {
    let of_min = _mm256_mullo_epi16(factor, _mm256_set1_epi16(min as i16));
    let of_min = _mm256_sub_epi16(of_min, _mm256_set1_epi16(zero as i16));
    let even = and(operands, _mm256_set1_epi16(0xff));
    let odd = _mm256_srli_epi16::<8>(operands);
    (
        _mm256_add_epi16(_mm256_mullo_epi16(even, factor), of_min),
        _mm256_add_epi16(_mm256_mullo_epi16(odd, factor), of_min),
    )
}

/// Operands plus `min`, times the [`factor`] of their row, less `zero`, which fits in a byte: a signed or an unsigned one.
#[inline]
#[target_feature(enable = "avx2")]
pub fn times(operands: I, factor: I, min: i32, zero: i32) -> I {
    let (even, odd) = times_words(operands, factor, min, zero);
    or(and(even, _mm256_set1_epi16(0xff)), _mm256_slli_epi16::<8>(odd))
}

/// Half of operands plus `min`, times the [`factor`] of their row, less `zero`, which is even and whose half fits in an unsigned byte.
#[inline]
#[target_feature(enable = "avx2")]
pub fn half_of_times(operands: I, factor: I, min: i32, zero: i32) -> I {
    let (even, odd) = times_words(operands, factor, min, zero);
    or(_mm256_srli_epi16::<1>(even), _mm256_slli_epi16::<8>(_mm256_srli_epi16::<1>(odd)))
}

/// i32 lanes to f32, to nearest even.
#[inline]
#[target_feature(enable = "avx2")]
pub fn to_f32(a: I) -> F {
    _mm256_cvtepi32_ps(a)
}

/// The same f32 in every lane.
#[inline]
#[target_feature(enable = "avx2")]
pub fn splat_f32(value: f32) -> F {
    _mm256_set1_ps(value)
}

/// Sum.
#[inline]
#[target_feature(enable = "avx2")]
pub fn add_f32(a: F, b: F) -> F {
    _mm256_add_ps(a, b)
}

/// Difference.
#[inline]
#[target_feature(enable = "avx2")]
pub fn sub_f32(a: F, b: F) -> F {
    _mm256_sub_ps(a, b)
}

/// Product.
#[inline]
#[target_feature(enable = "avx2")]
pub fn mul_f32(a: F, b: F) -> F {
    _mm256_mul_ps(a, b)
}

/// Quotient.
#[inline]
#[target_feature(enable = "avx2")]
pub fn div_f32(a: F, b: F) -> F {
    _mm256_div_ps(a, b)
}

/// Loads a vector of f32.
///
/// # Safety
///
/// [`LANES`] values are readable at `p`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn load_f32(p: *const f32) -> F {
    // SAFETY: the caller answers for the values; the load takes any alignment.
    unsafe { _mm256_loadu_ps(p) }
}

/// Loads a vector of f16, widened without rounding.
///
/// # Safety
///
/// [`LANES`] values are readable at `p`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub unsafe fn load_f16(p: *const u16) -> F {
    // SAFETY: the caller answers for the values; the load takes any alignment.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(p.cast()) })
}

/// Loads a vector of bf16, widened without rounding.
///
/// # Safety
///
/// [`LANES`] values are readable at `p`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn load_bf16(p: *const u16) -> F {
    // SAFETY: the caller answers for the values; the load takes any alignment.
    let wide = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(p.cast()) });
    as_f32(_mm256_slli_epi32::<16>(wide))
}

/// Loads a vector of 8-bit exponents, 2^(e - 128), widened without rounding.
///
/// # Safety
///
/// [`LANES`] values are readable at `p`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn load_e8m0_half(p: *const u8) -> F {
    // SAFETY: the caller answers for the values; the load takes any alignment.
    let e = _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(p.cast()) });
    // One of the two is right: for 0 and 1, which are subnormal, the second.
    let normal = _mm256_slli_epi32::<23>(sub(e, splat(1)));
    as_f32(_mm256_max_epi32(normal, _mm256_slli_epi32::<21>(add(e, splat(1)))))
}

/// Loads a vector of unsigned e4m3 numbers below 0x7f, halved, widened without rounding.
///
/// # Safety
///
/// [`LANES`] values are readable at `p`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub unsafe fn load_ue4m3_half(p: *const u8) -> F {
    // SAFETY: the caller answers for the values; the load takes any alignment.
    let bits = _mm_cvtepu8_epi16(unsafe { _mm_loadl_epi64(p.cast()) });
    // As f16 the exponent counts from eight further down, and half is one of them.
    _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16::<7>(bits)), splat_f32(128.0))
}

/// Stores a vector of f32.
///
/// # Safety
///
/// [`LANES`] values are writable at `p`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn store_f32(p: *mut f32, a: F) {
    // SAFETY: the caller answers for the room; the store takes any alignment.
    unsafe { _mm256_storeu_ps(p, a) }
}

/// Sum of bytes, wrapping.
#[inline]
#[target_feature(enable = "avx2")]
pub fn add_bytes(a: I, b: I) -> I {
    _mm256_add_epi8(a, b)
}

/// `(low + (high << SPLIT)) * STEP` of every byte, as i16: the plan proves that it fits.
#[inline]
#[target_feature(enable = "avx2")]
pub fn merge<const STEP: i32, const SPLIT: i32>(low: I, high: I) -> W {
    let weights = _mm256_set1_epi16((((STEP << SPLIT) << 8) | STEP) as i16);
    (
        _mm256_maddubs_epi16(_mm256_unpacklo_epi8(low, high), weights),
        _mm256_maddubs_epi16(_mm256_unpackhi_epi8(low, high), weights),
    )
}

/// All zeros, as i16.
#[inline]
#[target_feature(enable = "avx2")]
pub fn zero_words() -> W {
    (zero(), zero())
}

/// The low half of `value` in every i16.
#[inline]
#[target_feature(enable = "avx2")]
pub fn splat_words(value: i32) -> W {
    let words = _mm256_set1_epi16(value as i16);
    (words, words)
}

/// Sum of i16, wrapping.
#[inline]
#[target_feature(enable = "avx2")]
pub fn add_words(a: W, b: W) -> W {
    (_mm256_add_epi16(a.0, b.0), _mm256_add_epi16(a.1, b.1))
}

/// i16 to i32, in the order of the bytes that they came from.
#[inline]
#[target_feature(enable = "avx2")]
pub fn lanes(a: W) -> [I; 4] {
    // Unpacking stays within 128 bits: the low half of each holds the first sixteen rows, eight by eight.
    [
        _mm256_cvtepi16_epi32(_mm256_castsi256_si128(a.0)),
        _mm256_cvtepi16_epi32(_mm256_castsi256_si128(a.1)),
        _mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(a.0)),
        _mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(a.1)),
    ]
}

/// The same bits, as floats.
#[inline]
#[target_feature(enable = "avx2")]
pub fn as_f32(a: I) -> F {
    _mm256_castsi256_ps(a)
}

/// The same bits, as integers.
#[inline]
#[target_feature(enable = "avx2")]
pub fn as_int(a: F) -> I {
    _mm256_castps_si256(a)
}

/// Sixteen sums, none negative, in two digits: the low `SPLIT` bits of each in sixteen bytes, and the rest of
/// each in the next sixteen.
///
/// # Safety
///
/// Thirty-two bytes are writable at `to`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn store_digits<const SPLIT: i32>(sums: [I; 2], to: *mut u8) {
    let digit = splat((1 << SPLIT) - 1);
    let low = _mm256_packs_epi32(and(sums[0], digit), and(sums[1], digit));
    let high = _mm256_packs_epi32(_mm256_srli_epi32::<SPLIT>(sums[0]), _mm256_srli_epi32::<SPLIT>(sums[1]));
    // In fours: low 0, low 8, high 0, high 8; then the same with 4 and 12.
    let fours = _mm256_packus_epi16(low, high);
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    // SAFETY: the caller answers for the room; the store takes any alignment.
    unsafe { _mm256_storeu_si256(to.cast(), _mm256_permutevar8x32_epi32(fours, order)) }
}
