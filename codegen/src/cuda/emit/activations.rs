//! The kernel that quantizes activations: a CUDA block does a row.

use super::blocks::{HELPERS, rounded, step};
use gristmill_spec::model::{Activations, Statistic};

/// Threads of a CUDA block.
pub const THREADS: u32 = 256;

/// The unit of an activation format: one kernel.
pub fn emit(format: &Activations, function: &str) -> String {
    let kept = match (format.keeps_multiplier, format.stored_f16) {
        (true, _) => "apply",
        (false, true) => "gm_f16_to_f32(gm_f32_to_f16(stored))",
        (false, false) => "stored",
    };
    let rounded = rounded(&format.scale, format.round, 0.0, format.clamp, 0);
    let step = step(&format.scale);
    let statistic = |of_block: bool| match (format.scale.of, of_block) {
        (Statistic::AbsMax, _) => "const f32 s = magnitude_of(key);",
        (Statistic::SignedAbsMax, _) => {
            "const f32 s = magnitude_of(key) == 0.0f ? 0.0f : load(x, type, start + position_of(key));"
        }
        (Statistic::AbsMean, _) => "const f32 s = (f32)(abs_sum_of(x, type, start, len) / (f64)len);",
    };
    let warps = THREADS / 32;
    let body = match format.block {
        // A warp for each block; its units lie within it.
        Some(block) => format!(
            "for (u32 b = gm_warp(); b < k / {block}; b += {warps}) {{
        const u32 len = {block};
        const u64 start = row * k + b * {block};
        u32 worst = 0xffffffffu;
        u64 key = 0;
        for (u32 i = gm_lane(); i < len; i += 32) {{
            const f32 v = load(x, type, start + i);
            if (!gm_is_finite(v) && i < worst) worst = i;
            key = gm_max(key, magnitude(v, i));
        }}
        worst = warp_min(worst);
        key = warp_max(key);
        (void)key;
        if (worst != 0xffffffffu) {{
            if (gm_lane() == 0) gm_atomic_min(fault, (start + worst) * 4);
            continue;
        }}
        {statistic}
        {step}
        (void)stored;
        const f32 kept = {kept};
        if (!gm_is_finite(kept)) {{
            if (gm_lane() == 0) gm_atomic_min(fault, start * 4 + 2);
            continue;
        }}
        if (gm_lane() == 0) gm_store(scales + row * (k / {block}) + b, kept);
        for (u32 first = 0; first < len; first += unit) {{
            const u32 u = (b * {block} + first) / unit;
            i32 sum = 0;
            for (u32 i = gm_lane(); i < unit_padded; i += 32) {{
                const i32 v = i < unit ? quantized(load(x, type, start + first + i), apply) : 0;
                gm_store(q + (row * units + u) * unit_padded + i, (i8)v);
                sum += v;
            }}
            sum = warp_sum(sum);
            if (gm_lane() == 0) gm_store(sums + row * units + u, sum);
        }}
    }}",
            statistic = statistic(true),
        ),
        // One scale for the row, found by all warps together.
        None => format!(
            "GM_SHARED(u64, keys, {warps});
    GM_SHARED(u32, firsts, {warps});
    GM_SHARED(i32, parts, {warps});
    const u32 len = k;
    const u64 start = row * k;
    u32 worst = 0xffffffffu;
    u64 key = 0;
    for (u32 i = gm_thread(); i < len; i += {THREADS}) {{
        const f32 v = load(x, type, start + i);
        if (!gm_is_finite(v) && i < worst) worst = i;
        key = gm_max(key, magnitude(v, i));
    }}
    worst = warp_min(worst);
    key = warp_max(key);
    if (gm_lane() == 0) {{ keys[gm_warp()] = key; firsts[gm_warp()] = worst; }}
    gm_sync();
    for (u32 w = 0; w < {warps}; w++) {{
        key = gm_max(key, (u64)keys[w]);
        worst = gm_min(worst, (u32)firsts[w]);
    }}
    if (worst != 0xffffffffu) {{
        if (gm_thread() == 0) gm_atomic_min(fault, (start + worst) * 4);
        return;
    }}
    {statistic}
    {step}
    (void)stored;
    const f32 kept = {kept};
    if (!gm_is_finite(kept)) {{
        if (gm_thread() == 0) gm_atomic_min(fault, start * 4 + 2);
        return;
    }}
    if (gm_thread() == 0) gm_store(scales + row, kept);
    if (units == 1) {{
        i32 sum = 0;
        for (u32 i = gm_thread(); i < unit_padded; i += {THREADS}) {{
            const i32 v = i < k ? quantized(load(x, type, start + i), apply) : 0;
            gm_store(q + row * unit_padded + i, (i8)v);
            sum += v;
        }}
        sum = warp_sum(sum);
        if (gm_lane() == 0) parts[gm_warp()] = sum;
        gm_sync();
        if (gm_thread() == 0) {{
            sum = 0;
            for (u32 w = 0; w < {warps}; w++) sum += parts[w];
            gm_store(sums + row, sum);
        }}
        return;
    }}
    for (u32 u = gm_warp(); u < units; u += {warps}) {{
        i32 sum = 0;
        for (u32 i = gm_lane(); i < unit_padded; i += 32) {{
            const i32 v = i < unit && u * unit + i < k ? quantized(load(x, type, start + u * unit + i), apply) : 0;
            gm_store(q + (row * units + u) * unit_padded + i, (i8)v);
            sum += v;
        }}
        sum = warp_sum(sum);
        if (gm_lane() == 0) gm_store(sums + row * units + u, sum);
    }}",
            statistic = statistic(false),
        ),
    };
    format!(
        "{HELPERS}GM_DEVICE f32 load(const void *x, u32 type, u64 i) {{
    if (type == 1) return gm_f16_to_f32(gm_load((const u16 *)x + i));
    if (type == 2) return gm_bf16_to_f32(gm_load((const u16 *)x + i));
    return gm_load((const f32 *)x + i);
}}

// As `abs_sum`, of a row of any type. One warp; every warp gets the same.
GM_DEVICE f64 abs_sum_of(const void *x, u32 type, u64 start, u32 len) {{
    f64 sum = 0.0;
    if (gm_lane() < 16)
        for (u32 i = gm_lane(); i < len; i += 16) sum += (f64)gm_abs(load(x, type, start + i));
    f64 total = 0.0;
    for (u32 lane = 0; lane < 16; lane++) total += gm_shfl(sum, lane);
    return total;
}}

GM_DEVICE i32 quantized(f32 x, f32 apply) {{ return gm_to_i32({rounded}); }}

GM_KERNEL({THREADS}) {function}(const void *x, u32 type, u32 m, u32 k, u32 unit, u32 unit_padded, u32 units, i8 *q, f32 *scales, i32 *sums, u64 *fault) {{
    const u64 row = gm_block();
    (void)m;
    gm_launch_next();
    gm_wait_for_previous();
    {body}
}}
GM_EXPORT({function})
"
    )
}
