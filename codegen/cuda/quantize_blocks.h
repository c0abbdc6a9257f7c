// A quantizer of which a warp does several blocks at once, behind quantize.h: four elements to a lane. Their bytes are put together in shared
// memory, from where they go out sixteen at a time.
//
// The unit defines LANES of a block, the number of VECTORS of four elements that each of them has, BLOCKS of a warp, WORDS that their
// bytes take, and `put_codes`, which writes four codes into the words of a block.

// All blocks of `src`, whose rows have k elements. A warp has WORDS of `all_words`.
template <class Words>
GM_DEVICE void quantize_blocks(
    Words all_words, const f32 *src, u8 *dst, u32 rows, u32 k, u64 row_bytes, const f32x2 *steps, u64 *fault
) {
    const u32 words = gm_warp() * WORDS, part = gm_lane() % LANES;
    const u64 count = (u64)rows * (k / ELEMENTS);
    for (u64 first = ((u64)gm_block() * WARPS + gm_warp()) * BLOCKS; first < count; first += (u64)gm_blocks() * WARPS * BLOCKS) {
        for (u32 i = gm_lane(); i < WORDS; i += 32) all_words[words + i] = 0;
        gm_sync_warp();
        for (u32 pass = 0; pass < BLOCKS; pass += 32 / LANES) {
            // Lanes without a block do the first one over and put nothing.
            const u32 within = pass + gm_lane() / LANES;
            const u64 b = first + within;
            const bool there = b < count;
            const i32 base = (i32)(within * BYTES * 8);
            const f32 *x = src + (there ? b : first) * ELEMENTS;
            f32x4 v[VECTORS];
            GM_UNROLL for (u32 j = 0; j < VECTORS; j++) v[j] = gm_load_once((const f32x4 *)x + j * LANES + part);
            u32 worst = 0xffffffffu;
            u64 key = 0;
            GM_UNROLL for (u32 j = 0; j < VECTORS; j++) {
                const f32 four[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
                GM_UNROLL for (u32 n = 0; n < 4; n++) {
                    const u32 e = (j * LANES + part) * 4 + n;
                    if (!gm_is_finite(four[n])) worst = gm_min(worst, e);
                    key = gm_max(key, magnitude(four[n], e));
                }
            }
            GM_UNROLL for (u32 mask = LANES / 2; mask > 0; mask /= 2) {
                worst = gm_min(worst, gm_shfl_xor(worst, mask));
                if (!STEPS_IN_FRONT) key = gm_max(key, gm_shfl_xor(key, mask));
            }
            bool ok = there && worst == 0xffffffffu;
            if (there && !ok && part == 0) gm_atomic_min(fault, (b * ELEMENTS + worst) * 4);
            const f32x2 step = step_of_block(x, key, steps, b, k);
            put_outer(dst, rows, k, row_bytes, b, step.y, fault);
            if constexpr (HAS_SCALE) {
                const u32 bits = stored_bits(step.y);
                if (ok && !holds(bits)) {
                    if (part == 0) gm_atomic_min(fault, b * ELEMENTS * 4 + SCALE_OVERFLOW);
                    ok = false;
                }
                if (ok && part == 0) put_scale(all_words, words, base, 0, bits);
            }
            if (ok) {
                GM_UNROLL for (u32 j = 0; j < VECTORS; j++) {
                    const f32 four[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
                    u32 codes = 0;
                    GM_UNROLL for (u32 n = 0; n < 4; n++) codes |= code_of(four[n], step.x) << (8 * n);
                    put_codes(all_words, words, base, (j * LANES + part) * 4, codes);
                }
            }
        }
        gm_sync_warp();
        const u32 bytes = (u32)gm_min(count - first, (u64)BLOCKS) * BYTES;
        u8 *out = dst + first * BYTES;
        for (u32 i = gm_lane(); i < bytes / 16; i += 32) gm_store((u32x4 *)out + i, gm_shared_get<u32x4>(all_words, words + i * 4));
        for (u32 i = bytes / 16 * 16 + gm_lane(); i < bytes; i += 32) gm_store(out + i, (u8)(all_words[words + i / 4] >> (8 * (i % 4))));
        gm_sync_warp();
    }
}

