// The end of products of floats by `mma.sync`. Behind `Rows`.

// Stores the accumulators of a warp: 32 rows from `first_row` on by eight tokens to a tile from `first_token` on, with bias.
template <u32 TILES> GM_DEVICE void store_tile(const Rows &a, const f32 (&sums)[2][TILES][4], u32 first_row, u32 first_token) {
    GM_UNROLL for (u32 i = 0; i < 4; i++) {
        const u32 row = first_row + 8 * i + gm_lane() / 4;
        const f32 bias = a.bias == nullptr || row >= a.n ? 0.0f : gm_load(a.bias + row);
        GM_UNROLL for (u32 j = 0; j < TILES; j++) {
            GM_UNROLL for (u32 c = 0; c < 2; c++) {
                const u32 token = first_token + 8 * j + gm_lane() % 4 * 2 + c;
                const f32 v = sums[i / 2][j][i % 2 * 2 + c];
                if (row < a.n && token < a.m) gm_store(a.y + (u64)token * a.n + row, a.bias == nullptr ? v : v + bias);
            }
        }
    }
}

