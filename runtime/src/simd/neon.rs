//! 128-bit Arm without dot products.
//!
//! The multiplies here are signed: operands above 127 go through [`signed`], and what that takes from every
//! sum (128 times the sum of the activations) is given back with the format's smallest value.

use std::arch::aarch64::*;
use std::arch::asm;

/// Integer vector.
pub type I = int32x4_t;
/// Sums of [`pairs`]: the products of the first two rows, and of the other two, each in its own lane.
pub type P = (int16x8_t, int16x8_t);
/// Sums of bytes as i16: as many as a vector has bytes.
pub type W = (int16x8_t, int16x8_t);
/// Float vector.
pub type F = float32x4_t;
/// 32-bit lanes of a vector.
pub const LANES: usize = 4;

/// Loads a vector from any address.
///
/// # Safety
///
/// A vector's worth of bytes is readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn load(p: *const u8) -> I {
    // SAFETY: the caller answers for the bytes; the load takes any alignment.
    vreinterpretq_s32_u8(unsafe { vld1q_u8(p) })
}

/// Four neighbouring bytes in every lane.
///
/// # Safety
///
/// Four bytes are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn broadcast(p: *const i8) -> I {
    // SAFETY: the caller answers for four bytes.
    vdupq_n_s32(unsafe { p.cast::<i32>().read_unaligned() })
}

/// `COUNT` neighbouring activations (8 or 16) from the first byte of the vector on.
///
/// # Safety
///
/// `COUNT` bytes are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn activations<const COUNT: usize>(p: *const i8) -> I {
    const { assert!(COUNT == 8 || COUNT == 16) };
    // SAFETY: the caller answers for the bytes; the loads take any alignment.
    unsafe {
        match COUNT {
            8 => vreinterpretq_s32_s64(vdupq_n_s64(p.cast::<i64>().read_unaligned())),
            _ => vreinterpretq_s32_s8(vld1q_s8(p)),
        }
    }
}

/// Asks for the line at `p`, which is soon read; any address may be asked for.
#[inline]
#[target_feature(enable = "neon")]
pub fn prefetch(p: *const u8) {
    // SAFETY: a hint, which changes nothing and faults nowhere.
    unsafe { asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly)) }
}

/// All zeros.
#[inline]
#[target_feature(enable = "neon")]
pub fn zero() -> I {
    vdupq_n_s32(0)
}

/// The same byte everywhere.
#[inline]
#[target_feature(enable = "neon")]
pub fn bytes(value: u8) -> I {
    vreinterpretq_s32_u8(vdupq_n_u8(value))
}

/// The same i32 in every lane.
#[inline]
#[target_feature(enable = "neon")]
pub fn splat(value: i32) -> I {
    vdupq_n_s32(value)
}

/// Bitwise and.
#[inline]
#[target_feature(enable = "neon")]
pub fn and(a: I, b: I) -> I {
    vandq_s32(a, b)
}

/// Bitwise or.
#[inline]
#[target_feature(enable = "neon")]
pub fn or(a: I, b: I) -> I {
    vorrq_s32(a, b)
}

/// Every byte moved right by `SHIFT` bits, with zeros shifted in: the topmost field needs no mask.
#[inline]
#[target_feature(enable = "neon")]
pub fn shift<const SHIFT: i32>(a: I) -> I {
    vreinterpretq_s32_u8(vshrq_n_u8::<SHIFT>(vreinterpretq_u8_s32(a)))
}

/// Every byte moved left by `SHIFT` bits, with zeros shifted in.
#[inline]
#[target_feature(enable = "neon")]
pub fn shift_left<const SHIFT: i32>(a: I) -> I {
    vreinterpretq_s32_u8(vshlq_n_u8::<SHIFT>(vreinterpretq_u8_s32(a)))
}

/// Two neighbouring bytes to every lane, a nibble to each of its bytes: the low ones to the first two, the high ones to the
/// others. What stands above the nibbles is to be masked.
///
/// # Safety
///
/// Twice [`LANES`] bytes are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn nibbles(p: *const u8) -> I {
    // SAFETY: the caller answers for eight bytes, which the load takes at any address.
    let two = vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_u8(unsafe { vld1_u8(p) })));
    or(two, vshlq_n_s32::<12>(two))
}

/// Arithmetic shift of every lane.
#[inline]
#[target_feature(enable = "neon")]
pub fn shift_lanes<const SHIFT: i32>(a: I) -> I {
    vshrq_n_s32::<SHIFT>(a)
}

