// Products of FP4, and activations on their way to them. Behind values.h and mma_tile.h. In front of this stand ELEMENTS and BYTES of a
// block, RUN (elements that share a scale), CODES_AT and SCALES_AT (their first bytes in it), ELEMENTS_OF_A_WORD and NEXT (which elements of
// a run its first word holds, and how far on those of the next are) and GM_E8M0 or GM_E4M3.
//
// A stage is 128 elements: two steps of gm_mma_16864, sixteen words of codes and a scale for each run. Both operands hold the
// elements of a run in the format's own order, since sums do not depend on it; only scales have to be those of the run. So the
// words are the file's. Word v of a stage is component v / 4 of chunk v % 4, which lane t = v % 4 of a quad loads at once: components
// x and y are its registers of the first step, z and w those of the second.

// Elements of a stage, and its runs.
enum : u32 { STAGE = 128, STAGE_RUNS = STAGE / RUN };
// Stages of activations in shared memory: one in use, two on their way.
enum : u32 { X_STAGES = 3 };

#ifdef GM_E8M0
typedef u32 stage_scales;

// The scale for a largest magnitude, such that its power of two meets that of 6; beyond up to the next, values saturate.
GM_DEVICE u32 scale_for(f32 most) {
    const i32 exponent = (i32)(gm_bits(most) >> 23) - 2;
    return (u32)gm_min(gm_max(exponent, 0), 254);
}

// Half of what it stands for: 2^(bits - 128), of which the first two are subnormal.
GM_DEVICE f32 half_scale(u32 bits) { return bits < 2 ? gm_float(0x200000u << bits) : gm_float((bits - 1) << 23); }

// The bits of a stored scale as tensor cores take them. 255 is NaN there; weights that have it were refused.
GM_DEVICE u32 scale_bits(u32 stored) { return stored == 255 ? 0u : stored; }
#else
typedef u32x2 stage_scales;

// The scale that makes a largest magnitude 6: e4m3 rounded half up on its fourth bit, at most 448.
GM_DEVICE u32 scale_for(f32 most) {
    const f32 scale = gm_min(most / 6.0f, 448.0f);
    const i32 exponent = (i32)(gm_bits(scale) >> 23) - 120;
    if (exponent <= 0) return gm_min((u32)(scale * 512.0f + 0.5f), 7u);
    const u32 rounded = ((u32)exponent << 3 | (gm_bits(scale) >> 20 & 7)) + (gm_bits(scale) >> 19 & 1);
    return rounded >= 15u << 3 ? 0x7eu : rounded;
}

// Half of what it stands for.
GM_DEVICE f32 half_scale(u32 bits) {
    return bits < 8 ? (f32)bits * 0x1p-10f : gm_float(((bits >> 3) + 119) << 23 | (bits & 7) << 20);
}

// The bits of a stored scale as tensor cores take them: 0x7f is NaN there and 0 in the format, which ignores the highest bit.
GM_DEVICE u32 scale_bits(u32 stored) { return (stored & 0x7f) == 0x7f ? 0u : stored & 0x7f; }
#endif

// The code of x among E2M1 times twice `half`: the nearest value, of equally near ones the smaller.
GM_DEVICE u32 nearest_code(f32 x, f32 half) {
    const f32 magnitude = gm_abs(x);
    f32 best = magnitude;
    u32 code = 0;
    GM_UNROLL for (u32 level = 1; level < 8; level++) {
        // 1, 2, 3, 4, 6, 8, 12: E2M1 doubled.
        const f32 doubled = level < 5 ? (f32)level : level == 5 ? 6.0f : level == 6 ? 8.0f : 12.0f;
        const f32 off = gm_abs(doubled * half - magnitude);
        if (off < best) {
            best = off;
            code = level;
        }
    }
    return code == 0 ? 0 : code | (gm_bits(x) >> 31) << 3;
}

