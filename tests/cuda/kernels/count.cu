// Sums over the layers of a grid: every block stores its part, and the last one to count adds them up.
GM_KERNEL(64) count(const u32 *x, u32 *parts, u32 *counters, u32 *y) {
    GM_SHARED(u32, last, 1);
    const u32 layers = gm_blocks_z(), layer = gm_blocks() * 64, at = gm_block() * 64 + gm_thread();
    gm_store(parts + gm_block_z() * layer + at, gm_load(x + gm_block_z() * layer + at));
    gm_sync();
    if (gm_thread() == 0) last[0] = gm_count(counters + gm_block(), layers) + 1 == layers;
    gm_sync();
    if (!last[0]) return;
    u32 sum = 0;
    for (u32 z = 0; z < layers; z++) sum += gm_load(parts + z * layer + at);
    gm_store(y + at, sum);
}
GM_EXPORT(count)
