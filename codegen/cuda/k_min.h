// The quantizer `k-min`: a warp for each block, a lane for each run. The arithmetic is that of the runtime's `search` module,
// operation by operation, so that the bytes are the same.
//
// Behind device.h and the sizes of a block. The unit defines WARPS of a CUDA block, WORDS that a block's bytes take, STEPS of the
// search, the largest code TOP and integers RUN_TOP and MIN_TOP, and the number of the fault SCALE_OVERFLOW. What else depends on the
// format and the quantizer's parameters are its functions: `levels_of` a step, `error_of` a difference, `floor_of` the weights,
// `stored_value` and `stored_bits` of a scale or minimum, `run_scale_bits` and `run_min_bits`, and `put_...`, which write fields.

GM_DEVICE f32 nearest(f32 v, f32 high) { return gm_min(gm_max(gm_rint(v), 0.0f), high); }
GM_DEVICE f32 weight(f32 floor, f32 x) { return floor + gm_abs(x); }

// The summed error of a run under a scale and a minimum.
GM_DEVICE f32 error(const f32 (&x)[RUN], f32 floor, const u8 (&codes)[RUN], f32 scale, f32 min) {
    f32 sum = 0.0f;
    for (u32 i = 0; i < RUN; i++) {
        const f32 off = scale * (f32)codes[i] + min - x[i];
        sum += weight(floor, x[i]) * error_of(off);
    }
    return sum;
}

// The scale and the minimum (as what is subtracted) of one run, and its codes.
GM_DEVICE f32x2 fit(const f32 (&x)[RUN], u8 (&codes)[RUN]) {
    f32 squares = 0.0f;
    for (u32 i = 0; i < RUN; i++) squares += x[i] * x[i];
    const f32 floor = floor_of(squares);
    f32 min = x[0], max = x[0], sum_w = 0.0f, sum_x = 0.0f;
    for (u32 i = 0; i < RUN; i++) {
        const f32 w = weight(floor, x[i]);
        if (x[i] < min) min = x[i];
        if (x[i] > max) max = x[i];
        sum_w += w;
        sum_x += w * x[i];
    }
    if (min > 0.0f) min = 0.0f;
    for (u32 i = 0; i < RUN; i++) codes[i] = 0;
    if (max == min) return f32x2{0.0f, -min};
    const f32 per = (f32)TOP / (max - min);
    if (!gm_is_finite(per)) return f32x2{0.0f, 0.0f};
    f32 scale = 1.0f / per;
    for (u32 i = 0; i < RUN; i++) codes[i] = (u8)gm_to_i32(nearest(per * (x[i] - min), (f32)TOP));
    f32 best = error(x, floor, codes, scale, min);
    for (u32 step = 0; step <= STEPS; step++) {
        // With the minimum that is best so far, as the reference has it.
        const f32 per = levels_of(step) / (max - min);
        f32 sum_l = 0.0f, sum_ll = 0.0f, sum_xl = 0.0f;
        u8 trial[RUN];
        for (u32 i = 0; i < RUN; i++) {
            const f32 w = weight(floor, x[i]), l = nearest(per * (x[i] - min), (f32)TOP);
            trial[i] = (u8)gm_to_i32(l);
            sum_l += w * l;
            sum_ll += w * l * l;
            sum_xl += w * l * x[i];
        }
        const f32 d = sum_w * sum_ll - sum_l * sum_l;
        if (d > 0.0f) {
            f32 this_scale = (sum_w * sum_xl - sum_x * sum_l) / d;
            f32 this_min = (sum_ll * sum_x - sum_l * sum_xl) / d;
            if (this_min > 0.0f) {
                this_min = 0.0f;
                this_scale = sum_xl / sum_ll;
            }
            const f32 now = error(x, floor, trial, this_scale, this_min);
            if (now < best) {
                for (u32 i = 0; i < RUN; i++) codes[i] = trial[i];
                best = now;
                scale = this_scale;
                min = this_min;
            }
        }
    }
    return f32x2{scale, -min};
}

// A common step for the lanes' numbers (none negative), and the own number in it; a lane without a run has 0.
GM_DEVICE f32x2 factor(f32 v, f32 top) {
    const u32 broken = gm_ballot(!gm_is_finite(v));
    if (broken != 0) {
        u32 lane = 0;
        while ((broken >> lane & 1) == 0) lane++;
        return f32x2{gm_shfl(v, lane), 0.0f};
    }
    f32 max = 0.0f;
    for (u32 lane = 0; lane < RUNS; lane++) {
        const f32 other = gm_shfl(v, lane);
        if (other > max) max = other;
    }
    const f32 inverse = top / max;
    const f32 used = max > 0.0f && gm_is_finite(inverse) ? inverse : 0.0f;
    return f32x2{max / top, nearest(used * v, top)};
}

// All blocks of `src`, whose rows have k elements, to `dst`.
GM_DEVICE void quantize_blocks(GM_SHARED_ARRAY(u32) all_words, const f32 *src, u8 *dst, u32 rows, u32 k, u64 *fault) {
    const u32 words = gm_warp() * WORDS;
    const u64 count = (u64)rows * (k / ELEMENTS);
    for (u64 b = (u64)gm_block() * WARPS + gm_warp(); b < count; b += (u64)gm_blocks() * WARPS) {
        u8 *block = dst + b * BYTES;
        const u32 run = gm_lane();
        for (u32 i = gm_lane(); i < WORDS; i += 32) all_words[words + i] = 0;
        f32 x[RUN];
        u8 codes[RUN];
        u32 worst = 0xffffffffu;
        for (u32 i = 0; i < RUN; i++) {
            x[i] = run < RUNS ? gm_load(src + b * ELEMENTS + run * RUN + i) : 0.0f;
            if (!gm_is_finite(x[i]) && worst == 0xffffffffu) worst = run * RUN + i;
        }
        for (u32 mask = 16; mask > 0; mask /= 2) worst = gm_min(worst, gm_shfl_xor(worst, mask));
        if (worst != 0xffffffffu) {
            if (gm_lane() == 0) gm_atomic_min(fault, (b * ELEMENTS + worst) * 4);
            continue;
        }
        const f32x2 found = fit(x, codes);
        const f32x2 scales = factor(found.x, (f32)RUN_TOP), mins = factor(found.y, (f32)MIN_TOP);
        const f32 step = stored_value(scales.x) * scales.y, offset = stored_value(mins.x) * mins.y;
        if (!gm_is_finite(stored_value(scales.x)) || !gm_is_finite(stored_value(mins.x))) {
            if (gm_lane() == 0) gm_atomic_min(fault, b * ELEMENTS * 4 + SCALE_OVERFLOW);
            continue;
        }
        gm_sync_warp();
        if (gm_lane() == 0) {
            put_scale(all_words, words, 0, 0, stored_bits(scales.x));
            put_min(all_words, words, 0, 0, stored_bits(mins.x));
        }
        if (run < RUNS) {
            put_run_scale(all_words, words, 0, run, run_scale_bits(scales.y));
            put_run_min(all_words, words, 0, run, run_min_bits(mins.y));
            for (u32 n = 0; n < RUN; n++) {
                const u32 i = run * RUN + n;
                const u32 code = step != 0.0f ? (u32)gm_to_i32(nearest((x[n] + offset) / step, (f32)TOP)) : codes[n];
                put_code(all_words, words, 0, i, code);
            }
        }
        gm_sync_warp();
        for (u32 i = gm_lane(); i < BYTES; i += 32) gm_store(block + i, (u8)(all_words[words + i / 4] >> (8 * (i % 4))));
        gm_sync_warp();
    }
}
