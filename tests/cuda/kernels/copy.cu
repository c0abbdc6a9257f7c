// Each 64 of x the other way round, by copies to shared memory that run two stages ahead.
GM_KERNEL(64) reversed(const u32* x, u32* y, u32 chunks) {
    GM_SHARED(u32, stages, 3 * 64);
    for (u32 c = 0; c < 2; c++) {
        if (c < chunks) gm_copy(stages, c * 64 + gm_thread(), x + c * 64 + gm_thread());
        gm_copy_commit();
    }
    for (u32 c = 0; c < chunks; c++) {
        gm_copy_wait<1>();
        gm_sync();
        const u32 next = c + 2;
        if (next < chunks) gm_copy(stages, next % 3 * 64 + gm_thread(), x + next * 64 + gm_thread());
        gm_copy_commit();  // A group for each stage, with or without a copy in it.
        gm_store(y + c * 64 + gm_thread(), (u32)stages[c % 3 * 64 + 63 - gm_thread()]);
    }
}
GM_EXPORT(reversed)
