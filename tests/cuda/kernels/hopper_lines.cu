// c[64][16] = a[64][64] b[16][64] of f16: hopper_halves.cu for 64 k, operand B in lines of 128 bytes.
GM_KERNEL(128) halves_in_lines(const u16* a, const u16* b, f32* c) {
    GM_SHARED_FROM(u8, as, 64 * 128, 0);
    GM_SHARED_FROM(u8, bs, 16 * 128, 64 * 128);
    for (u32 i = gm_thread(); i < 64 * 8; i += 128) gm_copy(as, i % 8 * 1024 + i / 8 * 16, (const u32x4*)(a + i * 8));
    const u32 row_b = gm_thread() / 8;
    gm_copy(bs, row_b * 128 + (gm_thread() % 8 ^ row_b % 8) * 16, (const u32x4*)(b + gm_thread() * 8));
    gm_copy_commit();
    gm_copy_wait<0>();
    gm_fence_proxy();
    gm_sync();
    f32 sums[8] = {};
    gm_wgmma_fence();
    for (u32 step = 0; step < 4; step++)
        gm_wgmma_f16(sums, gm_wgmma_operand(as, step * 2048, 1024, 128), gm_wgmma_lines(bs, 0, step * 32));
    gm_wgmma_commit();
    gm_wgmma_wait<0>();
    const u32 row = gm_warp() * 16 + gm_lane() / 4, column = gm_lane() % 4 * 2;
    for (u32 i = 0; i < 8; i++) gm_store(c + (row + i % 4 / 2 * 8) * 16 + i / 4 * 8 + column + i % 2, sums[i]);
}
GM_EXPORT(halves_in_lines)