/// Every byte less 128: unsigned operands as signed ones.
#[inline]
#[target_feature(enable = "neon")]
pub fn signed(a: I) -> I {
    veorq_s32(a, bytes(0x80))
}

/// Sum of lanes.
#[inline]
#[target_feature(enable = "neon")]
pub fn add(a: I, b: I) -> I {
    vaddq_s32(a, b)
}

/// Difference of lanes.
#[inline]
#[target_feature(enable = "neon")]
pub fn sub(a: I, b: I) -> I {
    vsubq_s32(a, b)
}

/// One byte to every lane, sign-extended.
///
/// # Safety
///
/// [`LANES`] bytes are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn integers(p: *const i8) -> I {
    // SAFETY: the caller answers for four bytes.
    let bytes = vdupq_n_s32(unsafe { p.cast::<i32>().read_unaligned() });
    let integers: I;
    // Where the compiler sees that these lanes are multiplied by other extended ones, it narrows them again for `smlal`:
    // seven instructions for two, and LLVM 22 fails with an internal error when it does that in some kernels.
    // SAFETY: `sxtl` only touches the registers named, and this function has its feature.
    unsafe {
        asm!(
            "sxtl {integers:v}.8h, {bytes:v}.8b",
            "sxtl {integers:v}.4s, {integers:v}.4h",
            integers = out(vreg) integers, bytes = in(vreg) bytes,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    integers
}

/// Two neighbouring bytes to the i16 halves of every lane, sign-extended.
///
/// # Safety
///
/// Twice [`LANES`] bytes are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn integer_pairs(p: *const i8) -> I {
    // SAFETY: the caller answers for eight bytes.
    vreinterpretq_s32_s16(vmovl_s8(unsafe { vld1_s8(p) }))
}

/// One byte to every lane, zero-extended.
///
/// # Safety
///
/// [`LANES`] bytes are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn unsigned_integers(p: *const u8) -> I {
    // SAFETY: the caller answers for the bytes; the load takes any alignment.
    vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(unsafe {
        p.cast::<u32>().read_unaligned()
    }))))))
}

/// Two neighbouring bytes to the i16 halves of every lane, zero-extended.
///
/// # Safety
///
/// Twice [`LANES`] bytes are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn unsigned_pairs(p: *const u8) -> I {
    // SAFETY: the caller answers for the bytes; the load takes any alignment.
    vreinterpretq_s32_u16(vmovl_u8(unsafe { vld1_u8(p) }))
}

/// Logical shift of every lane to the right, by less than 32 bits.
#[inline]
#[target_feature(enable = "neon")]
pub fn shift_by(a: I, count: i32) -> I {
    vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-count)))
}

/// `value` in the lanes in which `flags` has a bit of `bit`, and zero in the others.
#[inline]
#[target_feature(enable = "neon")]
pub fn flagged(flags: I, bit: I, value: I) -> I {
    and(vreinterpretq_s32_u32(vtstq_s32(flags, bit)), value)
}

/// Adds the product of lanes.
#[inline]
#[target_feature(enable = "neon")]
pub fn add_product(sum: I, a: I, b: I) -> I {
    vmlaq_s32(sum, a, b)
}

/// Adds the products of both i16 halves of lanes.
#[inline]
#[target_feature(enable = "neon")]
pub fn add_products(sum: I, a: I, b: I) -> I {
    let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
    vaddq_s32(sum, neighbours(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)))
}

