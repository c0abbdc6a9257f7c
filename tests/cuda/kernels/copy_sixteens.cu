// 2048 sixteens of x to shared memory and from there to y.
GM_KERNEL(256) through(const u32x4* x, u32x4* y) {
    GM_SHARED(u32x4, all, 2048);
    for (u32 i = gm_thread(); i < 2048; i += 256) gm_copy(all, place(i), x + i);
    gm_copy_commit();
    gm_copy_wait<0>();
    gm_sync();
    for (u32 i = gm_thread(); i < 2048; i += 256) gm_store(y + i, (u32x4)all[place(i)]);
}
GM_EXPORT(through)
