// Each 64 of x the other way round: one thread brings them by bulk copies to one of two places, a warp takes them.
GM_KERNEL(64) turned(const u32* x, u32* y, u32 chunks) {
    GM_SHARED(u8, places, 2 * 256);
    GM_SHARED(u64, full, 2);
    GM_SHARED(u64, empty, 2);
    if (gm_thread() == 0) {
        for (u32 i = 0; i < 2; i++) {
            gm_barrier_init(full, i, 1);
            gm_barrier_init(empty, i, 32);
        }
        gm_fence_proxy();
    }
    gm_sync();
    for (u32 c = 0; c < chunks; c++) {
        const u32 at = c % 2, round = c / 2 % 2;
        if (gm_thread() == 32) {
            gm_barrier_wait(empty, at, round ^ 1);
            gm_barrier_expect(full, at, 256);
            gm_bulk_copy(places, at * 256, (const u8*)(x + c * 64), 128, full, at);
            gm_bulk_copy(places, at * 256 + 128, (const u8*)(x + c * 64 + 32), 128, full, at);
            gm_barrier_arrive(full, at);
        }
        if (gm_warp() == 0) {
            gm_barrier_wait(full, at, round);
            for (u32 i = gm_lane(); i < 64; i += 32) gm_store(y + c * 64 + i, gm_shared_get<u32>(places, at * 256 + (63 - i) * 4));
            gm_barrier_arrive(empty, at);
        }
    }
}
GM_EXPORT(turned)

// Quotients in place of divisions; 0 where the divisor is none for them.
GM_KERNEL(256) quotients(const f32* y, const f32* x, f32* out, u32 count) {
    for (u32 i = gm_thread(); i < count; i += 256) {
        const f32 by = gm_load(x + i);
        gm_store(out + i, gm_divides_in_place(by) ? gm_quotient(gm_load(y + i), by, 1.0f / by) : 0.0f);
    }
}
GM_EXPORT(quotients)

// c[64][16] = a[64][64] b[16][64]: one warpgroup, two steps of k, both in one group.
GM_KERNEL(128) product(const u8* a, const u8* b, i32* c) {
    GM_SHARED(u8, bs, 2 * 512);
    const u32 g = gm_lane() / 4, t = gm_lane() % 4, row = gm_warp() * 16 + g;
    {
        // Step, half of its k, eight columns, column, sixteen bytes.
        const u32 column = gm_thread() / 8, k = gm_thread() % 8 * 8;
        const u32 at = k / 32 * 512 + k / 16 % 2 * 256 + column * 16 + k % 16;
        gm_shared_put(bs, at, gm_load((const u32x2*)(b + column * 64 + k)));
        gm_fence_proxy();
    }
    gm_sync();
    i32 sums[8] = {};
    u32 as[2][4];
    for (u32 step = 0; step < 2; step++)
        for (u32 i = 0; i < 4; i++)
            as[step][i] = gm_load((const u32*)(a + (row + i % 2 * 8) * 64 + step * 32 + i / 2 * 16 + t * 4));
    gm_wgmma_fence();
    for (u32 step = 0; step < 2; step++) gm_wgmma_us(sums, as[step], gm_wgmma_operand(bs, step * 512, 256, 128));
    gm_wgmma_commit();
    gm_wgmma_wait<0>();
    for (u32 i = 0; i < 8; i++) gm_store(c + (row + i % 4 / 2 * 8) * 16 + i / 4 * 8 + t * 2 + i % 2, sums[i]);
}
GM_EXPORT(product)
