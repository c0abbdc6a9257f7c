// Weights of a format's own rows as f32, for products of floats. Behind what decodes the format and `Rows`. The unit defines AT_ONCE,
// the elements that are computed at once and are in one run; `number`, an integer as f32; IS_FP4; CHECK_THREADS; and the numbers of the
// faults INVALID_CODE and BEYOND.

// The integers of elements e to e + AT_ONCE - 1 as f32; the first whose code means nothing, or AT_ONCE.
template <class Bytes> GM_DEVICE u32 integers(const Bytes &bytes, u32 at, u32 e, f32 (&q)[AT_ONCE]) {
    u32 bad = AT_ONCE;
    GM_UNROLL for (u32 i = 0; i < AT_ONCE; i += N) {
        i32 v[N];
        const u32 first = values(bytes, at, e + i, v);
        if (first < N && bad == AT_ONCE) bad = i + first;
        GM_UNROLL for (u32 j = 0; j < N; j++) q[i + j] = number(v[j]);
    }
    return bad;
}

// The weights of the same, as `dequantize` has them.
template <class Bytes> GM_DEVICE u32 weights(const Bytes &bytes, u32 at, u32 e, f32 outer, f32 (&w)[AT_ONCE]) {
    const u32 bad = integers(bytes, at, e, w);
    const f32 s = scale(bytes, at, e / RUN, outer);
    if constexpr (HAS_OFFSET) {
        const f32 o = offset(bytes, at, e / RUN, outer);
        GM_UNROLL for (u32 i = 0; i < AT_ONCE; i++) w[i] = s * w[i] - o;
    } else {
        GM_UNROLL for (u32 i = 0; i < AT_ONCE; i++) w[i] = s * w[i];
    }
    return bad;
}

// Whether all weights can be used: codes mean something (else INVALID_CODE), and numbers of type `type` hold them (else BEYOND).
GM_DEVICE void check_weights(const u8 *blocks, u64 row_bytes, const f32 *outer, u32 n, u32 k, u32 type, u64 *fault) {
    const u64 count = (u64)n * (k / AT_ONCE);
    for (u64 i = (u64)gm_block() * CHECK_THREADS + gm_thread(); i < count; i += (u64)gm_blocks() * CHECK_THREADS) {
        const u64 row = i / (k / AT_ONCE);
        const u32 e = (u32)(i % (k / AT_ONCE)) * AT_ONCE;
        const u8 *bytes = blocks + row * row_bytes;
        f32 w[AT_ONCE];
        const u32 bad = weights(bytes, e / ELEMENTS * BYTES, e % ELEMENTS, gm_load(outer + row), w);
        if (bad < AT_ONCE) gm_atomic_min(fault, (row * k + e + bad) * 4 + INVALID_CODE);
        GM_UNROLL for (u32 j = 0; j < AT_ONCE; j++) {
            f32 held = w[j];
            if (type == 1) held = gm_f16_to_f32(gm_f32_to_f16(w[j]));
            if (type == 2) held = gm_bf16_to_f32(gm_f32_to_bf16(w[j]));
            // Twice the largest scale of FP4 is no number.
            if (IS_FP4 && type == 3 && gm_abs(w[j]) >= 0x1p127f) held = gm_float(0x7f800000u);
            if (bad == AT_ONCE && !gm_is_finite(held)) gm_atomic_min(fault, (row * k + e + j) * 4 + BEYOND);
        }
    }
}

