// Rows of f32, f16 or bf16 as another of these types, behind device.h. The unit defines THREADS of a CUDA block, elements PER_THREAD,
// the number of the fault BEYOND, and what the kernel takes.

// From the bits of type `type`: 0 f32, 1 f16, 2 bf16. A signaling NaN becomes quiet.
GM_DEVICE f32 from_bits(u32 bits, u32 type) {
    if (type == 0) return gm_float(bits);
    if (type == 1) return gm_f16_to_f32((u16)bits);
    return (bits & 0x7fffu) > 0x7f80u ? gm_float((bits | 0x40u) << 16) : gm_bf16_to_f32((u16)bits);
}

GM_DEVICE u32 to_bits(f32 x, u32 type) {
    if (type == 0) return gm_bits(x);
    return type == 1 ? (u32)gm_f32_to_f16(x) : (u32)gm_f32_to_bf16(x);
}

// Of `rows` rows of k values, each `src_stride` values after the one before, to rows `dst_stride` apart, with zeros from k
// on. Without `dst` nothing is stored; with `fault` values must be finite (else fault 0) and stay so (else BEYOND).
GM_KERNEL(THREADS) convert(CONVERT_PARAMETERS) {
    const u64 runs = (dst_stride + PER_THREAD - 1) / PER_THREAD;
    // Where rows start at whole runs, a run is loaded and stored at once.
    const bool aligned_from = rows == 1 || src_stride % PER_THREAD == 0, aligned_to = rows == 1 || dst_stride % PER_THREAD == 0;
    for (u64 i = (u64)gm_block() * THREADS + gm_thread(); i < rows * runs; i += (u64)gm_blocks() * THREADS) {
        const u64 row = i / runs, first = i % runs * PER_THREAD;
        const u64 in = row * src_stride + first, out = row * dst_stride + first;
        u32 bits[PER_THREAD];
        if (aligned_from && first + PER_THREAD <= k) {
            if (from == 0) {
                const u32x4 *p = (const u32x4 *)((const u32 *)src + in);
                const u32x4 low = gm_load(p), high = gm_load(p + 1);
                bits[0] = low.x; bits[1] = low.y; bits[2] = low.z; bits[3] = low.w;
                bits[4] = high.x; bits[5] = high.y; bits[6] = high.z; bits[7] = high.w;
            } else {
                const u32x4 all = gm_load((const u32x4 *)((const u16 *)src + in));
                const u32 words[4] = {all.x, all.y, all.z, all.w};
                GM_UNROLL for (u32 j = 0; j < PER_THREAD; j++) bits[j] = words[j / 2] >> (16 * (j % 2)) & 0xffffu;
            }
        } else {
            GM_UNROLL for (u32 j = 0; j < PER_THREAD; j++) {
                bits[j] = 0;
                if (first + j < k) bits[j] = from == 0 ? gm_load((const u32 *)src + in + j) : (u32)gm_load((const u16 *)src + in + j);
            }
        }
        GM_UNROLL for (u32 j = 0; j < PER_THREAD; j++) {
            const f32 x = from_bits(bits[j], from);
            // Bits of the same type stay as they are.
            const u32 made = from == to ? bits[j] : to_bits(x, to);
            if (fault != nullptr && first + j < k) {
                if (!gm_is_finite(x)) gm_atomic_min(fault, (row * k + first + j) * 4);
                else if (!gm_is_finite(from_bits(made, to))) gm_atomic_min(fault, (row * k + first + j) * 4 + BEYOND);
            }
            bits[j] = made;
        }
        if (dst == nullptr) continue;
        if (aligned_to && first + PER_THREAD <= dst_stride) {
            if (to == 0) {
                u32x4 *p = (u32x4 *)((u32 *)dst + out);
                gm_store(p, u32x4{bits[0], bits[1], bits[2], bits[3]});
                gm_store(p + 1, u32x4{bits[4], bits[5], bits[6], bits[7]});
            } else {
                gm_store((u32x4 *)((u16 *)dst + out), u32x4{bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16, bits[6] | bits[7] << 16});
            }
        } else {
            GM_UNROLL for (u32 j = 0; j < PER_THREAD; j++) {
                if (first + j >= dst_stride) continue;
                if (to == 0) gm_store((u32 *)dst + out + j, bits[j]);
                else gm_store((u16 *)dst + out + j, (u16)bits[j]);
            }
        }
    }
}
GM_EXPORT(convert)
