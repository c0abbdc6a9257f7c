// The two kernels that find the steps of rows or of a tensor, behind quantize.h: statistics of CHUNK values each, and what they give
// together.

// The partial statistic of each chunk: the sum of magnitudes, or the key of the largest.
GM_DEVICE void quantize_chunks(const f32 *src, u32 rows, u64 len, u64 *partial, u64 *fault) {
    const u64 chunks = (len + CHUNK - 1) / CHUNK;
    for (u64 c = (u64)gm_block() * WARPS + gm_warp(); c < rows * chunks; c += (u64)gm_blocks() * WARPS) {
        const u64 start = c / chunks * len + c % chunks * CHUNK;
        const u64 left = len - c % chunks * CHUNK;
        const u32 n = left < CHUNK ? (u32)left : CHUNK;
        const f32 *x = src + start;
        const Seen seen = look_at(x, n);
        if (seen.worst != 0xffffffffu && gm_lane() == 0) gm_atomic_min(fault, (start + seen.worst) * 4);
        const u64 result = OF == ABS_MEAN ? gm_bits(abs_sum(x, n)) : seen.key;
        if (gm_lane() == 0) gm_store(partial + c, result);
    }
}

// The statistic of row `row` of `len` values. One warp.
GM_DEVICE f32 statistic_of_row(const f32 *src, u64 row, u64 len, const u64 *partial) {
    const u64 chunks = (len + CHUNK - 1) / CHUNK;
    if (OF == ABS_MEAN) {
        // In order: the sum of each chunk was taken at once, the sums of chunks are added one by one.
        f64 total = 0.0;
        for (u64 first = 0; first < chunks; first += 32) {
            const f64 mine = first + gm_lane() < chunks ? gm_double(gm_load(partial + row * chunks + first + gm_lane())) : 0.0;
            const u32 n = chunks - first < 32 ? (u32)(chunks - first) : 32;
            for (u32 lane = 0; lane < n; lane++) total += gm_shfl(mine, lane);
        }
        return len == 0 ? 0.0f : (f32)(total / (f64)len);
    }
    u64 key = 0, at = 0xffffffffffffffffull;
    for (u64 c = gm_lane(); c < chunks; c += 32) {
        const u64 m = gm_load(partial + row * chunks + c);
        if ((m >> 32) > (key >> 32)) { key = m; at = c; }
    }
    const u64 most = warp_max(key) >> 32;
    if (OF == ABS_MAX) return gm_float((u32)most);
    // Of the lanes that hold the largest, the one with the first chunk.
    u64 first = (key >> 32) == most ? at : 0xffffffffffffffffull;
    for (u32 mask = 16; mask > 0; mask /= 2) first = gm_min(first, gm_shfl_xor(first, mask));
    if (most == 0) return 0.0f;
    return gm_load(src + row * len + first * CHUNK + position_of(gm_load(partial + row * chunks + first)));
}

// The step of each row, a CUDA block of one warp for each.
GM_DEVICE void quantize_finish(const f32 *src, u64 len, const u64 *partial, f32x2 *steps, u64 *fault) {
    const u64 row = gm_block();
    const f32 s = statistic_of_row(src, row, len, partial);
    const f32x2 step = step_of(s);
    if (gm_lane() == 0) {
        // Where the statistic itself is not finite, a value was not, and is reported.
        if (!gm_is_finite(step.y) && gm_is_finite(s)) gm_atomic_min(fault, row * len * 4 + SCALE_OVERFLOW);
        gm_store(steps + row, step);
    }
}

