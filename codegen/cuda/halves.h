// Products of many tokens, weights rounded to halves. Behind rows.h and mma_tile.h.
//
// The threads of a CUDA block round a stage of its rows' weights to halves in shared memory while tensor cores multiply the stage
// before; activations are copied there two stages ahead. A row of a stage is 64 bytes, of which a lane takes the sixteen that start at
// 16 t: what `mma.m16n8k16` calls k 2t, 2t+1, 2t+8 and 2t+9 of two steps are then eight neighbours, in weights and activations alike, so
// that each is one load for two steps and without bank conflicts.
//
// `Tile` is what a kernel says of itself: ROWS, TOKENS and THREADS of a CUDA block, warps ACROSS that share rows; `two`, which makes a
// word of two halves; and `multiply`, the instruction.

// k of a stage: two steps of `mma.m16n8k16`. Rows of a warp. Stages of activations in shared memory: one in use, two on their way.
enum : u32 { STAGE = 32, WARP_ROWS = 32, X_STAGES = 3 };

// Weights e to e + 7 of a row with k of them as halves; those behind k are zeros, as whole runs of AT_ONCE are.
template <class Tile> GM_DEVICE u32x4 eight_halves(const u8 *bytes, u32 e, u32 k, f32 outer) {
    f32 all[8];
    GM_UNROLL for (u32 j = 0; j < 8; j += AT_ONCE) {
        f32 w[AT_ONCE];
        GM_UNROLL for (u32 i = 0; i < AT_ONCE; i++) w[i] = 0.0f;
        if (e + j < k) weights(bytes, (e + j) / ELEMENTS * BYTES, (e + j) % ELEMENTS, outer, w);
        GM_UNROLL for (u32 i = 0; i < AT_ONCE; i++) all[j + i] = w[i];
    }
    return u32x4{Tile::two(all[0], all[1]), Tile::two(all[2], all[3]), Tile::two(all[4], all[5]), Tile::two(all[6], all[7])};
}

// Starts copies of stage `stage` of the tokens' activations, which have room for whole stages. Out-of-range tokens
// are clamped; their results are discarded.
template <class Tile> GM_DEVICE void copy_halves(const Rows &a, GM_SHARED_ARRAY(u16) x, u32 stage, u32 first_token) {
    if (stage * STAGE < a.k) {
        GM_UNROLL for (u32 i = gm_thread(); i < Tile::TOKENS * 4; i += Tile::THREADS) {
            const u32 token = gm_min(first_token + i / 4, a.m - 1);
            const u16 *from = (const u16 *)a.x + token * a.x_stride + stage * STAGE + i % 4 * 8;
            gm_copy(x, (stage % X_STAGES * Tile::TOKENS * 4 + i) * 8, (const u32x4 *)from);
        }
    }
    gm_copy_commit();
}

// Rounds stage `stage` of the rows' weights into shared memory, eight neighbours of a row at a time.
template <class Tile> GM_DEVICE void round_weights(const Rows &a, GM_SHARED_ARRAY(u16) rows, u32 stage, u32 first_row) {
    GM_UNROLL for (u32 i = gm_thread(); i < Tile::ROWS * 4; i += Tile::THREADS) {
        const u32 row = gm_min(first_row + i / 4, a.n - 1), e = stage * STAGE + i % 4 * 8;
        const u32x4 halves = eight_halves<Tile>(a.blocks + row * a.row_bytes, e, a.k, gm_load(a.outer + row));
        gm_shared_put(rows, (stage % 2 * Tile::ROWS * 4 + i) * 8, halves);
    }
}

// The outputs of a CUDA block. `rows` has room for two stages of weights, `x` for X_STAGES of activations.
template <class Tile> GM_DEVICE void product_of_halves(const Rows &a, GM_SHARED_ARRAY(u16) rows, GM_SHARED_ARRAY(u16) x) {
    enum : u32 { TILES = Tile::TOKENS / Tile::ACROSS / 8 };
    const u32 first_row = gm_block() * Tile::ROWS, first_token = gm_block_y() * Tile::TOKENS;
    const u32 stages = (a.k + STAGE - 1) / STAGE;
    const u32 row = gm_warp() / Tile::ACROSS * WARP_ROWS, token = gm_warp() % Tile::ACROSS * (TILES * 8);
    const u32 g = gm_lane() / 4, t = gm_lane() % 4;
    f32 sums[2][TILES][4];
    GM_UNROLL for (u32 i = 0; i < 2; i++)
        GM_UNROLL for (u32 j = 0; j < TILES; j++)
            GM_UNROLL for (u32 c = 0; c < 4; c++) sums[i][j][c] = 0.0f;
    copy_halves<Tile>(a, x, 0, first_token);
    copy_halves<Tile>(a, x, 1, first_token);
    // Weights of a stage are rounded before the stage in front of it is multiplied.
    GM_NO_UNROLL for (u32 next = 0; next <= stages; next++) {
        if (next > 0) {
            gm_copy_wait<1>();
            // All see the stage, and all are through the one before, whose places are filled now.
            gm_sync();
            copy_halves<Tile>(a, x, next + 1, first_token);
        }
        if (next < stages) round_weights<Tile>(a, rows, next, first_row);
        if (next == 0) continue;
        const u32 stage = next - 1;
        u32x4 w[4];
        GM_UNROLL for (u32 i = 0; i < 4; i++)
            w[i] = gm_shared_get<u32x4>(rows, ((stage % 2 * Tile::ROWS + row + 8 * i + g) * 4 + t) * 8);
        GM_UNROLL for (u32 j = 0; j < TILES; j++) {
            const u32x4 v = gm_shared_get<u32x4>(x, ((stage % X_STAGES * Tile::TOKENS + token + 8 * j + g) * 4 + t) * 8);
            GM_UNROLL for (u32 i = 0; i < 2; i++) {
                const u32 a0[4] = {w[2 * i].x, w[2 * i + 1].x, w[2 * i].y, w[2 * i + 1].y}, b0[2] = {v.x, v.y};
                const u32 a1[4] = {w[2 * i].z, w[2 * i + 1].z, w[2 * i].w, w[2 * i + 1].w}, b1[2] = {v.z, v.w};
                Tile::multiply(sums[i][j], a0, b0);
                Tile::multiply(sums[i][j], a1, b1);
            }
        }
    }
    store_tile(a, sums, first_row + row, first_token + token);
}

