//! Quantizers that are named algorithms, on the GPU: a warp for each block, a lane for each run.
//!
//! The arithmetic is that of the runtime's `search` module, operation by operation, so that the bytes are the same.

use super::encode::{WARPS, put};
use super::parameters::{SCALE_OVERFLOW, parameters};
use crate::Error;
use crate::lower::ir::{Type, f32};
use crate::lower::stored;
use crate::plan::{FormatPlan, KMinPlan, SearchPlan};
use crate::print::cuda::{self, float};
use gristmill_spec::model::{Field, Format, Search};
use gristmill_spec::vocab::CudaAbi;

/// The kernel of a search, where there is one for the GPU.
pub fn quantize(plan: &FormatPlan<'_>, name: &str, search: Search, function: &str) -> Result<String, Error> {
    let Search::KMin { .. } = search else {
        return Err(Error::passed(
            plan.format,
            format!(
                "the quantizer `{name}` uses `{}`, which has no CUDA version (`k-min` has); leave the format out of `formats` in the [[cuda]] table",
                search.name()
            ),
        ));
    };
    let k_min = SearchPlan { plan, search }.k_min()?;
    if plan.groups > 32 {
        return Err(Error::passed(
            plan.format,
            "the CUDA version of `k-min` has a lane for each run, at most 32",
        ));
    }
    let words = plan.format.bytes.div_ceil(4);
    Ok(format!(
        "enum : u32 {{ {function}_WORDS = {words} }};\n\n{}{}",
        functions(&k_min),
        kernel(plan.format, &k_min, function)
    ))
}

/// What finds the scale, the minimum and the codes of a run, and what finds what the runs of a block share.
fn functions(k_min: &KMinPlan<'_>) -> String {
    let narrowed = stored::narrowed(k_min.scalar, f32("v"));
    format!(
        "GM_DEVICE f32 nearest(f32 v, f32 high) {{ return gm_min(gm_max(gm_rint(v), 0.0f), high); }}
GM_DEVICE f32 stored_value(f32 v) {{ return {round}; }}
GM_DEVICE u32 stored_bits(f32 v) {{ return {bits}; }}

GM_DEVICE f32 weight(f32 floor, f32 x) {{ return floor + gm_abs(x); }}

// The summed error of a run under a scale and a minimum.
GM_DEVICE f32 error(const f32 (&x)[RUN], f32 floor, const u8 (&codes)[RUN], f32 scale, f32 min) {{
    f32 sum = 0.0f;
    for (u32 i = 0; i < RUN; i++) {{
        const f32 off = scale * (f32)codes[i] + min - x[i];
        sum += weight(floor, x[i]) * ({off});
    }}
    return sum;
}}

// The scale and the minimum (as what is subtracted) of one run, and its codes.
GM_DEVICE f32x2 fit(const f32 (&x)[RUN], u8 (&codes)[RUN]) {{
    f32 squares = 0.0f;
    for (u32 i = 0; i < RUN; i++) squares += x[i] * x[i];
    const f32 floor = {floor};
    f32 min = x[0], max = x[0], sum_w = 0.0f, sum_x = 0.0f;
    for (u32 i = 0; i < RUN; i++) {{
        const f32 w = weight(floor, x[i]);
        if (x[i] < min) min = x[i];
        if (x[i] > max) max = x[i];
        sum_w += w;
        sum_x += w * x[i];
    }}
    if (min > 0.0f) min = 0.0f;
    for (u32 i = 0; i < RUN; i++) codes[i] = 0;
    if (max == min) return f32x2{{0.0f, -min}};
    const f32 per = {top} / (max - min);
    if (!gm_is_finite(per)) return f32x2{{0.0f, 0.0f}};
    f32 scale = 1.0f / per;
    for (u32 i = 0; i < RUN; i++) codes[i] = (u8)gm_to_i32(nearest(per * (x[i] - min), {top}));
    f32 best = error(x, floor, codes, scale, min);
    for (u32 step = 0; step <= {steps}; step++) {{
        // With the minimum that is best so far, as the reference has it.
        const f32 per = ({start} + 0.1f * (f32)step + {top}) / (max - min);
        f32 sum_l = 0.0f, sum_ll = 0.0f, sum_xl = 0.0f;
        u8 trial[RUN];
        for (u32 i = 0; i < RUN; i++) {{
            const f32 w = weight(floor, x[i]), l = nearest(per * (x[i] - min), {top});
            trial[i] = (u8)gm_to_i32(l);
            sum_l += w * l;
            sum_ll += w * l * l;
            sum_xl += w * l * x[i];
        }}
        const f32 d = sum_w * sum_ll - sum_l * sum_l;
        if (d > 0.0f) {{
            f32 this_scale = (sum_w * sum_xl - sum_x * sum_l) / d;
            f32 this_min = (sum_ll * sum_x - sum_l * sum_xl) / d;
            if (this_min > 0.0f) {{
                this_min = 0.0f;
                this_scale = sum_xl / sum_ll;
            }}
            const f32 now = error(x, floor, trial, this_scale, this_min);
            if (now < best) {{
                for (u32 i = 0; i < RUN; i++) codes[i] = trial[i];
                best = now;
                scale = this_scale;
                min = this_min;
            }}
        }}
    }}
    return f32x2{{scale, -min}};
}}

// A common step for the lanes' numbers (none negative), and the own number in it; a lane without a run has 0.
GM_DEVICE f32x2 factor(f32 v, f32 top) {{
    const u32 broken = gm_ballot(!gm_is_finite(v));
    if (broken != 0) {{
        u32 lane = 0;
        while ((broken >> lane & 1) == 0) lane++;
        return f32x2{{gm_shfl(v, lane), 0.0f}};
    }}
    f32 max = 0.0f;
    for (u32 lane = 0; lane < RUNS; lane++) {{
        const f32 other = gm_shfl(v, lane);
        if (other > max) max = other;
    }}
    const f32 inverse = top / max;
    const f32 used = max > 0.0f && gm_is_finite(inverse) ? inverse : 0.0f;
    return f32x2{{max / top, nearest(used * v, top)}};
}}

",
        round = cuda::expr(&stored::widened(k_min.scalar, narrowed.clone())),
        bits = cuda::expr(&narrowed.to(Type::U32)),
        off = if k_min.square { "off * off" } else { "gm_abs(off)" },
        floor = if k_min.rms { "gm_sqrt(squares / (f32)RUN)" } else { "0.0f" },
        top = float(k_min.top),
        start = float(k_min.start),
        steps = k_min.steps,
    )
}