/// Sums of neighbouring lanes, of `low` and then of `high`.
#[inline]
#[target_feature(enable = "neon")]
fn neighbours(low: I, high: I) -> I {
    let sums: I;
    // Of `vpaddq_s32` the compiler makes two shuffles and a sum.
    // SAFETY: `addp` only touches the registers named, and this function has its feature.
    unsafe {
        asm!(
            "addp {sums:v}.4s, {low:v}.4s, {high:v}.4s",
            sums = out(vreg) sums, low = in(vreg) low, high = in(vreg) high,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// A table of sixteen bytes, ready for [`lookup`].
#[inline]
#[target_feature(enable = "neon")]
pub fn table(entries: &[u8; 16]) -> I {
    // SAFETY: sixteen bytes are readable behind the reference.
    unsafe { load(entries.as_ptr()) }
}

/// `table[index]` for every byte; indices are below sixteen.
#[inline]
#[target_feature(enable = "neon")]
pub fn lookup(table: I, index: I) -> I {
    vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(index)))
}

/// No pairs summed yet.
#[inline]
#[target_feature(enable = "neon")]
pub fn zero_pairs() -> P {
    (vdupq_n_s16(0), vdupq_n_s16(0))
}

/// Adds i8 x i8 products to i16 lanes, one to a lane: the plan proves that the sums stay within them.
#[inline]
#[target_feature(enable = "neon")]
pub fn pairs(sum: P, a: I, b: I) -> P {
    let low = |v: I| vget_low_s8(vreinterpretq_s8_s32(v));
    let mut high = sum.1;
    // Of `vmlal_high_s8` with the same activations in both halves the compiler makes the multiply of low
    // halves and an instruction that brings the weights down there.
    // SAFETY: `smlal2` only touches the registers named, and this function has its feature.
    unsafe {
        asm!(
            "smlal2 {sum:v}.8h, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) high, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    (vmlal_s8(sum.0, low(a), low(b)), high)
}

/// Adds the four i16 products of every row of `pairs` to the row's lane of `sum`.
#[inline]
#[target_feature(enable = "neon")]
pub fn widen(sum: I, pairs: P) -> I {
    vaddq_s32(sum, neighbours(vpaddlq_s16(pairs.0), vpaddlq_s16(pairs.1)))
}

/// i32 lanes to f32, to nearest even.
#[inline]
#[target_feature(enable = "neon")]
pub fn to_f32(a: I) -> F {
    vcvtq_f32_s32(a)
}

/// The same f32 in every lane.
#[inline]
#[target_feature(enable = "neon")]
pub fn splat_f32(value: f32) -> F {
    vdupq_n_f32(value)
}

/// Sum.
#[inline]
#[target_feature(enable = "neon")]
pub fn add_f32(a: F, b: F) -> F {
    vaddq_f32(a, b)
}

/// Difference.
#[inline]
#[target_feature(enable = "neon")]
pub fn sub_f32(a: F, b: F) -> F {
    vsubq_f32(a, b)
}

/// Product.
#[inline]
#[target_feature(enable = "neon")]
pub fn mul_f32(a: F, b: F) -> F {
    vmulq_f32(a, b)
}

/// Quotient.
#[inline]
#[target_feature(enable = "neon")]
pub fn div_f32(a: F, b: F) -> F {
    vdivq_f32(a, b)
}

/// Loads a vector of f32.
///
/// # Safety
///
/// [`LANES`] values are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn load_f32(p: *const f32) -> F {
    // SAFETY: the caller answers for the values; the load takes any alignment.
    unsafe { vld1q_f32(p) }
}

/// Loads a vector of f16, widened without rounding.
///
/// # Safety
///
/// [`LANES`] values are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn load_f16(p: *const u16) -> F {
    // SAFETY: the caller answers for the values; the load takes any alignment.
    let halves = unsafe { vld1_u16(p) };
    let wide: F;
    // Its intrinsic is unstable.
    // SAFETY: `fcvtl` only touches the registers named, and this function has its feature.
    unsafe {
        asm!(
            "fcvtl {wide:v}.4s, {halves:v}.4h",
            wide = out(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    wide
}

/// Loads a vector of bf16, widened without rounding.
///
/// # Safety
///
/// [`LANES`] values are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn load_bf16(p: *const u16) -> F {
    // SAFETY: the caller answers for the values; the load takes any alignment.
    vreinterpretq_f32_u32(vshll_n_u16::<16>(unsafe { vld1_u16(p) }))
}

/// Loads a vector of 8-bit exponents, 2^(e - 128), widened without rounding.
///
/// # Safety
///
/// [`LANES`] values are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn load_e8m0_half(p: *const u8) -> F {
    // SAFETY: the caller answers for four bytes.
    let e = vreinterpretq_s32_u32(unsafe { widened(p) });
    // One of the two is right: for 0 and 1, which are subnormal, the second.
    let normal = vshlq_n_s32::<23>(sub(e, splat(1)));
    vreinterpretq_f32_s32(vmaxq_s32(normal, vshlq_n_s32::<21>(add(e, splat(1)))))
}

/// Loads a vector of unsigned e4m3 numbers below 0x7f, halved, widened without rounding.
///
/// # Safety
///
/// [`LANES`] values are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn load_ue4m3_half(p: *const u8) -> F {
    // SAFETY: the caller answers for four bytes.
    let bits = vshlq_n_u32::<20>(unsafe { widened(p) });
    // The exponent counts from 120 further down, and half is one of them; this widens subnormal numbers too.
    mul_f32(vreinterpretq_f32_u32(bits), splat_f32(f32::from_bits((127 + 119) << 23)))
}

/// One byte to every lane.
///
/// # Safety
///
/// [`LANES`] bytes are readable at `p`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn widened(p: *const u8) -> uint32x4_t {
    // SAFETY: the caller answers for four bytes.
    let bytes = vcreate_u8(u64::from(unsafe { p.cast::<u32>().read_unaligned() }));
    vmovl_u16(vget_low_u16(vmovl_u8(bytes)))
}

