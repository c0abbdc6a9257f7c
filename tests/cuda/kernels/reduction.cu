// Sum of n numbers to one a block: warps by shuffles, then the warps' sums through shared memory.
GM_KERNEL(256) reduction(const i32* x, i32* sums, u32 n) {
    GM_SHARED(i32, partial, 8);
    u32 i = gm_block() * gm_threads() + gm_thread();
    i32 sum = 0;
    if (i < n) sum = gm_load(x + i);
    for (u32 delta = 16; delta > 0; delta /= 2) sum += gm_shfl_down(sum, delta);
    if (gm_lane() == 0) partial[gm_warp()] = sum;
    gm_sync();
    if (gm_warp() == 0) {
        sum = gm_lane() < 8 ? (i32)partial[gm_lane()] : 0;
        for (u32 delta = 4; delta > 0; delta /= 2) sum += gm_shfl_xor(sum, delta);
        if (gm_lane() == 0) gm_store(sums + gm_block(), sum);
    }
}
GM_EXPORT(reduction)
