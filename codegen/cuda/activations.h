// Activations to int8: all threads of a CUDA block over one row, or as many CUDA blocks as share it. Behind device.h, reduce.h,
// values.h and statistic.h.
//
// One token leaves a device nearly idle, so what counts is how long the loads of a row take one after the other: each thread has
// several under way, as they lie in memory, and takes them apart afterwards.
//
// The unit defines THREADS of a CUDA block of the kernel that does nothing else, the number of the fault SCALE_OVERFLOW, and what
// the activation format says: `step_of` a statistic, and `quantized`.

// Sixteen interleaved sums of |x| over a row, then their sum in order: what `abs_mean` is defined by. One warp; every warp gets the same.
GM_DEVICE f64 abs_sum_of(const void *x, u32 type, u64 start, u32 len) {
    f64 sum = 0.0;
    if (gm_lane() < 16)
        for (u32 i = gm_lane(); i < len; i += 16) sum += (f64)gm_abs(load(x, type, start + i));
    f64 total = 0.0;
    for (u32 lane = 0; lane < 16; lane++) total += gm_shfl(sum, lane);
    return total;
}

// Four values from a multiple of four on, as they lie there, those from `end` on zero; `whole` says that rows are multiples
// of four. `values` makes f32 of them.
GM_DEVICE u32x4 four(const void *x, u32 type, u64 start, u32 i, u32 end, bool whole) {
    u32x4 v = {};
    if (i >= end) return v;
    if (!whole) {
        v.x = bits(x, type, start + i);
        if (i + 1 < end) v.y = bits(x, type, start + i + 1);
        if (i + 2 < end) v.z = bits(x, type, start + i + 2);
        if (i + 3 < end) v.w = bits(x, type, start + i + 3);
        return v;
    }
    if (type == 0) return gm_load((const u32x4 *)((const u32 *)x + start + i));
    const u32x2 pairs = gm_load((const u32x2 *)((const u16 *)x + start + i));
    v.x = pairs.x;
    v.y = pairs.y;
    return v;
}

GM_DEVICE void values(const u32x4 &v, u32 type, bool whole, f32 (&out)[4]) {
    if (type == 0) {
        const u32 words[4] = {v.x, v.y, v.z, v.w};
        GM_UNROLL for (u32 j = 0; j < 4; j++) out[j] = gm_float(words[j]);
        return;
    }
    const u32 words[4] = {whole ? v.x & 0xffff : v.x, whole ? v.x >> 16 : v.y, whole ? v.y & 0xffff : v.z, whole ? v.y >> 16 : v.w};
    GM_UNROLL for (u32 j = 0; j < 4; j++) out[j] = value(words[j], type);
}

// Of a number, as an integer of the same order; of what is not finite, at least 0x7f800000.
GM_DEVICE u32 size(f32 x) { return gm_bits(x) & 0x7fffffffu; }

// Over neighbouring lanes, of which each gets the result.
template <u32 LANES> GM_DEVICE u32 max_over(u32 v) {
    if constexpr (LANES == 32) v = gm_warp_max(v);
    else GM_UNROLL for (u32 mask = 1; mask < LANES; mask *= 2) v = gm_max(v, gm_shfl_xor(v, mask));
    return v;
}

template <u32 LANES> GM_DEVICE u32 min_over(u32 v) {
    if constexpr (LANES == 32) v = gm_warp_min(v);
    else GM_UNROLL for (u32 mask = 1; mask < LANES; mask *= 2) v = gm_min(v, gm_shfl_xor(v, mask));
    return v;
}

// A row of k values from element `start` of x on. Its integers are in units of so many, each padded with zeros. Its first element is
// number `place` of all activations.
struct Row {
    const void *x;
    u32 type, k, unit, unit_padded, units;
    u64 start, place, *fault;
};

// Where a row goes, and who makes it. To memory, by CUDA blocks that may share a row:
struct ToMemory {
    i8 *values;
    f32 *scales;
    i32 *sums;
    // Loads of four values that a thread has under way.
    static constexpr u32 AHEAD = 4;
    static constexpr bool HAS_SUMS = true;
};

