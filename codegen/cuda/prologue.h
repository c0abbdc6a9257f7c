// Steps of a prologue: all threads of a CUDA block over one row of global memory, in the arithmetic of the runtime's
// `prologue::steps`, which states it, so that everything gives the same bits. In steps without a barrier a thread goes over the
// same elements each time.

// Whether all of a row is finite; else the place of the first that is not goes to `fault`, counted from `place`. The block meets,
// and every thread gets the answer.
GM_DEVICE bool all_finite(const f32 *row, u32 k, u64 place, u64 *fault, GM_SHARED_ARRAY(u32) bad_of_warp) {
    bool finite = true;
    for (u32 i = gm_thread(); i < k && finite; i += gm_threads()) {
        finite = gm_is_finite(gm_load(row + i));
        if (!finite) gm_atomic_min(fault, (place + i) * 4);
    }
    const u32 bad = gm_ballot(!finite);
    // Whoever reads what was found the last time is done.
    gm_sync();
    if (gm_lane() == 0) bad_of_warp[gm_warp()] = bad;
    gm_sync();
    u32 any = 0;
    for (u32 warp = 0; warp < gm_threads() / 32; warp++) any |= bad_of_warp[warp];
    return any == 0;
}

// e^x for x <= 0.
GM_DEVICE f32 exponential(f32 x) {
    const f32 inside = x < -87.0f ? -87.0f : x;
    const f32 rounded = inside * 1.44269504f + 12582912.0f;
    const f32 n = rounded - 12582912.0f;
    const f32 r = inside - n * 0.6933594f - n * -2.1219444e-4f;
    f32 p = 1.9875691e-4f * r + 1.3981999e-3f;
    p = p * r + 8.333452e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 5e-1f;
    p = p * (r * r) + r + 1.0f;
    const u32 power = (gm_bits(rounded) - gm_bits(12582912.0f) + 127u) << 23;
    return x < -87.0f ? 0.0f : p * gm_float(power);
}

GM_DEVICE f32 sigmoid(f32 z) {
    const f32 e = exponential(-gm_abs(z));
    return (z >= 0.0f ? 1.0f : e) / (1.0f + e);
}

GM_DEVICE f32 silu(f32 x) { return x * sigmoid(x); }
GM_DEVICE f32 gelu_tanh(f32 x) { return x * sigmoid(x * (1.595769f + 0.07135482f * (x * x))); }
GM_DEVICE f32 squared_relu(f32 x) {
    const f32 positive = x < 0.0f ? 0.0f : x;
    return positive * positive;
}

// What a norm multiplies with, and 1, or 0 where the sum of squares is not finite: to `norm[0]` and `norm[1]`. Square i goes to
// sum i % 16, sums are added in order, all in f64. The block meets before and behind.
GM_DEVICE void norm_factor(const f32 *row, u32 k, f32 epsilon, GM_SHARED_ARRAY(f32) norm) {
    // Loads that a lane has under way.
    const u32 ahead = 8;
    gm_sync();
    if (gm_warp() == 0) {
        f64 sum = 0.0;
        for (u32 first = gm_lane(); first < k && gm_lane() < 16; first += 16 * ahead) {
            f32 x[ahead];
            // Zeros add nothing.
            GM_UNROLL for (u32 n = 0; n < ahead; n++) x[n] = first + 16 * n < k ? gm_load(row + first + 16 * n) : 0.0f;
            GM_UNROLL for (u32 n = 0; n < ahead; n++) sum += (f64)x[n] * (f64)x[n];
        }
        f64 total = 0.0;
        for (u32 lane = 0; lane < 16; lane++) total += gm_shfl(sum, lane);
        if (gm_lane() == 0) {
            norm[0] = (f32)(1.0 / gm_sqrt(total / (f64)k + (f64)epsilon));
            norm[1] = gm_is_finite(total) ? 1.0f : 0.0f;
        }
    }
    gm_sync();
}

// Butterflies (a + b, a - b) of elements that are 1, 2, 4, ... apart, in every block of the row. The block meets before and
// behind each.
GM_DEVICE void butterflies(f32 *row, u32 k, u32 block) {
    for (u32 apart = 1; apart < block; apart *= 2) {
        gm_sync();
        for (u32 pair = gm_thread(); pair < k / 2; pair += gm_threads()) {
            f32 *const low = row + (2 * (pair & ~(apart - 1)) | (pair & (apart - 1)));
            const f32 a = gm_load(low), b = gm_load(low + apart);
            gm_store(low, a + b);
            gm_store(low + apart, a - b);
        }
    }
    gm_sync();
}

// A row that is refused becomes zeros: what reads it all the same finds nothing to refuse there.
GM_DEVICE void refuse(f32 *row, u32 k) {
    gm_sync();
    for (u32 i = gm_thread(); i < k; i += gm_threads()) gm_store(row + i, 0.0f);
}

// The function of a gate by its number.
GM_DEVICE f32 gate(f32 x, u32 function);

// Steps over `row`, whose first element is number `place`: false, to all threads, where the row is to be refused.
GM_DEVICE bool gate_row(f32 *row, const f32 *up, u32 function, u32 k, u64 place, u64 *fault, GM_SHARED_ARRAY(u32) bad_of_warp) {
    if (!all_finite(up, k, place, fault, bad_of_warp)) return false;
    for (u32 i = gm_thread(); i < k; i += THREADS) {
        const f32 x = gm_load(row + i);
        gm_store(row + i, gate(x, function) * gm_load(up + i));
    }
    return true;
}

// The sums go to `sum` too.
GM_DEVICE bool add_row(f32 *row, const f32 *residual, f32 *sum, u32 k, u64 place, u64 *fault, GM_SHARED_ARRAY(u32) bad_of_warp) {
    for (u32 i = gm_thread(); i < k; i += THREADS) gm_store(row + i, gm_load(row + i) + gm_load(residual + i));
    if (!all_finite(row, k, place, fault, bad_of_warp)) return false;
    for (u32 i = gm_thread(); i < k; i += THREADS) gm_store(sum + i, gm_load(row + i));
    return true;
}

GM_DEVICE bool normalize_row(
    f32 *row, const f32 *weight, f32 epsilon, u32 k, u64 place, u64 *fault, GM_SHARED_ARRAY(u32) bad_of_warp, GM_SHARED_ARRAY(f32) norm
) {
    norm_factor(row, k, epsilon, norm);
    if (norm[1] == 0.0f) {
        all_finite(row, k, place, fault, bad_of_warp);
        return false;
    }
    const f32 by = norm[0];
    for (u32 i = gm_thread(); i < k; i += THREADS) gm_store(row + i, gm_load(row + i) * by * gm_load(weight + i));
    return true;
}

GM_DEVICE bool transform_row(
    f32 *row, const f32 *signs, u32 block, f32 factor, u32 k, u64 place, u64 *fault, GM_SHARED_ARRAY(u32) bad_of_warp
) {
    if (!all_finite(row, k, place, fault, bad_of_warp)) return false;
    for (u32 i = gm_thread(); i < k; i += THREADS) {
        const f32 x = gm_load(row + i);
        gm_store(row + i, (signs ? x * gm_load(signs + i) : x) * factor);
    }
    butterflies(row, k, block);
    return true;
}

