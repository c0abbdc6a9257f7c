// Over the lanes of a warp, each lane with the result.
GM_DEVICE u64 warp_max(u64 v) {
    for (u32 mask = 16; mask > 0; mask /= 2) v = gm_max(v, gm_shfl_xor(v, mask));
    return v;
}

GM_DEVICE u32 warp_min(u32 v) {
    for (u32 mask = 16; mask > 0; mask /= 2) v = gm_min(v, gm_shfl_xor(v, mask));
    return v;
}

// Magnitude above, the complement of the position below: the largest of these is the first of the largest.
GM_DEVICE u64 magnitude(f32 x, u32 at) { return (u64)(gm_bits(x) & 0x7fffffffu) << 32 | (0xffffffffu - at); }

GM_DEVICE f32 magnitude_of(u64 key) { return gm_float((u32)(key >> 32)); }
GM_DEVICE u32 position_of(u64 key) { return 0xffffffffu - (u32)key; }

// Sixteen interleaved sums of |x|, then their sum in order: what `abs_mean` is defined by. One warp.
GM_DEVICE f64 abs_sum(const f32 *x, u32 len) {
    f64 sum = 0.0;
    if (gm_lane() < 16)
        for (u32 i = gm_lane(); i < len; i += 16) sum += (f64)gm_abs(gm_load(x + i));
    f64 total = 0.0;
    for (u32 lane = 0; lane < 16; lane++) total += gm_shfl(sum, lane);
    return total;
}