// `rows` rows of k activations, `src_stride` values apart, to rows of stages `dst_stride` bytes apart: the codes of all stages, 64 bytes
// each, chunk after chunk, and then their scales. What is behind k is zeros. A thread makes a word; those of a run are
// neighbours in a warp. Values that are not finite are told, and none of their run is used.
GM_DEVICE void quantize_rows(const void *src, u32 from, u64 src_stride, u8 *dst, u64 dst_stride, u32 rows, u64 k, u64 *fault) {
    enum : u32 { OF_A_RUN = RUN / 8 };
    const u32 of_the_first[8] = ELEMENTS_OF_A_WORD;
    const u64 stages = (k + STAGE - 1) / STAGE, words = stages * 16;
    // Whole warps go through the loop together.
    const u64 count = (rows * words + 31) / 32 * 32;
    for (u64 i = (u64)gm_block() * gm_threads() + gm_thread(); i < count; i += (u64)gm_blocks() * gm_threads()) {
        const u64 row = i / words, at = i % words;
        const u32 word = (u32)(at % 16);
        const u64 run = at / OF_A_RUN, first = run * RUN;
        const bool there = row < rows && first < k;
        f32 x[8], most = 0.0f;
        GM_UNROLL for (u32 n = 0; n < 8; n++) {
            const u64 element = first + of_the_first[n] + at % OF_A_RUN * NEXT;
            x[n] = there ? load(src, from, row * src_stride + element) : 0.0f;
            if (!gm_is_finite(x[n])) {
                gm_atomic_min(fault, (row * k + element) * 4);
                x[n] = 0.0f;
            }
            most = gm_max(most, gm_abs(x[n]));
        }
        GM_UNROLL for (u32 mask = 1; mask < OF_A_RUN; mask *= 2) most = gm_max(most, gm_shfl_xor(most, mask));
        const u32 scale = there ? scale_for(most) : 0u;
        const f32 half = half_scale(scale);
        u32 codes = 0;
        GM_UNROLL for (u32 n = 0; n < 8; n++) codes |= nearest_code(x[n], half) << (4 * n);
        if (row >= rows) continue;
        u8 *out = dst + row * dst_stride;
        gm_store((u32 *)(out + at / 16 * 64) + word % 4 * 4 + word / 4, codes);
        if (at % OF_A_RUN == 0) gm_store(out + stages * 64 + run, (u8)scale);
    }
}

// Bytes of a stage of weights.
enum : u32 { STAGE_BYTES = STAGE / ELEMENTS * BYTES };

// The 32 bits at byte `at` behind `from`, which is a word.
GM_DEVICE u32 four_bytes(const u8 *from, u32 at) {
    const u32 *words = (const u32 *)from;
    if (BYTES % 4 == 0 && CODES_AT % 4 == 0) return gm_load(words + at / 4);
    // Where they are a word, both are that word.
    const u64 low = gm_load(words + at / 4), high = gm_load(words + (at + 3) / 4);
    return (u32)((high << 32 | low) >> (at % 4 * 8));
}

// Brings stage `stage` of the weights to shared memory: a thread chunks of the same number of some rows, and its share of their scales.
template <u32 ROWS, u32 THREADS, u32 COUNT>
GM_DEVICE void put_weights(const u8 *const (&rows)[COUNT], GM_SHARED_ARRAY(u32) codes, GM_SHARED_ARRAY(u8) scales, u32 stage, u32 k) {
    // Of a format whose stages are words, nothing but these is added to addresses.
    enum : bool { WORDS = STAGE_BYTES % 4 == 0 };
    enum : u32 { OF_A_BLOCK = ELEMENTS / 8, RUNS_OF_A_BLOCK = ELEMENTS / RUN };
    const u32 chunk = gm_thread() % 4, left = k - stage * STAGE, first = WORDS ? 0 : stage * STAGE_BYTES;
    GM_UNROLL for (u32 n = 0; n < COUNT; n++) {
        const u32 i = gm_thread() + n * THREADS;
        const u8 *from = rows[n] + (WORDS ? stage * STAGE_BYTES : 0);
        u32 w[4];
        GM_UNROLL for (u32 j = 0; j < 4; j++) {
            const u32 word = 4 * j + chunk, at = word / OF_A_BLOCK * BYTES + CODES_AT + word % OF_A_BLOCK * 4;
            w[j] = word * 8 < left ? four_bytes(from, first + at) : 0u;
        }
        gm_shared_put(codes, (stage % 2 * ROWS * 4 + i) * 4, u32x4{w[0], w[1], w[2], w[3]});
        GM_UNROLL for (u32 j = 0; j < STAGE_RUNS; j += 4) {
            const u32 run = j + chunk, at = run / RUNS_OF_A_BLOCK * BYTES + SCALES_AT + run % RUNS_OF_A_BLOCK;
            const u32 stored = run * RUN < left ? (u32)gm_load(from + first + at) : 0u;
            scales[(stage % 2 * ROWS + i / 4) * STAGE_RUNS + run] = (u8)scale_bits(stored);
        }
    }
}

