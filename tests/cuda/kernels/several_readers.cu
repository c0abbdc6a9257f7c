// What one thread writes again and again, read by all lanes of two warps, each of which says once that it has.
GM_KERNEL(96) told(u32* y, u32 rounds) {
    GM_SHARED(u32, value, 1);
    GM_SHARED(u64, full, 1);
    GM_SHARED(u64, empty, 1);
    if (gm_thread() == 0) {
        gm_barrier_init(full, 0, 1);
        gm_barrier_init(empty, 0, 2);
        gm_fence_proxy();
    }
    gm_sync();
    for (u32 round = 0; round < rounds; round++) {
        if (gm_thread() == 0) {
            gm_barrier_wait(empty, 0, (round + 1) % 2);
            value[0] = round * 100;
            gm_barrier_arrive(full, 0);
        }
        if (gm_warp() > 0) {
            gm_barrier_wait(full, 0, round % 2);
            gm_store(y + round * 64 + gm_thread() - 32, value[0] + gm_lane());
            gm_sync_warp();
            if (gm_lane() == 0) gm_barrier_arrive(empty, 0);
        }
    }
}
GM_EXPORT(told)
