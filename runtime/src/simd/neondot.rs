//! 128-bit Arm with `sdot`, signed by signed. Its intrinsic is unstable, so it comes as inline assembly.

pub use super::neon::{
    F, I, LANES, activations, add, add_f32, add_product, add_products, and, broadcast, bytes, div_f32,
    flagged, integer_pairs, integers, load, load_bf16, load_e8m0_half, load_f16, load_f32, load_ue4m3_half,
    lookup, mul_f32, nibbles, or, prefetch, shift, shift_by, shift_lanes, shift_left, signed, splat,
    splat_f32, store_f32, sub, sub_f32, table, to_f32, unsigned_integers, unsigned_pairs, zero,
};

/// A function that adds products to the sums of one instruction.
macro_rules! adds {
    ($(#[$doc:meta])* $features:literal $name:ident $(<const $lane:ident, $below:literal>)?, $instruction:literal) => {
        $(#[$doc])*
        #[inline]
        #[target_feature(enable = $features)]
        pub fn $name $(<const $lane: usize>)? (mut sum: I, a: I, b: I) -> I {
            $(const { assert!($lane < $below) };)?
            // SAFETY: the instruction only touches the registers named, and this function has its feature.
            unsafe {
                std::arch::asm!(
                    $instruction,
                    sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b, $(lane = const $lane,)?
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            sum
        }
    };
}
pub(super) use adds;

adds! {
    /// Adds four i8 x i8 products to every lane: exact for all operands.
    "neon,dotprod" dot, "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b"
}

adds! {
    /// As [`dot`], with bytes `4 * GROUP` to `4 * GROUP + 3` of `b` for every lane.
    "neon,dotprod" dot_group<const GROUP, 4>, "sdot {sum:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]"
}
