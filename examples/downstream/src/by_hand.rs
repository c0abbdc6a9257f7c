//! The one kernel of this crate that is written by hand; `kernels/kernels/fast_dequantize.toml` names it.

use gristmill::abi::Fault;
use gristmill::number::f16_to_f32;
use gristmill::variant;
use std::arch::x86_64::{
    _mm_set_epi32, _mm_setr_epi8, _mm_shuffle_epi8, _mm256_and_si256, _mm256_broadcastd_epi32,
    _mm256_cvtepi32_ps, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32,
    _mm256_srlv_epi32, _mm256_storeu_ps, _mm256_sub_epi32,
};

/// Weights of a block.
const ELEMENTS: usize = 32;
/// Bytes of a block: an f16 scale, then 32 codes of three bits.
const BYTES: usize = 14;

/// Blocks of `q3_seq` to f32: three bytes hold eight codes, so they are spread over eight lanes and each lane
/// shifts its own code down.
///
/// # Safety
///
/// `src` holds `blocks` blocks and `dst` has room for 32 values of each; the processor has AVX2 and SSSE3.
#[variant(op = dequantize, kernel = fast_dequantize, format = q3_seq, isa = avx2, requires = [ssse3])]
pub unsafe fn dequantize_q3_seq(
    src: *const u8,
    dst: *mut f32,
    blocks: usize,
    _outer: f32,
) -> Result<(), Fault> {
    let shifts = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21);
    let (mask, zero) = (_mm256_set1_epi32(7), _mm256_set1_epi32(4));
    // Brings the next three bytes to the front, those already used to the back.
    let next = _mm_setr_epi8(3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2);
    for block in 0..blocks {
        // SAFETY: the caller answers for `blocks` blocks.
        let bytes = unsafe { src.add(block * BYTES).cast::<[u8; BYTES]>().read() };
        let scale = _mm256_set1_ps(f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]])));
        let word = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut codes = _mm_set_epi32(0, word(10), word(6), word(2));
        for eighth in 0..ELEMENTS / 8 {
            let lanes = _mm256_srlv_epi32(_mm256_broadcastd_epi32(codes), shifts);
            let values = _mm256_sub_epi32(_mm256_and_si256(lanes, mask), zero);
            // The reference multiplies in this order too, and once: the same bits.
            let weights = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(values));
            // SAFETY: the caller answers for 32 values of each block.
            unsafe { _mm256_storeu_ps(dst.add(block * ELEMENTS + eighth * 8), weights) };
            codes = _mm_shuffle_epi8(codes, next);
        }
    }
    Ok(())
}