// Starts copies of stage `stage` of the activations: a thread chunks of the same number of some tokens, `rows`, and all scales of others.
template <u32 TOKENS, u32 THREADS, u32 COUNT, u32 SCALES>
GM_DEVICE void copy_activations(const u8 *const (&rows)[COUNT], const u8 *const (&of_scales)[SCALES], GM_SHARED_ARRAY(u32) codes, GM_SHARED_ARRAY(u8) scales, u32 stage, u32 stages) {
    if (stage < stages) {
        GM_UNROLL for (u32 n = 0; n < COUNT; n++) {
            const u32 i = gm_thread() + n * THREADS;
            if (TOKENS * 4 % THREADS == 0 || i < TOKENS * 4)
                gm_copy(codes, (stage % X_STAGES * TOKENS * 4 + i) * 4, (const u32x4 *)rows[n] + stage * 4);
        }
        GM_UNROLL for (u32 n = 0; n < SCALES; n++) {
            const u32 i = gm_thread() + n * THREADS;
            if (TOKENS % THREADS == 0 || i < TOKENS)
                gm_copy(scales, (stage % X_STAGES * TOKENS + i) * STAGE_RUNS, (const stage_scales *)of_scales[n] + stage);
        }
    }
    gm_copy_commit();
}

// A step of both halves of a stage.
#ifdef GM_E8M0
GM_DEVICE void step(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], stage_scales a_scales, u32 a_pair, stage_scales b_scales, u32 b_lane, u32 half) {
    gm_mma_16864_e8m0(c, a, b, a_scales, a_pair, b_scales, b_lane, 2 * half);
}
#else
GM_DEVICE void step(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], stage_scales a_scales, u32 a_pair, stage_scales b_scales, u32 b_lane, u32 half) {
    gm_mma_16864_e4m3(c, a, b, half ? a_scales.y : a_scales.x, a_pair, half ? b_scales.y : b_scales.x, b_lane, 0);
}
#endif