GM_DEVICE u32 threads(const ToMemory &) { return THREADS; }
// A warp's first share of a row, and from there to its next.
GM_DEVICE u32 first_share(const ToMemory &) { return gm_block_y() * (THREADS / 32) + gm_warp(); }
GM_DEVICE u32 shares(const ToMemory &) { return gm_blocks_y() * (THREADS / 32); }
GM_DEVICE bool is_whole(const ToMemory &, const Row &row) { return row.k % 4 == 0; }
GM_DEVICE bool is_one_unit(const ToMemory &, const Row &row) { return row.units == 1; }
GM_DEVICE bool is_first(const ToMemory &) { return gm_block_y() == 0; }
GM_DEVICE void put_word(const ToMemory &to, u32 at, u32 v) { gm_store((u32 *)(to.values + at), v); }
GM_DEVICE void put_byte(const ToMemory &to, u32 at, i32 v) { gm_store(to.values + at, (i8)v); }
GM_DEVICE void put_scale(const ToMemory &to, u32 at, f32 v) { gm_store(to.scales + at, v); }
GM_DEVICE void put_sum(const ToMemory &to, u32 at, i32 v) { gm_store(to.sums + at, v); }

// To shared memory from these places on, by the CUDA block that multiplies them. It has more threads, so that fewer loads under way
// are enough, and its shape rule says that rows are multiples of four. A unit of 0 is the row.
struct NoSums {
    static constexpr bool HAS_SUMS = false;
};
struct Sums {
    GM_SHARED_ARRAY(i32) array;
    static constexpr bool HAS_SUMS = true;
};
template <class S> struct ToShared {
    GM_SHARED_ARRAY(i8) values;
    GM_SHARED_ARRAY(f32) scales;
    S sums;
    u32 first_value, first_scale, first_sum;
    static constexpr u32 AHEAD = 2;
    static constexpr bool HAS_SUMS = S::HAS_SUMS;
};

template <class S> GM_DEVICE u32 threads(const ToShared<S> &) { return gm_threads(); }
template <class S> GM_DEVICE u32 first_share(const ToShared<S> &) { return gm_warp(); }
template <class S> GM_DEVICE u32 shares(const ToShared<S> &) { return gm_threads() / 32; }
template <class S> GM_DEVICE bool is_whole(const ToShared<S> &, const Row &) { return true; }
template <class S> GM_DEVICE bool is_one_unit(const ToShared<S> &, const Row &row) { return row.unit == 0; }
template <class S> GM_DEVICE bool is_first(const ToShared<S> &) { return true; }
template <class S> GM_DEVICE void put_word(const ToShared<S> &to, u32 at, u32 v) { gm_shared_put(to.values, to.first_value + at, v); }
template <class S> GM_DEVICE void put_byte(const ToShared<S> &to, u32 at, i32 v) { to.values[to.first_value + at] = (i8)v; }
template <class S> GM_DEVICE void put_scale(const ToShared<S> &to, u32 at, f32 v) { to.scales[to.first_scale + at] = v; }
GM_DEVICE void put_sum(const ToShared<Sums> &to, u32 at, i32 v) { to.sums.array[to.first_sum + at] = v; }
GM_DEVICE void put_sum(const ToShared<NoSums> &, u32, i32) {}

