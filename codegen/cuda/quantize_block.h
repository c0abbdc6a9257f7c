// A quantizer of which a warp does one block at a time, behind quantize.h. The unit defines WORDS that a block's bytes take, and HAS_DIGITS:
// whether codes are digits, which digits.h gathers.

// In place of an array that a format has no use for.
struct Absent {};

// All blocks of `src`, whose rows have k elements. A warp has WORDS of `all_words`, and room for the codes of a block in `all_codes`, where
// codes are digits.
template <class Words, class Codes>
GM_DEVICE void quantize_blocks(
    Words all_words, Codes all_codes, const f32 *src, u8 *dst, u32 rows, u32 k, u64 row_bytes, const f32x2 *steps, u64 *fault
) {
    const u32 words = gm_warp() * WORDS;
    const u64 count = (u64)rows * (k / ELEMENTS);
    for (u64 b = (u64)gm_block() * WARPS + gm_warp(); b < count; b += (u64)gm_blocks() * WARPS) {
        const f32 *x = src + b * ELEMENTS;
        u8 *block = dst + place(b, k, row_bytes);
        for (u32 i = gm_lane(); i < WORDS; i += 32) all_words[words + i] = 0;
        const Seen seen = look_at(x, ELEMENTS);
        if (seen.worst != 0xffffffffu) {
            if (gm_lane() == 0) gm_atomic_min(fault, (b * ELEMENTS + seen.worst) * 4);
            continue;
        }
        const f32x2 step = step_of_block(x, seen.key, steps, b, k);
        put_outer(dst, rows, k, row_bytes, b, step.y, fault);
        gm_sync_warp();
        if constexpr (HAS_SCALE) {
            const u32 bits = stored_bits(step.y);
            if (!holds(bits)) {
                if (gm_lane() == 0) gm_atomic_min(fault, b * ELEMENTS * 4 + SCALE_OVERFLOW);
                continue;
            }
            if (gm_lane() == 0) put_scale(all_words, words, 0, 0, bits);
        }
        for (u32 e = gm_lane(); e < ELEMENTS; e += 32) {
            const u32 code = code_of(gm_load(x + e), step.x);
            if constexpr (HAS_DIGITS) put_digit(all_codes, e, code);
            else put_code(all_words, words, 0, e, code);
        }
        gm_sync_warp();
        if constexpr (HAS_DIGITS) gather_digits(all_words, all_codes, words);
        for (u32 i = gm_lane(); i < BYTES; i += 32) gm_store(block + i, (u8)(all_words[words + i / 4] >> (8 * (i % 4))));
        gm_sync_warp();
    }
}

