// What quantizers that round have in common. Behind the sizes of a block, place.h, statistic.h and magnitude.h.
//
// The unit defines WARPS of a CUDA block; OF, the statistic that steps are made of; STEPS_IN_FRONT, whether steps are those of rows or of
// the tensor, which kernels in front have computed; HAS_SCALE, whether blocks have one; OUTER_BYTES of a row's or the tensor's number,
// or 0, and those of its TAIL; and the number of the fault SCALE_OVERFLOW. What else depends on the format and the rule are its functions:
// `step_of` a statistic, which gives what elements are multiplied with or divided by and what is stored; `code_of` an element;
// `stored_bits` of a scale, and whether a number `holds`; `put_scale` and `put_code`, which write fields into the words of a block.

// What a warp sees of some values: the position of the first that is not finite, or 0xffffffff, and the key of the largest.
struct Seen {
    u32 worst;
    u64 key;
};

// Of the n values at x. A warp.
GM_DEVICE Seen look_at(const f32 *x, u32 n) {
    u32 worst = 0xffffffffu;
    u64 key = 0;
    for (u32 i = gm_lane(); i < n; i += 32) {
        const f32 v = gm_load(x + i);
        if (!gm_is_finite(v) && i < worst) worst = i;
        const u64 m = magnitude(v, i);
        key = m > key ? m : key;
    }
    return {warp_min(worst), warp_max(key)};
}

// The step of block b, whose elements are at x and whose largest has the key `key`. A warp.
GM_DEVICE f32x2 step_of_block(const f32 *x, u64 key, const f32x2 *steps, u64 b, u32 k) {
    if (STEPS_IN_FRONT) return gm_load(steps + (HEADER == 0 ? 0 : b / (k / ELEMENTS)));
    if (OF == ABS_MAX) return step_of(magnitude_of(key));
    if (OF == SIGNED_ABS_MAX) return step_of(magnitude_of(key) == 0.0f ? 0.0f : gm_load(x + position_of(key)));
    return step_of((f32)(abs_sum(x, ELEMENTS) / (f64)ELEMENTS));
}

// Writes the number of a row or of the tensor, if block b is the first of it.
GM_DEVICE void put_outer(u8 *dst, u32 rows, u32 k, u64 row_bytes, u64 b, f32 stored, u64 *fault) {
    const bool is_first = HEADER == 0 ? b == 0 : b % (k / ELEMENTS) == 0;
    if (OUTER_BYTES == 0 || !is_first || gm_lane() != 0) return;
    u8 *at = dst + (HEADER == 0 ? rows * row_bytes : b / (k / ELEMENTS) * row_bytes);
    const u32 bits = stored_bits(stored);
    if (!holds(bits) && gm_is_finite(stored)) gm_atomic_min(fault, b * ELEMENTS * 4 + SCALE_OVERFLOW);
    for (u32 i = 0; i != OUTER_BYTES; i++) gm_store(at + i, (u8)(bits >> (8 * i)));
    for (u32 i = OUTER_BYTES; i != TAIL; i++) gm_store(at + i, (u8)0);
}