fn kernel(format: &Format, k_min: &KMinPlan<'_>, function: &str) -> String {
    let put = |field| put(format, field, false);
    format!(
        "GM_KERNEL({threads}) {function}({takes}) {{
    GM_SHARED(u32, all_words, {WARPS} * {function}_WORDS);
    const u32 words = gm_warp() * {function}_WORDS;
    const u64 count = (u64)rows * (k / ELEMENTS);
    for (u64 b = (u64)gm_block() * {WARPS} + gm_warp(); b < count; b += (u64)gm_blocks() * {WARPS}) {{
        u8 *block = dst + b * BYTES;
        const u32 run = gm_lane();
        for (u32 i = gm_lane(); i < {function}_WORDS; i += 32) all_words[words + i] = 0;
        f32 x[RUN];
        u8 codes[RUN];
        u32 worst = 0xffffffffu;
        for (u32 i = 0; i < RUN; i++) {{
            x[i] = run < RUNS ? gm_load(src + b * ELEMENTS + run * RUN + i) : 0.0f;
            if (!gm_is_finite(x[i]) && worst == 0xffffffffu) worst = run * RUN + i;
        }}
        for (u32 mask = 16; mask > 0; mask /= 2) worst = gm_min(worst, gm_shfl_xor(worst, mask));
        if (worst != 0xffffffffu) {{
            if (gm_lane() == 0) gm_atomic_min(fault, (b * ELEMENTS + worst) * 4);
            continue;
        }}
        const f32x2 found = fit(x, codes);
        const f32x2 scales = factor(found.x, {run_top}), mins = factor(found.y, {min_top});
        const f32 step = stored_value(scales.x) * scales.y, offset = stored_value(mins.x) * mins.y;
        if (!gm_is_finite(stored_value(scales.x)) || !gm_is_finite(stored_value(mins.x))) {{
            if (gm_lane() == 0) gm_atomic_min(fault, b * ELEMENTS * 4 + {SCALE_OVERFLOW});
            continue;
        }}
        gm_sync_warp();
        if (gm_lane() == 0) {{
            {{ const u32 i = 0, code = stored_bits(scales.x); {put_scale} }}
            {{ const u32 i = 0, code = stored_bits(mins.x); {put_min} }}
        }}
        if (run < RUNS) {{
            {{ const u32 i = run, code = {run_raw}; {put_runs} }}
            {{ const u32 i = run, code = {min_raw}; {put_min_runs} }}
            for (u32 n = 0; n < RUN; n++) {{
                const u32 i = run * RUN + n;
                const u32 code = step != 0.0f ? (u32)gm_to_i32(nearest((x[n] + offset) / step, {top})) : codes[n];
                {put_code}
            }}
        }}
        gm_sync_warp();
        for (u32 i = gm_lane(); i < BYTES; i += 32) gm_store(block + i, (u8)(all_words[words + i / 4] >> (8 * (i % 4))));
        gm_sync_warp();
    }}
    (void)row_bytes; (void)steps;
}}
GM_EXPORT({function})

",
        threads = 32 * WARPS,
        takes = parameters(&CudaAbi::QUANTIZE),
        top = float(k_min.top),
        run_top = float(k_min.run_top),
        min_top = float(k_min.min_top),
        run_raw = raw(k_min.run_scales, "scales.y"),
        min_raw = raw(k_min.run_mins, "mins.y"),
        put_scale = put(k_min.scale),
        put_min = put(k_min.min),
        put_runs = put(k_min.run_scales),
        put_min_runs = put(k_min.run_mins),
        put_code = put(k_min.codes),
    )
}

/// The stored bits of a factor (an f32 expression that is a whole number).
fn raw(field: &Field, factor: &str) -> String {
    let factor = f32(factor).to(Type::I32);
    cuda::expr(&stored::raw_of(field, factor).to(Type::U32))
}
