//! The kernel that quantizes activations: a CUDA block does a row, or several share its blocks or units.
//!
//! One token leaves a device nearly idle, so what counts is how long the loads of a row take one after the other: each thread has
//! several under way, as they lie in memory, and takes them apart afterwards.

use super::blocks::{HELPERS, rounded, step};
use gristmill_spec::model::{Activations, Statistic};

/// Threads of a CUDA block.
pub const THREADS: u32 = 256;
/// Its warps.
const WARPS: u32 = THREADS / 32;
/// Loads of four values that a thread has under way.
const AHEAD: u32 = 4;

/// The unit of an activation format: one kernel.
pub fn emit(format: &Activations, function: &str) -> String {
    let kept = match (format.keeps_multiplier, format.stored_f16) {
        (true, _) => "apply",
        (false, true) => "gm_f16_to_f32(gm_f32_to_f16(stored))",
        (false, false) => "stored",
    };
    let rounded = rounded(&format.scale, format.round, 0.0, format.clamp, 0);
    let step = step(&format.scale);
    let statistic = match format.scale.of {
        Statistic::AbsMax => "const f32 s = magnitude_of(key);",
        Statistic::SignedAbsMax => {
            "const f32 s = magnitude_of(key) == 0.0f ? 0.0f : load(x, type, start + position_of(key));"
        }
        Statistic::AbsMean => "const f32 s = (f32)(abs_sum_of(x, type, start, len) / (f64)len);",
    };
    let body = match format.block {
        Some(block) => of_blocks(block, statistic, &step, kept),
        None => of_rows(statistic, &step, kept),
    };
    format!(
        "{HELPERS}// One value as it lies there; `value` makes f32 of it, and `load` does both.
GM_DEVICE u32 bits(const void *x, u32 type, u64 i) {{
    return type == 0 ? gm_load((const u32 *)x + i) : (u32)gm_load((const u16 *)x + i);
}}

GM_DEVICE f32 value(u32 bits, u32 type) {{
    return type == 0 ? gm_float(bits) : type == 1 ? gm_f16_to_f32((u16)bits) : gm_bf16_to_f32((u16)bits);
}}

GM_DEVICE f32 load(const void *x, u32 type, u64 i) {{ return value(bits(x, type, i), type); }}

// As `abs_sum`, of a row of any type. One warp; every warp gets the same.
GM_DEVICE f64 abs_sum_of(const void *x, u32 type, u64 start, u32 len) {{
    f64 sum = 0.0;
    if (gm_lane() < 16)
        for (u32 i = gm_lane(); i < len; i += 16) sum += (f64)gm_abs(load(x, type, start + i));
    f64 total = 0.0;
    for (u32 lane = 0; lane < 16; lane++) total += gm_shfl(sum, lane);
    return total;
}}

// Four values from a multiple of four on, as they lie there, those from `end` on zero; `whole` says that rows are multiples
// of four. `value_of` makes f32 of one of them.
GM_DEVICE u32x4 four(const void *x, u32 type, u64 start, u32 i, u32 end, bool whole) {{
    u32x4 v = {{}};
    if (i >= end) return v;
    if (!whole) {{
        v.x = bits(x, type, start + i);
        if (i + 1 < end) v.y = bits(x, type, start + i + 1);
        if (i + 2 < end) v.z = bits(x, type, start + i + 2);
        if (i + 3 < end) v.w = bits(x, type, start + i + 3);
        return v;
    }}
    if (type == 0) return gm_load((const u32x4 *)((const u32 *)x + start + i));
    const u32x2 pairs = gm_load((const u32x2 *)((const u16 *)x + start + i));
    v.x = pairs.x;
    v.y = pairs.y;
    return v;
}}

GM_DEVICE f32 value_of(const u32x4 &v, u32 j, u32 type, bool whole) {{
    const bool pairs = whole && type != 0;
    const u32 word = pairs ? (j < 2 ? v.x : v.y) : j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
    return value(pairs ? word >> (16 * (j & 1)) & 0xffff : word, type);
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

/// A warp for each block; its units lie within it.
fn of_blocks(block: u32, statistic: &str, step: &str, kept: &str) -> String {
    // What a lane has of the block stays in registers.
    let held = if block.is_multiple_of(32) && block <= 256 { block / 32 } else { 0 };
    let (read, quantize) = if held > 0 {
        let read = format!(
            "u32 raw[{held}];
        GM_UNROLL for (u32 j = 0; j < {held}; j++) raw[j] = bits(x, type, start + j * 32 + gm_lane());
        GM_UNROLL for (u32 j = 0; j < {held}; j++) {{
            const u32 i = j * 32 + gm_lane();
            const f32 v = value(raw[j], type);"
        );
        let quantize = format!(
            "if (unit % 32 == 0 || 32 % unit == 0) {{
            const u32 first = b * {block} / unit, width = unit < 32 ? unit : 32;
            i32 sum = 0;
            GM_UNROLL for (u32 j = 0; j < {held}; j++) {{
                const u32 i = j * 32 + gm_lane();
                const i32 v = quantized(value(raw[j], type), apply);
                gm_store(q + (row * units + first + i / unit) * unit_padded + i % unit, (i8)v);
                i32 part = v;
                for (u32 mask = 1; mask < width; mask *= 2) part += gm_shfl_xor(part, mask);
                sum += part;
                if (unit <= 32 || (j + 1) * 32 % unit == 0) {{
                    if (gm_lane() % width == 0) gm_store(sums + row * units + first + i / unit, sum);
                    sum = 0;
                }}
            }}
            const u32 padding = unit_padded - unit;
            for (u32 i = gm_lane(); i < {block} / unit * padding; i += 32)
                gm_store(q + (row * units + first + i / padding) * unit_padded + unit + i % padding, (i8)0);
            continue;
        }}
        "
        );
        (read, quantize)
    } else {
        let read = "for (u32 i = gm_lane(); i < len; i += 32) {
            const f32 v = load(x, type, start + i);";
        (read.to_string(), String::new())
    };
    format!(
        "for (u32 b = gm_block_y() * {WARPS} + gm_warp(); b < k / {block}; b += gm_blocks_y() * {WARPS}) {{
        const u32 len = {block};
        const u64 start = row * k + b * {block};
        u32 worst = 0xffffffffu;
        u64 key = 0;
        {read}
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
        {quantize}for (u32 first = 0; first < len; first += unit) {{
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
    }}"
    )
}

/// One scale for the row, found by all warps together; where several CUDA blocks share its units, by each of them.
fn of_rows(statistic: &str, step: &str, kept: &str) -> String {
    let round = 4 * THREADS * AHEAD;
    let loads = format!(
        "u32x4 raw[{AHEAD}];
        GM_UNROLL for (u32 n = 0; n < {AHEAD}; n++) raw[n] = four(x, type, start, first + n * {}, k, whole);",
        4 * THREADS
    );
    let each = format!("const u32 i = first + n * {} + j;", 4 * THREADS);
    format!(
        "GM_SHARED(u64, keys, {WARPS});
    GM_SHARED(u32, firsts, {WARPS});
    GM_SHARED(i32, parts, {WARPS});
    const u32 len = k;
    const u64 start = row * k;
    const bool whole = k % 4 == 0;
    u32 worst = 0xffffffffu;
    u64 key = 0;
    GM_NO_UNROLL for (u32 first = gm_thread() * 4; first < len; first += {round}) {{
        {loads}
        GM_UNROLL for (u32 n = 0; n < {AHEAD}; n++)
            GM_UNROLL for (u32 j = 0; j < 4; j++) {{
                {each}
                const f32 v = value_of(raw[n], j, type, whole);
                if (!gm_is_finite(v) && i < worst) worst = i;
                key = gm_max(key, magnitude(v, i));
            }}
    }}
    worst = warp_min(worst);
    key = warp_max(key);
    if (gm_lane() == 0) {{ keys[gm_warp()] = key; firsts[gm_warp()] = worst; }}
    gm_sync();
    for (u32 w = 0; w < {WARPS}; w++) {{
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
    if (gm_thread() == 0 && gm_block_y() == 0) gm_store(scales + row, kept);
    if (units == 1) {{
        if (gm_block_y() > 0) return;
        i32 sum = 0;
        GM_NO_UNROLL for (u32 first = gm_thread() * 4; first < unit_padded; first += {round}) {{
            {loads}
            GM_UNROLL for (u32 n = 0; n < {AHEAD}; n++) {{
                u32 bytes = 0;
                GM_UNROLL for (u32 j = 0; j < 4; j++) {{
                    {each}
                    const i32 v = i < k ? quantized(value_of(raw[n], j, type, whole), apply) : 0;
                    bytes |= ((u32)v & 0xff) << (8 * j);
                    sum += v;
                    if (unit_padded % 4 != 0 && i < unit_padded) gm_store(q + row * unit_padded + i, (i8)v);
                }}
                const u32 j = 0;
                {each}
                if (unit_padded % 4 == 0 && i < unit_padded) gm_store((u32 *)(q + row * unit_padded + i), bytes);
            }}
        }}
        sum = warp_sum(sum);
        if (gm_lane() == 0) parts[gm_warp()] = sum;
        gm_sync();
        if (gm_thread() == 0) {{
            sum = 0;
            for (u32 w = 0; w < {WARPS}; w++) sum += parts[w];
            gm_store(sums + row, sum);
        }}
        return;
    }}
    for (u32 u = gm_block_y() * {WARPS} + gm_warp(); u < units; u += gm_blocks_y() * {WARPS}) {{
        i32 sum = 0;
        for (u32 i = gm_lane(); i < unit_padded; i += 32) {{
            const i32 v = i < unit && u * unit + i < k ? quantized(load(x, type, start + u * unit + i), apply) : 0;
            gm_store(q + (row * units + u) * unit_padded + i, (i8)v);
            sum += v;
        }}
        sum = warp_sum(sum);
        if (gm_lane() == 0) gm_store(sums + row * units + u, sum);
    }}"
    )
}