// A lane has EACH neighbouring values, and a warp as many blocks as there are lanes for.
template <Statistic OF, u32 BLOCK, u32 EACH, class To> GM_DEVICE void several_blocks(const Row &row, const To &to) {
    enum : u32 { LANES = BLOCK / EACH, AT_ONCE = 32 / LANES, VECTORS = EACH / 4 };
    const u32 blocks = row.k / BLOCK, unit = row.unit;
    for (u32 first = first_share(to) * AT_ONCE; first < blocks; first += shares(to) * AT_ONCE) {
        // Lanes without a block do the last one over and put nothing.
        const bool there = first + gm_lane() / LANES < blocks;
        const u32 b = there ? first + gm_lane() / LANES : blocks - 1, within = gm_lane() % LANES * EACH;
        const u64 start = row.start + b * BLOCK;
        f32 v[VECTORS][4];
        u32 largest = 0;
        u32x4 raw[VECTORS];
        GM_UNROLL for (u32 n = 0; n < VECTORS; n++) raw[n] = four(row.x, row.type, start, within + n * 4, BLOCK, true);
        GM_UNROLL for (u32 n = 0; n < VECTORS; n++) {
            values(raw[n], row.type, true, v[n]);
            GM_UNROLL for (u32 j = 0; j < 4; j++) largest = gm_max(largest, size(v[n][j]));
        }
        largest = max_over<LANES>(largest);
        if (largest >= 0x7f800000u && there)
            for (u32 i = 0; i < EACH; i++)
                if (!gm_is_finite(v[i / 4][i % 4])) {
                    gm_atomic_min(row.fault, (row.place + start + within + i) * 4);
                    break;
                }
        f32 s = gm_float(largest);
        if (OF == SIGNED_ABS_MAX) {
            u32 position = 0xffffffffu;
            GM_UNROLL for (u32 i = 0; i < EACH; i++)
                if (size(v[i / 4][i % 4]) == largest) position = gm_min(position, within + i);
            position = min_over<LANES>(position);
            s = largest == 0 ? 0.0f : load(row.x, row.type, start + position);
        }
        const Step step = step_of(s);
        if (largest < 0x7f800000u && !gm_is_finite(step.kept) && there && within == 0)
            gm_atomic_min(row.fault, (row.place + start) * 4 + SCALE_OVERFLOW);
        // What was found wanting is put all the same: a kernel that goes on finds something there.
        if (there && within == 0) put_scale(to, b, step.kept);
        const u32 u = (b * BLOCK + within) / unit;
        i32 sum = 0;
        GM_UNROLL for (u32 n = 0; n < VECTORS; n++) {
            u32 bytes = 0;
            GM_UNROLL for (u32 j = 0; j < 4; j++) {
                const i32 i = quantized(v[n][j], step.apply);
                bytes |= ((u32)i & 0xff) << (8 * j);
                sum += i;
            }
            if (there) put_word(to, u * row.unit_padded + within % unit + n * 4, bytes);
        }
        for (u32 mask = 1; mask < unit / EACH; mask *= 2) sum += gm_shfl_xor(sum, mask);
        if (there && within % unit == 0) put_sum(to, u, sum);
        const u32 padding = row.unit_padded - unit, padded = gm_min(blocks - first, AT_ONCE) * (BLOCK / unit) * padding;
        for (u32 i = gm_lane(); i < padded; i += 32)
            put_byte(to, (first * (BLOCK / unit) + i / padding) * row.unit_padded + unit + i % padding, 0);
    }
}

// A warp for each block, and each unit in it.
template <Statistic OF, u32 BLOCK, class To> GM_DEVICE void block_by_block(const Row &row, const To &to) {
    const u32 blocks = row.k / BLOCK, unit = row.unit;
    for (u32 b = first_share(to); b < blocks; b += shares(to)) {
        const u64 start = row.start + b * BLOCK;
        u32 largest = 0;
        for (u32 i = gm_lane(); i < BLOCK; i += 32) largest = gm_max(largest, size(load(row.x, row.type, start + i)));
        largest = gm_warp_max(largest);
        if (largest >= 0x7f800000u)
            for (u32 i = gm_lane(); i < BLOCK; i += 32)
                if (!gm_is_finite(load(row.x, row.type, start + i))) {
                    gm_atomic_min(row.fault, (row.place + start + i) * 4);
                    break;
                }
        f32 s = gm_float(largest);
        if (OF == ABS_MEAN) s = (f32)(abs_sum_of(row.x, row.type, start, BLOCK) / (f64)BLOCK);
        if (OF == SIGNED_ABS_MAX) {
            u32 position = 0xffffffffu;
            for (u32 i = gm_lane(); i < BLOCK; i += 32)
                if (size(load(row.x, row.type, start + i)) == largest) position = gm_min(position, i);
            position = gm_warp_min(position);
            s = largest == 0 ? 0.0f : load(row.x, row.type, start + position);
        }
        const Step step = step_of(s);
        if (largest < 0x7f800000u && !gm_is_finite(step.kept) && gm_lane() == 0)
            gm_atomic_min(row.fault, (row.place + start) * 4 + SCALE_OVERFLOW);
        if (gm_lane() == 0) put_scale(to, b, step.kept);
        for (u32 first = 0; first < BLOCK; first += unit) {
            const u32 u = (b * BLOCK + first) / unit;
            i32 sum = 0;
            for (u32 i = gm_lane(); i < row.unit_padded; i += 32) {
                const i32 v = i < unit ? quantized(load(row.x, row.type, start + first + i), step.apply) : 0;
                put_byte(to, u * row.unit_padded + i, v);
                sum += v;
            }
            sum = gm_warp_sum(sum);
            if (gm_lane() == 0) put_sum(to, u, sum);
        }
    }
}