/// Stores a vector of f32.
///
/// # Safety
///
/// [`LANES`] values are writable at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn store_f32(p: *mut f32, a: F) {
    // SAFETY: the caller answers for the room; the store takes any alignment.
    unsafe { vst1q_f32(p, a) }
}

/// Sum of bytes, wrapping.
#[inline]
#[target_feature(enable = "neon")]
pub fn add_bytes(a: I, b: I) -> I {
    vreinterpretq_s32_u8(vaddq_u8(vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b)))
}

/// `(low + (high << SPLIT)) * STEP` of every byte, as i16: the plan proves that it fits.
#[inline]
#[target_feature(enable = "neon")]
pub fn merge<const STEP: i32, const SPLIT: i32>(low: I, high: I) -> W {
    let (low, high) = (vreinterpretq_u8_s32(low), vreinterpretq_u8_s32(high));
    let (step, weight) = (vdupq_n_u8(STEP as u8), vdupq_n_u8((STEP << SPLIT) as u8));
    let first = vmull_u8(vget_low_u8(high), vget_low_u8(weight));
    let second = vmull_high_u8(high, weight);
    (
        vreinterpretq_s16_u16(vmlal_u8(first, vget_low_u8(low), vget_low_u8(step))),
        vreinterpretq_s16_u16(vmlal_high_u8(second, low, step)),
    )
}

/// All zeros, as i16.
#[inline]
#[target_feature(enable = "neon")]
pub fn zero_words() -> W {
    (vdupq_n_s16(0), vdupq_n_s16(0))
}

/// The low half of `value` in every i16.
#[inline]
#[target_feature(enable = "neon")]
pub fn splat_words(value: i32) -> W {
    let words = vdupq_n_s16(value as i16);
    (words, words)
}

/// Sum of i16, wrapping.
#[inline]
#[target_feature(enable = "neon")]
pub fn add_words(a: W, b: W) -> W {
    (vaddq_s16(a.0, b.0), vaddq_s16(a.1, b.1))
}

/// i16 to i32, in the order of the bytes that they came from.
#[inline]
#[target_feature(enable = "neon")]
pub fn lanes(a: W) -> [I; 4] {
    [vmovl_s16(vget_low_s16(a.0)), vmovl_high_s16(a.0), vmovl_s16(vget_low_s16(a.1)), vmovl_high_s16(a.1)]
}

/// The same bits, as floats.
#[inline]
#[target_feature(enable = "neon")]
pub fn as_f32(a: I) -> F {
    vreinterpretq_f32_s32(a)
}

/// The same bits, as integers.
#[inline]
#[target_feature(enable = "neon")]
pub fn as_int(a: F) -> I {
    vreinterpretq_s32_f32(a)
}

/// Sixteen sums, none negative, in two digits: the low `SPLIT` bits of each in sixteen bytes, and the rest of
/// each in the next sixteen.
///
/// # Safety
///
/// Thirty-two bytes are writable at `to`.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn store_digits<const SPLIT: i32>(sums: [I; 4], to: *mut u8) {
    let digit = vdupq_n_u8((1 << SPLIT) - 1);
    // Of every sum the low half, then of that the low byte.
    let first = vuzp1q_u16(vreinterpretq_u16_s32(sums[0]), vreinterpretq_u16_s32(sums[1]));
    let second = vuzp1q_u16(vreinterpretq_u16_s32(sums[2]), vreinterpretq_u16_s32(sums[3]));
    let low = vandq_u8(vuzp1q_u8(vreinterpretq_u8_u16(first), vreinterpretq_u8_u16(second)), digit);
    let high = vshrn_high_n_u16::<SPLIT>(vshrn_n_u16::<SPLIT>(first), second);
    // SAFETY: the caller answers for the room; the stores take any alignment.
    unsafe {
        vst1q_u8(to, low);
        vst1q_u8(to.add(16), high);
    }
}
