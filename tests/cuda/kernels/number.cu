// One thread a number, every function of the header that turns one number into another.
GM_KERNEL(256) halves(f32* f16, f32* bf16) {
    u32 i = gm_block() * 256 + gm_thread();
    gm_store(f16 + i, gm_f16_to_f32((u16)i));
    gm_store(bf16 + i, gm_bf16_to_f32((u16)i));
}
GM_EXPORT(halves)

GM_KERNEL(256) narrow(const f32* x, u32* f16, u32* bf16, u32 n) {
    u32 i = gm_block() * 256 + gm_thread();
    if (i >= n) return;
    gm_store(f16 + i, (u32)gm_f32_to_f16(gm_load(x + i)));
    gm_store(bf16 + i, (u32)gm_f32_to_bf16(gm_load(x + i)));
}
GM_EXPORT(narrow)

GM_KERNEL(256) round(const f32* x, f32* y, i32* integers, u32 n) {
    u32 i = gm_block() * 256 + gm_thread();
    if (i >= n) return;
    f32 v = gm_load(x + i);
    const f32 results[8] = {gm_rint(v), gm_round(v), gm_trunc(v), gm_floor(v), gm_abs(v),
                            gm_copysign(3.0f, v), gm_min(v, 1.0f), gm_max(v, 1.0f)};
    for (u32 j = 0; j < 8; j++) gm_store(y + 8 * i + j, results[j]);
    gm_store(integers + 2 * i, gm_to_i32(v));
    gm_store(integers + 2 * i + 1, (i32)gm_is_finite(v));
}
GM_EXPORT(round)