// A row of blocks that have a scale each. A block to a warp, or several: its units lie within it.
template <Statistic OF, u32 BLOCK, class To> GM_DEVICE void quantize_blocks(const Row &row, const To &to) {
    // As many values to a lane as make one load, or two.
    constexpr u32 each = BLOCK <= 128 ? 4 : 8;
    if constexpr (BLOCK >= 16 && BLOCK <= 256 && (BLOCK & (BLOCK - 1)) == 0 && OF != ABS_MEAN) {
        if (row.unit % each == 0 && (row.unit / each & (row.unit / each - 1)) == 0 && row.unit_padded % 4 == 0) {
            several_blocks<OF, BLOCK, each>(row, to);
            return;
        }
    }
    block_by_block<OF, BLOCK>(row, to);
}

// Begins the loads of a round.
template <u32 AHEAD> GM_DEVICE void load_round(const Row &row, u32 first, u32 threads, bool whole, u32x4 (&raw)[AHEAD]) {
    GM_UNROLL for (u32 n = 0; n < AHEAD; n++)
        raw[n] = four(row.x, row.type, row.start, first + n * 4 * threads, row.k, whole);
}

// The largest size of what a round has loaded, and of `largest`.
template <u32 AHEAD>
GM_DEVICE u32 largest_of_round(const Row &row, u32 first, u32 threads, bool whole, const u32x4 (&raw)[AHEAD], u32 largest) {
    GM_UNROLL for (u32 n = 0; n < AHEAD; n++) {
        if (first + n * 4 * threads >= row.k) continue;
        f32 v[4];
        values(raw[n], row.type, whole, v);
        GM_UNROLL for (u32 j = 0; j < 4; j++) largest = gm_max(largest, size(v[j]));
    }
    return largest;
}

// The first place in a row of its largest size.
GM_DEVICE u32 position_in_row(const Row &row, u32 largest, u32 threads, GM_SHARED_ARRAY(u32) of_warp) {
    const u32 warps = threads / 32;
    u32 position = 0xffffffffu;
    for (u32 i = gm_thread(); i < row.k; i += threads)
        if (size(load(row.x, row.type, row.start + i)) == largest) position = gm_min(position, i);
    position = gm_warp_min(position);
    if (gm_lane() == 0) of_warp[warps + gm_warp()] = position;
    gm_sync();
    return gm_warp_min(gm_lane() < warps ? (u32)of_warp[warps + gm_lane()] : 0xffffffffu);
}

// Quantizes a row that is one unit, with all threads; a thread has the first round in `raw`.
template <class To>
GM_DEVICE void one_unit(const Row &row, const To &to, f32 apply, bool whole, u32x4 (&raw)[To::AHEAD], GM_SHARED_ARRAY(i32) sum_of_warp) {
    const u32 all = threads(to), round = 4 * all * To::AHEAD;
    i32 sum = 0;
    GM_NO_UNROLL for (u32 first = gm_thread() * 4; first < row.unit_padded; first += round) {
        if (first >= round) load_round(row, first, all, whole, raw);
        GM_UNROLL for (u32 n = 0; n < To::AHEAD; n++) {
            const u32 i = first + n * 4 * all;
            if (i >= row.unit_padded) continue;
            f32 v[4];
            values(raw[n], row.type, whole, v);
            u32 bytes = 0;
            GM_UNROLL for (u32 j = 0; j < 4; j++) {
                const i32 of = (whole ? i : i + j) < row.k ? quantized(v[j], apply) : 0;
                bytes |= ((u32)of & 0xff) << (8 * j);
                sum += of;
            }
            if (row.unit_padded % 4 != 0)
                GM_UNROLL for (u32 j = 0; j < 4; j++) if (i + j < row.unit_padded) put_byte(to, i + j, (i32)(bytes >> (8 * j)));
            if (row.unit_padded % 4 == 0) put_word(to, i, bytes);
        }
    }
    if (!To::HAS_SUMS) return;
    // Behind the last barrier the first warp adds what the warps have.
    sum = gm_warp_sum(sum);
    if (gm_lane() == 0) sum_of_warp[gm_warp()] = sum;
    gm_sync();
    if (gm_warp() == 0) {
        sum = gm_warp_sum(gm_lane() < all / 32 ? (i32)sum_of_warp[gm_lane()] : 0);
        if (gm_lane() == 0) put_sum(to, 0, sum);
    }
}

