//! 512-bit x86 with `vpdpbusd` and byte permutes.

pub use super::avx512vnni::{
    F, I, LANES, add, add_f32, add_product, add_products, and, broadcast, bytes, div_f32, dot, factor,
    flagged, half_of_times, integer_pairs, integers, load, load_bf16, load_e8m0_half, load_f16, load_f32,
    load_ue4m3_half, mul_f32, nibbles, or, prefetch, shift, shift_by, shift_lanes, shift_left, splat,
    splat_f32, store_f32, sub, sub_f32, times, to_f32, unsigned_integers, unsigned_pairs, zero,
};
use std::arch::x86_64::*;

/// Tables of [`trits`]: four trits of a byte by its low six bits, the same behind the escape, and the fifth trit
/// behind the escape.
pub type TritTables = [I; 3];

/// Tables ready for [`trits`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx512vbmi")]
pub fn trit_tables(tables: &[[u8; 64]; 3]) -> TritTables {
    let [plain, escaped, fifth] = tables;
    // SAFETY: 64 bytes are readable behind each.
    unsafe { [load(plain.as_ptr()), load(escaped.as_ptr()), load(fifth.as_ptr())] }
}

/// Takes bytes of five trits apart: four of them in two bits each of the first result, the fifth in the topmost two
/// bits of the second, whose other bits are to be masked.
///
/// The upper two bits of a byte are its fifth trit, and the lower six the others by the first table. Where both upper
/// bits are set, the lower six say everything, by the other two tables.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx512vbmi")]
pub fn trits(tables: &TritTables, packed: I) -> (I, I) {
    let escaped = _mm512_cmpge_epu8_mask(packed, _mm512_set1_epi8(0xc0u8 as i8));
    let plain = _mm512_permutexvar_epi8(packed, tables[0]);
    (
        _mm512_mask_permutexvar_epi8(plain, escaped, packed, tables[1]),
        _mm512_mask_permutexvar_epi8(packed, escaped, packed, tables[2]),
    )
}
