// c[16][8] = a[16][64] b[8][64]: one warp, one tile, with scales at each of the places that the instruction can find them.
// A row of a or b is 32 bytes; its scales stand behind all rows, eight bytes a row: two words of exponents, or of e4m3.
GM_DEVICE u32 word(const u8* p, u32 row, u32 k) { return gm_load((const u32*)(p + row * 32 + k / 2)); }

// Lanes whose register is not looked at hold what would show.
#define MMA(type, count)                                                                                               \
    GM_KERNEL(32) mma_16864_##type(const u8* a, const u8* b, f32* c, u32 pair, u32 lane, u32 byte) {                   \
        const u32 g = gm_lane() / 4, t = gm_lane() % 4;                                                                \
        const u32 as[4] = {word(a, g, 8 * t), word(a, g + 8, 8 * t), word(a, g, 8 * t + 32), word(a, g + 8, 8 * t + 32)}; \
        const u32 bs[2] = {word(b, g, 8 * t), word(b, g, 8 * t + 32)};                                                 \
        u32 a_scales = 0x11111111u, b_scales = 0x11111111u;                                                            \
        for (u32 i = 0; i < count; i++) {                                                                              \
            const u32 at = 8 * (byte + i), mask = ~(255u << at);                                                       \
            if (t / 2 == pair) a_scales = (a_scales & mask) | (u32)gm_load(a + 16 * 32 + (g + t % 2 * 8) * 8 + i) << at; \
            if (t == lane) b_scales = (b_scales & mask) | (u32)gm_load(b + 8 * 32 + g * 8 + i) << at;                   \
        }                                                                                                              \
        f32 sums[4] = {};                                                                                              \
        gm_mma_16864_##type(sums, as, bs, a_scales, pair, b_scales, lane, byte);                                       \
        for (u32 i = 0; i < 4; i++) gm_store(c + (g + i / 2 * 8) * 8 + t * 2 + i % 2, sums[i]);                        \
    }                                                                                                                  \
    GM_EXPORT(mma_16864_##type)
MMA(e8m0, 2)
MMA(e4m3, 4)
