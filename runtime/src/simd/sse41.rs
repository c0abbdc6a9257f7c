//! 128-bit x86: SSSE3 and SSE4.1.

use std::arch::x86_64::*;

/// Integer vector.
pub type I = __m128i;
/// Sums of [`pairs`].
pub type P = I;
/// Float vector.
pub type F = __m128;
/// 32-bit lanes of a vector.
pub const LANES: usize = 4;

/// Loads a vector from any address.
///
/// # Safety
///
/// A vector's worth of bytes is readable at `p`.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub unsafe fn load(p: *const u8) -> I {
    // SAFETY: the caller answers for the bytes; the load takes any alignment.
    unsafe { _mm_loadu_si128(p.cast()) }
}

/// Four neighbouring bytes in every lane.
///
/// # Safety
///
/// Four bytes are readable at `p`.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub unsafe fn broadcast(p: *const i8) -> I {
    // SAFETY: the caller answers for four bytes.
    _mm_set1_epi32(unsafe { p.cast::<i32>().read_unaligned() })
}

/// All zeros.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn zero() -> I {
    _mm_setzero_si128()
}

/// The same byte everywhere.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn bytes(value: u8) -> I {
    _mm_set1_epi8(value as i8)
}

/// The same i32 in every lane.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn splat(value: i32) -> I {
    _mm_set1_epi32(value)
}

/// Bitwise and.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn and(a: I, b: I) -> I {
    _mm_and_si128(a, b)
}

/// Every byte moved right by `SHIFT` bits, with bits of its neighbour shifted in: to be masked.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn shift<const SHIFT: i32>(a: I) -> I {
    _mm_srli_epi16::<SHIFT>(a)
}

/// Arithmetic shift of every lane.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn shift_lanes<const SHIFT: i32>(a: I) -> I {
    _mm_srai_epi32::<SHIFT>(a)
}

/// Sum of lanes.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn add(a: I, b: I) -> I {
    _mm_add_epi32(a, b)
}

/// Difference of lanes.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn sub(a: I, b: I) -> I {
    _mm_sub_epi32(a, b)
}

/// A table of sixteen bytes, ready for [`lookup`].
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn table(entries: &[u8; 16]) -> I {
    // SAFETY: sixteen bytes are readable behind the reference.
    unsafe { _mm_loadu_si128(entries.as_ptr().cast()) }
}

/// `table[index]` for every byte; indices are below sixteen.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn lookup(table: I, index: I) -> I {
    _mm_shuffle_epi8(table, index)
}

/// No pairs summed yet.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn zero_pairs() -> P {
    zero()
}

/// Adds u8 x i8 products to i16 lanes, two to a lane, saturating: the plan proves that they don't.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn pairs(sum: P, a: I, b: I) -> P {
    _mm_add_epi16(sum, _mm_maddubs_epi16(a, b))
}

/// Adds the two i16 halves of every lane of `pairs` to `sum`.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn widen(sum: I, pairs: P) -> I {
    _mm_add_epi32(sum, _mm_madd_epi16(pairs, _mm_set1_epi16(1)))
}

/// Adds four u8 x i8 products to every lane by way of i16 operands: exact for all of them.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn wide(sum: I, a: I, b: I) -> I {
    let even =
        _mm_madd_epi16(_mm_and_si128(a, _mm_set1_epi16(0xff)), _mm_srai_epi16::<8>(_mm_slli_epi16::<8>(b)));
    let odd = _mm_madd_epi16(_mm_srli_epi16::<8>(a), _mm_srai_epi16::<8>(b));
    _mm_add_epi32(sum, _mm_add_epi32(even, odd))
}

/// i32 lanes to f32, to nearest even.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn to_f32(a: I) -> F {
    _mm_cvtepi32_ps(a)
}

/// The same f32 in every lane.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn splat_f32(value: f32) -> F {
    _mm_set1_ps(value)
}

/// Sum.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn add_f32(a: F, b: F) -> F {
    _mm_add_ps(a, b)
}

/// Difference.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn sub_f32(a: F, b: F) -> F {
    _mm_sub_ps(a, b)
}

/// Product.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn mul_f32(a: F, b: F) -> F {
    _mm_mul_ps(a, b)
}

/// Quotient.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub fn div_f32(a: F, b: F) -> F {
    _mm_div_ps(a, b)
}

/// Loads a vector of f32.
///
/// # Safety
///
/// [`LANES`] values are readable at `p`.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub unsafe fn load_f32(p: *const f32) -> F {
    // SAFETY: the caller answers for the values; the load takes any alignment.
    unsafe { _mm_loadu_ps(p) }
}

/// Stores a vector of f32.
///
/// # Safety
///
/// [`LANES`] values are writable at `p`.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
pub unsafe fn store_f32(p: *mut f32, a: F) {
    // SAFETY: the caller answers for the room; the store takes any alignment.
    unsafe { _mm_storeu_ps(p, a) }
}
