// Products of weights, which nobody writes, with what a launch in front may have written.
GM_KERNEL(64) products(const u32 *weights, const u32 *x, u32 *y) {
    const u32 i = gm_block() * 64 + gm_thread();
    gm_launch_next();
    gm_prefetch_early((const u8 *)(weights + i));
    const u32 w = gm_load_early(weights + i);
    gm_wait_for_previous();
    gm_store(y + i, w * gm_load(x + i));
}
GM_EXPORT(products)