// The outputs of a CUDA block: warps of 32 rows by at most 64 tokens.
template <u32 ROWS, u32 TOKENS, u32 THREADS>
GM_DEVICE void product(const Rows &a, GM_SHARED_ARRAY(u32) w_codes, GM_SHARED_ARRAY(u8) w_scales, GM_SHARED_ARRAY(u32) x_codes, GM_SHARED_ARRAY(u8) x_scales) {
    enum : u32 { ACROSS = (TOKENS + 63) / 64, TILES = TOKENS / ACROSS / 8 };
    const u32 first_row = gm_block() * ROWS, first_token = gm_block_y() * TOKENS, stages = (a.k + STAGE - 1) / STAGE;
    const u32 row = gm_warp() / ACROSS * 32, token = gm_warp() % ACROSS * (TILES * 8);
    const u32 g = gm_lane() / 4, t = gm_lane() % 4;
    // What the thread brings to shared memory, stage by stage. Out-of-range rows and tokens are clamped; their results are discarded.
    const u8 *w_rows[ROWS * 4 / THREADS], *x_rows[(TOKENS * 4 + THREADS - 1) / THREADS], *x_scale_rows[(TOKENS + THREADS - 1) / THREADS];
    GM_UNROLL for (u32 n = 0; n < ROWS * 4 / THREADS; n++)
        w_rows[n] = a.blocks + gm_min(first_row + (gm_thread() + n * THREADS) / 4, a.n - 1) * a.row_bytes;
    GM_UNROLL for (u32 n = 0; n < (TOKENS * 4 + THREADS - 1) / THREADS; n++)
        x_rows[n] = (const u8 *)a.x + gm_min(first_token + (gm_thread() + n * THREADS) / 4, a.m - 1) * a.x_stride + gm_thread() % 4 * 16;
    GM_UNROLL for (u32 n = 0; n < (TOKENS + THREADS - 1) / THREADS; n++)
        x_scale_rows[n] = (const u8 *)a.x + gm_min(first_token + gm_thread() + n * THREADS, a.m - 1) * a.x_stride + stages * 64;
    f32 sums[2][TILES][4];
    GM_UNROLL for (u32 i = 0; i < 2; i++)
        GM_UNROLL for (u32 j = 0; j < TILES; j++)
            GM_UNROLL for (u32 c = 0; c < 4; c++) sums[i][j][c] = 0.0f;
    copy_activations<TOKENS, THREADS>(x_rows, x_scale_rows, x_codes, x_scales, 0, stages);
    copy_activations<TOKENS, THREADS>(x_rows, x_scale_rows, x_codes, x_scales, 1, stages);
    // Weights of a stage are on their way to shared memory before the stage in front of it is multiplied.
    GM_NO_UNROLL for (u32 next = 0; next <= stages; next++) {
        if (next > 0) {
            gm_copy_wait<1>();
            // All see the stage, and all are through the one before, whose places are filled now.
            gm_sync();
            copy_activations<TOKENS, THREADS>(x_rows, x_scale_rows, x_codes, x_scales, next + 1, stages);
        }
        if (next < stages) put_weights<ROWS, THREADS>(w_rows, w_codes, w_scales, next, a.k);
        if (next == 0) continue;
        const u32 w_at = (next - 1) % 2 * ROWS + row, x_at = (next - 1) % X_STAGES * TOKENS + token;
        u32x4 w[4];
        GM_UNROLL for (u32 i = 0; i < 4; i++) w[i] = gm_shared_get<u32x4>(w_codes, ((w_at + 8 * i + g) * 4 + t) * 4);
        // A lane has the scales of row 8t + g: those of the first sixteen rows are in the first two lanes of a quad.
        const stage_scales w_scale = gm_shared_get<stage_scales>(w_scales, (w_at + 8 * t + g) * STAGE_RUNS);
        GM_UNROLL for (u32 four = 0; four < TILES; four += 4) {
            const stage_scales x_scale = gm_shared_get<stage_scales>(x_scales, (x_at + 8 * (four + t) + g) * STAGE_RUNS);
            GM_UNROLL for (u32 lane = 0; lane < 4; lane++) {
                const u32 j = four + lane;
                const u32x4 v = gm_shared_get<u32x4>(x_codes, ((x_at + 8 * j + g) * 4 + t) * 4);
                GM_UNROLL for (u32 i = 0; i < 2; i++) {
                    const u32 a0[4] = {w[2 * i].x, w[2 * i + 1].x, w[2 * i].y, w[2 * i + 1].y}, b0[2] = {v.x, v.y};
                    const u32 a1[4] = {w[2 * i].z, w[2 * i + 1].z, w[2 * i].w, w[2 * i + 1].w}, b1[2] = {v.z, v.w};
                    step(sums[i][j], a0, b0, w_scale, i, x_scale, lane, 0);
                    step(sums[i][j], a1, b1, w_scale, i, x_scale, lane, 1);
                }
            }
        }
    }
    store_tile(a, sums, first_row + row, first_token + token);
}
