// The kernel that gives rows by index. Behind what decodes the format and what stands outside of its blocks. So few rows are read at once
// that nothing is brought to shared memory for them: a thread decodes N neighbouring elements. The unit defines the number of THREADS
// and that of the fault INVALID_CODE.

// Stores neighbouring values as numbers of type `to`: 0 f32, 1 f16, 2 bf16.
template <u32 COUNT> GM_DEVICE void store(void *dst, u64 at, u32 to, const f32 (&x)[COUNT]) {
    const auto rounded = [&](u32 j) { return to == 1 ? gm_f32_to_f16(x[j]) : gm_f32_to_bf16(x[j]); };
    if constexpr (COUNT == 4) {
        if (to == 0) {
            gm_store((f32x4 *)((f32 *)dst + at), f32x4{x[0], x[1], x[2], x[3]});
        } else {
            u32 bits[COUNT];
            GM_UNROLL for (u32 j = 0; j < COUNT; j++) bits[j] = rounded(j);
            gm_store((u32x2 *)((u16 *)dst + at), u32x2{bits[0] | bits[1] << 16, bits[2] | bits[3] << 16});
        }
    } else {
        GM_UNROLL for (u32 j = 0; j < COUNT; j++) {
            if (to == 0) gm_store((f32 *)dst + at + j, x[j]);
            else gm_store((u16 *)dst + at + j, rounded(j));
        }
    }
}

// Row indices[p] of the tensor to row p of `dst`.
GM_DEVICE void embed_rows(
    const u8 *src, const u32 *indices, void *dst, u32 to, u32 count, u32 rows, u32 k, u64 row_bytes, u64 *fault
) {
    const u32 groups = k / N;
    for (u64 i = (u64)gm_block() * THREADS + gm_thread(); i < (u64)count * groups; i += (u64)gm_blocks() * THREADS) {
        const u64 position = i / groups;
        const u32 element = (u32)(i % groups) * N, at = HEADER + element / ELEMENTS * BYTES;
        const u8 *row = src + gm_load(indices + position) * row_bytes;
        const f32 outer = outer_of(row, src + rows * row_bytes);
        i32 v[N];
        const u32 bad = values(row, at, element % ELEMENTS, v);
        if (bad < N) {
            gm_atomic_min(fault, first_of_code(position * k + element + bad) * 4 + INVALID_CODE);
            continue;
        }
        const u32 run = element % ELEMENTS / RUN;
        const f32 s = scale(row, at, run, outer), o = offset(row, at, run, outer);
        f32 x[N];
        GM_UNROLL for (u32 j = 0; j < N; j++) x[j] = weight_of(v[j], s, o);
        store(dst, position * k + element, to, x);
    }
}

