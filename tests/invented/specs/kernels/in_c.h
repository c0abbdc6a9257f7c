/* Eight signed codes of three bits, and eight int8 values, in 32-bit lanes. */
#include <stdint.h>

static inline uint32_t three_bytes(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16;
}

#ifdef __AVX2__
#include <immintrin.h>

typedef __m256i eight;

static inline eight zeros(void) { return _mm256_setzero_si256(); }

static inline eight codes(const uint8_t *at) {
    const __m256i shifts = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21), four = _mm256_set1_epi32(4);
    __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32((int)three_bytes(at)), shifts);
    code = _mm256_and_si256(code, _mm256_set1_epi32(7));
    /* Two's complement of three bits. */
    return _mm256_sub_epi32(_mm256_xor_si256(code, four), four);
}

static inline eight add_products(eight sums, eight code, const int8_t *x) {
    __m256i values = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)x));
    return _mm256_add_epi32(sums, _mm256_mullo_epi32(code, values));
}

static inline int32_t sum(eight lanes) {
    int32_t each[8], all = 0;
    _mm256_storeu_si256((__m256i *)each, lanes);
    for (int i = 0; i < 8; ++i) all += each[i];
    return all;
}

static inline void store_scaled(float *to, eight code, float scale) {
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(scale)));
}
#else
#include <arm_neon.h>

typedef int32x4x2_t eight;

static inline eight zeros(void) { return (eight){{vdupq_n_s32(0), vdupq_n_s32(0)}}; }

static inline eight codes(const uint8_t *at) {
    static const int32_t shifts[8] = {0, -3, -6, -9, -12, -15, -18, -21};
    eight out;
    for (int half = 0; half < 2; ++half) {
        uint32x4_t code = vshlq_u32(vdupq_n_u32(three_bytes(at)), vld1q_s32(shifts + 4 * half));
        code = vandq_u32(code, vdupq_n_u32(7));
        out.val[half] = vsubq_s32(vreinterpretq_s32_u32(veorq_u32(code, vdupq_n_u32(4))), vdupq_n_s32(4));
    }
    return out;
}

static inline eight add_products(eight sums, eight code, const int8_t *x) {
    int16x8_t values = vmovl_s8(vld1_s8(x));
    sums.val[0] = vmlaq_s32(sums.val[0], code.val[0], vmovl_s16(vget_low_s16(values)));
    sums.val[1] = vmlaq_s32(sums.val[1], code.val[1], vmovl_s16(vget_high_s16(values)));
    return sums;
}

static inline int32_t sum(eight lanes) { return vaddvq_s32(vaddq_s32(lanes.val[0], lanes.val[1])); }

static inline void store_scaled(float *to, eight code, float scale) {
    vst1q_f32(to, vmulq_n_f32(vcvtq_f32_s32(code.val[0]), scale));
    vst1q_f32(to + 4, vmulq_n_f32(vcvtq_f32_s32(code.val[1]), scale));
}
#endif
