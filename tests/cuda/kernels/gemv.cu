// y[r] = sum of (code - 1) * x over k codes of two bits: element 16w + 4f + b of a row is field f of byte b of word w.
// A row is a warp's; k is a multiple of 64.
GM_KERNEL(128) gemv(const u8* codes, const i8* x, i32* y, u32 n, u32 k) {
    u32 row = gm_block() * 4 + gm_warp();
    if (row >= n) return;
    const u32x4* w = (const u32x4*)(codes + (u64)row * (k / 4));
    const u32x4* a = (const u32x4*)x;
    i32 field[4] = {}, sum = 0;
    for (u32 i = gm_lane(); i < k / 64; i += 32) {
        u32x4 packed = gm_load_once(w + i);
        const u32 words[4] = {packed.x, packed.y, packed.z, packed.w};
        for (u32 j = 0; j < 4; j++) {
            u32x4 v = gm_load(a + 4 * i + j);
            const u32 four[4] = {v.x, v.y, v.z, v.w};
            for (u32 f = 0; f < 4; f++) {
                field[f] = gm_dp4a_us(words[j] & 0x03030303u << 2 * f, four[f], field[f]);
                sum = gm_dp4a_us(0x01010101u, four[f], sum);
            }
        }
    }
    i32 total = field[0] + field[1] / 4 + field[2] / 16 + field[3] / 64 - sum;
    for (u32 mask = 16; mask > 0; mask /= 2) total += gm_shfl_xor(total, mask);
    if (gm_lane() == 0) gm_store(y + row, total);
}
GM_EXPORT(gemv)
