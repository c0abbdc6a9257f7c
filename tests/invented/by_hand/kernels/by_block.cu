// A thread for each block; what a value is comes from the format's spec.
GM_KERNEL(256) dequantize_by_block(const u8 *src, f32 *dst, u32 rows, u32 k, u64 row_bytes, u64 *fault) {
    const u64 blocks = (u64)rows * k / ELEMENTS, step = (u64)gm_blocks() * gm_threads();
    for (u64 b = (u64)gm_block() * gm_threads() + gm_thread(); b < blocks; b += step) {
        bool bad = false;
        for (u32 e = 0; e < ELEMENTS; ++e) {
            const i32 v = value(src + b * BYTES, e, bad);
            gm_store(dst + b * ELEMENTS + e, scale(src + b * BYTES, e / RUN, 1.0f) * (f32)v);
        }
    }
    (void)row_bytes;
    (void)fault;
}
GM_EXPORT(dequantize_by_block)
