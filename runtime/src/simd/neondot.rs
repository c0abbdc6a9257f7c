//! 128-bit Arm with `sdot`, signed by signed. Its intrinsic is unstable, so it comes as inline assembly.

pub use super::neon::{
    F, I, LANES, activations, add, add_f32, add_product, add_products, and, broadcast, bytes, div_f32,
    integer_pairs, integers, load, load_f32, lookup, mul_f32, prefetch, shift, shift_lanes, signed, splat,
    splat_f32, store_f32, sub, sub_f32, table, to_f32, zero,
};
use std::arch::asm;

/// Adds four i8 x i8 products to every lane: exact for all operands.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub fn dot(mut sum: I, a: I, b: I) -> I {
    // SAFETY: `sdot` only touches the registers named, and this function has its feature.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// As [`dot`], with bytes `4 * GROUP` to `4 * GROUP + 3` of `b` for every lane.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub fn dot_group<const GROUP: usize>(mut sum: I, a: I, b: I) -> I {
    const { assert!(GROUP < 4) };
    // SAFETY: `sdot` only touches the registers named, and this function has its feature.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.4b[{group}]",
            sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b, group = const GROUP,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}
