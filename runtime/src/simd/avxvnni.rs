//! 256-bit x86 with the VEX-encoded `vpdpbusd`.

pub use super::avx2::{
    F, I, LANES, add, add_f32, add_product, and, broadcast, bytes, div_f32, factor, flagged, half_of_times,
    integer_pairs, integers, load, load_bf16, load_e8m0_half, load_f16, load_f32, load_ue4m3_half, lookup,
    mul_f32, nibbles, or, prefetch, shift, shift_by, shift_lanes, shift_left, splat, splat_f32, store_f32,
    sub, sub_f32, table, times, to_f32, unsigned_integers, unsigned_pairs, zero,
};
use std::arch::x86_64::{_mm256_dpbusd_avx_epi32, _mm256_dpwssd_avx_epi32};

/// Adds four u8 x i8 products to every lane: exact for all operands.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
pub fn dot(sum: I, a: I, b: I) -> I {
    _mm256_dpbusd_avx_epi32(sum, a, b)
}

/// Adds the products of both i16 halves of lanes.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
pub fn add_products(sum: I, a: I, b: I) -> I {
    _mm256_dpwssd_avx_epi32(sum, a, b)
}
