// An engine's own kernel: what is below zero becomes zero, in place.
GM_KERNEL(64) positive(f32* x, u32 count) {
    u32 i = gm_block() * gm_threads() + gm_thread();
    if (i < count) gm_store(x + i, gm_load(x + i) < 0 ? 0.0f : gm_load(x + i));
}
GM_EXPORT(positive)