// A row of several units, a warp for each.
template <class To> GM_DEVICE void several_units(const Row &row, const To &to, f32 apply) {
    for (u32 u = first_share(to); u < row.units; u += shares(to)) {
        i32 sum = 0;
        for (u32 i = gm_lane(); i < row.unit_padded; i += 32) {
            const u32 at = u * row.unit + i;
            const i32 v = i < row.unit && at < row.k ? quantized(load(row.x, row.type, row.start + at), apply) : 0;
            put_byte(to, u * row.unit_padded + i, v);
            sum += v;
        }
        sum = gm_warp_sum(sum);
        if (gm_lane() == 0) put_sum(to, u, sum);
    }
}

// A row with one scale, found by all warps together; where several CUDA blocks share its units, by each of them. `size_of_warp` has room
// for the warps' sizes, and for SIGNED_ABS_MAX behind them for positions. Returns whether the row could be quantized, to all threads.
template <Statistic OF, class To>
GM_DEVICE bool quantize_row(const Row &row, const To &to, GM_SHARED_ARRAY(u32) size_of_warp, GM_SHARED_ARRAY(i32) sum_of_warp) {
    const u32 all = threads(to), round = 4 * all * To::AHEAD;
    const bool whole = is_whole(to, row);
    // What a thread loads first stays with it.
    u32x4 raw[To::AHEAD];
    load_round(row, gm_thread() * 4, all, whole, raw);
    u32 largest = largest_of_round(row, gm_thread() * 4, all, whole, raw, 0);
    GM_NO_UNROLL for (u32 first = gm_thread() * 4 + round; first < row.k; first += round) {
        u32x4 more[To::AHEAD];
        load_round(row, first, all, whole, more);
        largest = largest_of_round(row, first, all, whole, more, largest);
    }
    largest = gm_warp_max(largest);
    if (gm_lane() == 0) size_of_warp[gm_warp()] = largest;
    gm_sync();
    largest = gm_warp_max(gm_lane() < all / 32 ? (u32)size_of_warp[gm_lane()] : 0);
    if (largest >= 0x7f800000u) {
        // All threads are here, and each reports the first that it finds.
        for (u32 i = gm_thread(); i < row.k; i += all)
            if (!gm_is_finite(load(row.x, row.type, row.start + i))) {
                gm_atomic_min(row.fault, (row.place + row.start + i) * 4);
                break;
            }
        return false;
    }
    f32 s = gm_float(largest);
    if (OF == ABS_MEAN) s = (f32)(abs_sum_of(row.x, row.type, row.start, row.k) / (f64)row.k);
    if (OF == SIGNED_ABS_MAX) {
        const u32 position = position_in_row(row, largest, all, size_of_warp);
        s = largest == 0 ? 0.0f : load(row.x, row.type, row.start + position);
    }
    const Step step = step_of(s);
    if (!gm_is_finite(step.kept)) {
        if (gm_thread() == 0) gm_atomic_min(row.fault, (row.place + row.start) * 4 + SCALE_OVERFLOW);
        return false;
    }
    if (gm_thread() == 0 && is_first(to)) put_scale(to, 0, step.kept);
    if (!is_one_unit(to, row)) several_units(row, to, step.apply);
    else if (is_first(to)) one_unit(row, to, step.apply, whole, raw, sum_of_warp);
    return true;
}

