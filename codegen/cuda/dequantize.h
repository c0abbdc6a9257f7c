// The kernel that dequantizes. Behind what decodes the format, what stands outside of its blocks, and place.h.
//
// A CUDA block does a run of the format's blocks. Their bytes come to shared memory by aligned loads of sixteen, whatever the size of a
// block; scales and offsets of runs are computed once, beside them; then each thread makes N values at a time. The unit defines the
// number of THREADS, AT_ONCE (blocks of the format that are done at once), HAS_RUNS (whether factors differ from run to run, or from row
// to row), the number of the fault INVALID_CODE, and GM_UNROLL_ROUNDS.

// In place of an array that a format has no use for.
struct Absent {};

// Stores neighbouring values.
template <u32 COUNT> GM_DEVICE void store(f32 *to, const f32 (&values)[COUNT]) {
    if constexpr (COUNT == 4) {
        gm_store((f32x4 *)to, f32x4{values[0], values[1], values[2], values[3]});
    } else {
        GM_UNROLL for (u32 i = 0; i < COUNT; i++) gm_store(to + i, values[i]);
    }
}

// All blocks of a tensor. In shared memory stand the `bytes` of the blocks of one pass; `scales` and `offsets` of their runs, where they have
// some; and `places`, where in `bytes` each of them starts, where rows have headers.
template <class Bytes, class Scales, class Offsets, class Places>
GM_DEVICE void dequantize_blocks(
    Bytes bytes, Scales scales, Offsets offsets, Places places, const u8 *src, f32 *dst, u32 rows, u32 k, u64 row_bytes, u64 *fault
) {
    const u64 blocks = (u64)rows * (k / ELEMENTS), size = rows * row_bytes;
    const u8 *const tail = src + size;
    const f32 outer = HEADER == 0 ? outer_of(src, tail) : 1.0f;
    for (u64 first = (u64)gm_block() * AT_ONCE; first < blocks; first += (u64)gm_blocks() * AT_ONCE) {
        const u32 count = (u32)gm_min(blocks - first, (u64)AT_ONCE);
        // From the sixteen bytes in which the first block starts to those in which the last one ends.
        const u64 begin = place(first, k, row_bytes), base = begin / 16 * 16;
        const u64 end = place(first + count - 1, k, row_bytes) + BYTES;
        const u32 span = (u32)(end - base), shift = (u32)(begin - base);
        const u32 whole = gm_min((span + 15) / 16, (u32)gm_min((size - base) / 16, (u64)span));
        GM_NO_UNROLL for (u32 i = gm_thread(); i < whole; i += THREADS)
            gm_shared_put(bytes, i * 16, gm_load_once((const u32x4 *)(src + base) + i));
        GM_NO_UNROLL for (u32 i = whole * 16 + gm_thread(); i < span; i += THREADS) bytes[i] = gm_load_once(src + base + i);
        gm_sync();
        if constexpr (HAS_RUNS || HEADER > 0) {
            GM_NO_UNROLL for (u32 i = gm_thread(); i < count * RUNS; i += THREADS) {
                const u64 b = first + i / RUNS;
                const u32 at = HEADER == 0 ? shift + i / RUNS * BYTES : (u32)(place(b, k, row_bytes) - base);
                if constexpr (HEADER > 0) {
                    if (i % RUNS == 0) places[i / RUNS] = at;
                }
                if constexpr (HAS_RUNS) {
                    const f32 of_row = HEADER == 0 ? outer : outer_of(src + b / (k / ELEMENTS) * row_bytes, tail);
                    scales[i] = scale(bytes, at, i % RUNS, of_row);
                    if constexpr (HAS_OFFSET) offsets[i] = offset(bytes, at, i % RUNS, of_row);
                }
            }
            gm_sync();
        }
        GM_UNROLL_ROUNDS for (u32 j = 0; j < (AT_ONCE * ELEMENTS / N + THREADS - 1) / THREADS; j++) {
            const u32 element = (j * THREADS + gm_thread()) * N;
            if (element >= count * ELEMENTS) continue;
            f32 s, o = 0.0f;
            if constexpr (HAS_RUNS) {
                const u32 run = element / ELEMENTS * RUNS + element % ELEMENTS / RUN;
                s = scales[run];
                if constexpr (HAS_OFFSET) o = offsets[run];
            } else {
                s = scale(bytes, 0, 0, outer);
            }
            u32 at = shift + element / ELEMENTS * BYTES;
            if constexpr (HEADER > 0) at = places[element / ELEMENTS];
            i32 v[N];
            const u32 bad = values(bytes, at, element % ELEMENTS, v);
            if (bad < N) {
                gm_atomic_min(fault, first_of_code(first * ELEMENTS + element + bad) * 4 + INVALID_CODE);
                continue;
            }
            f32 out[N];
            GM_UNROLL for (u32 i = 0; i < N; i++) out[i] = weight_of(v[i], s, o);
            store(dst + first * ELEMENTS + element, out);
        }
        gm_sync();
    }
}

