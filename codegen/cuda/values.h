// Values of activations, of one of three types: 0 f32, 1 f16, 2 bf16. Behind device.h.

// One value as it lies there; `value` makes f32 of it, and `load` does both.
GM_DEVICE u32 bits(const void *x, u32 type, u64 i) {
    return type == 0 ? gm_load((const u32 *)x + i) : (u32)gm_load((const u16 *)x + i);
}

GM_DEVICE f32 value(u32 bits, u32 type) {
    return type == 0 ? gm_float(bits) : type == 1 ? gm_f16_to_f32((u16)bits) : gm_bf16_to_f32((u16)bits);
}

GM_DEVICE f32 load(const void *x, u32 type, u64 i) { return value(bits(x, type, i), type); }

