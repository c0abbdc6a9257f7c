// Products of few tokens, weights and products in f32. Behind rows.h and FMA_ROWS, the rows of a CUDA block.
//
// The threads of a CUDA block share the k of its rows, so that an activation is read once for them. Integers are multiplied as they are,
// and the run's scale comes in once for all that a thread takes.

// COUNT activations from element i on.
template <u32 COUNT> GM_DEVICE void activations(const Rows &a, u64 i, f32 (&x)[COUNT]) {
    const bool f16 = a.x_type == 1;
    const auto widened = [&](u16 bits) { return f16 ? gm_f16_to_f32(bits) : gm_bf16_to_f32(bits); };
    if (a.x_type == 0) {
        const f32 *from = (const f32 *)a.x + i;
        if constexpr (COUNT % 4 == 0) {
            GM_UNROLL for (u32 j = 0; j < COUNT; j += 4) {
                const f32x4 v = gm_load((const f32x4 *)(from + j));
                x[j] = v.x; x[j + 1] = v.y; x[j + 2] = v.z; x[j + 3] = v.w;
            }
        } else {
            GM_UNROLL for (u32 j = 0; j < COUNT; j++) x[j] = gm_load(from + j);
        }
    } else {
        const u16 *from = (const u16 *)a.x + i;
        if constexpr (COUNT % 4 == 0) {
            GM_UNROLL for (u32 j = 0; j < COUNT; j += 4) {
                const u32x2 v = gm_load((const u32x2 *)(from + j));
                const u32 two[2] = {v.x, v.y};
                GM_UNROLL for (u32 h = 0; h < 4; h++) x[j + h] = widened((u16)(two[h / 2] >> (16 * (h % 2))));
            }
        } else {
            GM_UNROLL for (u32 j = 0; j < COUNT; j++) x[j] = widened(gm_load(from + j));
        }
    }
}

// The outputs of a CUDA block. `sums` has room for a sum of each warp for each output.
template <u32 TOKENS> GM_DEVICE void fma_product(const Rows &a, GM_SHARED_ARRAY(f32) sums) {
    const u32 first_row = gm_block() * FMA_ROWS, first_token = gm_block_y() * TOKENS;
    f32 y[FMA_ROWS][TOKENS];
    GM_UNROLL for (u32 r = 0; r < FMA_ROWS; r++) GM_UNROLL for (u32 t = 0; t < TOKENS; t++) y[r][t] = 0.0f;
    GM_NO_UNROLL for (u32 e = gm_thread() * AT_ONCE; e < a.k; e += gm_threads() * AT_ONCE) {
        const u32 at = e / ELEMENTS * BYTES, in_block = e % ELEMENTS;
        f32 q[FMA_ROWS][AT_ONCE], s[FMA_ROWS] = {};
        GM_UNROLL for (u32 r = 0; r < FMA_ROWS; r++) {
            // Out-of-range rows are clamped; their results are discarded.
            const u32 row = gm_min(first_row + r, a.n - 1);
            const u8 *bytes = a.blocks + row * a.row_bytes;
            // With an offset, the f32 that the format says is the difference; a factor for all would say another number.
            if (HAS_OFFSET) {
                weights(bytes, at, in_block, gm_load(a.outer + row), q[r]);
            } else {
                integers(bytes, at, in_block, q[r]);
                s[r] = scale(bytes, at, in_block / RUN, gm_load(a.outer + row));
            }
        }
        GM_UNROLL for (u32 t = 0; t < TOKENS; t++) {
            if (first_token + t >= a.m) continue;
            f32 x[AT_ONCE];
            activations(a, (first_token + t) * a.x_stride + e, x);
            if (gm_block() == 0) {
                GM_UNROLL for (u32 j = 0; j < AT_ONCE; j++)
                    if (!gm_is_finite(x[j])) gm_atomic_min(a.fault, (a.x_first + (first_token + t) * (u64)a.k + e + j) * 4);
            }
            GM_UNROLL for (u32 r = 0; r < FMA_ROWS; r++) {
                f32 part = 0.0f;
                GM_UNROLL for (u32 j = 0; j < AT_ONCE; j++) part = gm_fma(q[r][j], x[j], part);
                y[r][t] = HAS_OFFSET ? y[r][t] + part : gm_fma(s[r], part, y[r][t]);
            }
        }
    }
    GM_UNROLL for (u32 r = 0; r < FMA_ROWS; r++) {
        GM_UNROLL for (u32 t = 0; t < TOKENS; t++) {
            f32 v = y[r][t];
            GM_UNROLL for (u32 mask = 16; mask > 0; mask /= 2) v += gm_shfl_xor(v, mask);
            if (gm_lane() == 0) sums[(gm_warp() * FMA_ROWS + r) * TOKENS + t] = v;
        }
    }
    gm_sync();
    const u32 row = first_row + gm_thread() / TOKENS, token = first_token + gm_thread() % TOKENS;
    if (gm_thread() < FMA_ROWS * TOKENS && row < a.n && token < a.m) {
        f32 v = 0.0f;
        for (u32 w = 0; w < gm_threads() / 32; w++) v += sums[w * FMA_ROWS * TOKENS + gm_thread()];
        gm_store(a.y + (u64)token * a.n + row, a.bias == nullptr ? v : v + gm_load(a.bias + row));
    }
}

