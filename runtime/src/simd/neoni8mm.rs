//! 128-bit Arm with `usdot` and `usmmla`, unsigned by signed. Their intrinsics are unstable, so they come as inline
//! assembly.

pub use super::neon::{
    F, I, LANES, activations, add, add_f32, add_product, add_products, and, broadcast, bytes, div_f32,
    flagged, integer_pairs, integers, load, load_bf16, load_e8m0_half, load_f16, load_f32, load_ue4m3_half,
    lookup, mul_f32, nibbles, or, prefetch, shift, shift_by, shift_lanes, shift_left, splat, splat_f32,
    store_f32, sub, sub_f32, table, to_f32, unsigned_integers, unsigned_pairs, zero,
};
use super::neondot::adds;
use std::arch::aarch64::*;

adds! {
    /// Adds four u8 x i8 products to every lane: exact for all operands.
    "neon,i8mm" dot, "usdot {sum:v}.4s, {a:v}.16b, {b:v}.16b"
}

adds! {
    /// As [`dot`], with bytes `4 * GROUP` to `4 * GROUP + 3` of `b` for every lane.
    "neon,i8mm" dot_group<const GROUP, 4>, "usdot {sum:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]"
}

adds! {
    /// Adds the products of two rows by two tokens, eight k each, to four sums: lane `2 * i + j` is that of the `i`-th eight
    /// bytes of `a` (u8) by the `j`-th eight of `b` (i8). Exact for all operands.
    "neon,i8mm" matrix, "usmmla {sum:v}.4s, {a:v}.16b, {b:v}.16b"
}

/// Lanes of the lower (`HALF` 0) or upper (1) half of `a` and `b` in turn.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub fn in_turn<const HALF: usize>(a: I, b: I) -> I {
    const { assert!(HALF < 2) };
    if HALF == 0 { vzip1q_s32(a, b) } else { vzip2q_s32(a, b) }
}

/// The lower (`HALF` 0) or upper (1) half of `a`, then that of `b`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub fn halves<const HALF: usize>(a: I, b: I) -> I {
    const { assert!(HALF < 2) };
    let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
    vreinterpretq_s32_s64(if HALF == 0 { vzip1q_s64(a, b) } else { vzip2q_s64(a, b) })
}

/// Every second lane of `a`, from lane `FIRST` (0 or 1) on, then those of `b`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub fn every_second<const FIRST: usize>(a: I, b: I) -> I {
    const { assert!(FIRST < 2) };
    if FIRST == 0 { vuzp1q_s32(a, b) } else { vuzp2q_s32(a, b) }
}
