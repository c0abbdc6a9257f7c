// c[16][8] = a[16][32] b[8][32]: one warp, one tile, by each instruction.
GM_DEVICE u32 word(const u8* p, u32 row, u32 k) { return gm_load((const u32*)(p + row * 32 + k)); }

GM_KERNEL(32) mma_16832(const u8* a, const u8* b, i32* c) {
    u32 g = gm_lane() / 4, k = gm_lane() % 4 * 4;
    const u32 as[4] = {word(a, g, k), word(a, g + 8, k), word(a, g, k + 16), word(a, g + 8, k + 16)};
    const u32 bs[2] = {word(b, g, k), word(b, g, k + 16)};
    i32 us[4] = {}, ss[4] = {};
    gm_mma_16832_us(us, as, bs);
    gm_mma_16832_ss(ss, as, bs);
    for (u32 i = 0; i < 4; i++) {
        u32 at = (g + i / 2 * 8) * 8 + gm_lane() % 4 * 2 + i % 2;
        gm_store(c + at, us[i]);
        gm_store(c + 128 + at, ss[i]);
    }
}
GM_EXPORT(mma_16832)

GM_KERNEL(32) mma_16816(const u8* a, const u8* b, i32* c) {
    u32 g = gm_lane() / 4, k = gm_lane() % 4 * 4;
    i32 us[4] = {}, ss[4] = {};
    for (u32 step = 0; step < 32; step += 16) {
        const u32 as[2] = {word(a, g, k + step), word(a, g + 8, k + step)};
        const u32 bs[1] = {word(b, g, k + step)};
        gm_mma_16816_us(us, as, bs);
        gm_mma_16816_ss(ss, as, bs);
    }
    for (u32 i = 0; i < 4; i++) {
        u32 at = (g + i / 2 * 8) * 8 + gm_lane() % 4 * 2 + i % 2;
        gm_store(c + at, us[i]);
        gm_store(c + 128 + at, ss[i]);
    }
}
GM_EXPORT(mma_16816)

GM_KERNEL(32) mma_8816(const u8* a, const u8* b, i32* c) {
    u32 g = gm_lane() / 4, k = gm_lane() % 4 * 4;
    for (u32 half = 0; half < 16; half += 8) {
        i32 us[2] = {}, ss[2] = {};
        for (u32 step = 0; step < 32; step += 16) {
            gm_mma_8816_us(us, word(a, g + half, k + step), word(b, g, k + step));
            gm_mma_8816_ss(ss, word(a, g + half, k + step), word(b, g, k + step));
        }
        for (u32 i = 0; i < 2; i++) {
            u32 at = (g + half) * 8 + gm_lane() % 4 * 2 + i;
            gm_store(c + at, us[i]);
            gm_store(c + 128 + at, ss[i]);
        }
    }
}
GM_EXPORT(mma_8816)

// How the header makes the large tile of small ones where a device has no other.
GM_KERNEL(32) mma_16832_of_8816(const u8* a, const u8* b, i32* c) {
    u32 g = gm_lane() / 4, k = gm_lane() % 4 * 4;
    const u32 as[4] = {word(a, g, k), word(a, g + 8, k), word(a, g, k + 16), word(a, g + 8, k + 16)};
    const u32 bs[2] = {word(b, g, k), word(b, g, k + 16)};
    i32 us[2][2] = {}, ss[2][2] = {};
    for (u32 i = 0; i < 4; i++) {
        gm_mma_8816_us(us[i % 2], as[i], bs[i / 2]);
        gm_mma_8816_ss(ss[i % 2], as[i], bs[i / 2]);
    }
    for (u32 i = 0; i < 4; i++) {
        u32 at = (g + i / 2 * 8) * 8 + gm_lane() % 4 * 2 + i % 2;
        gm_store(c + at, us[i / 2][i % 2]);
        gm_store(c + 128 + at, ss[i / 2][i % 2]);
    }
}
GM_EXPORT(mma_16832_of_8816)
