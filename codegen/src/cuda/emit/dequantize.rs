//! The kernel that dequantizes: a CUDA block does a run of the format's blocks.
//!
//! Their bytes come to shared memory by aligned loads of sixteen, whatever the size of a block; scales and offsets of
//! runs are computed once, beside them; then each thread makes four values at a time and stores sixteen bytes.

use super::blocks::{header_bytes, load_scalar};
use super::decode::{first_of_code, together};
use super::encode::SHARED;
use super::parameters::{INVALID_CODE, parameters};
use crate::lower::decode as lower;
use crate::lower::ir::{f32, i32};
use crate::plan::{Decode, FormatPlan};
use crate::print::cuda;
use gristmill_spec::vocab::CudaAbi;

/// Threads of a CUDA block.
pub const THREADS: u32 = 256;

/// Elements of which a CUDA block holds the bytes at once, unless one block of the format has more, or that many have more
/// bytes and factors than fit into shared memory.
const CHUNK: u32 = 4096;

/// Blocks of the format that a CUDA block does at once.
fn at_once(plan: &FormatPlan<'_>) -> u32 {
    let format = plan.format;
    let factors = plan.groups * 4 * (u32::from(has_runs(plan)) + u32::from(plan.offset));
    let place = if format.row_header.is_some() { 4 } else { 0 };
    let block = format.bytes + header_bytes(format) + factors + place;
    // Bytes are read from a multiple of sixteen to one.
    (CHUNK / format.elements).min((SHARED - 31) / block).max(1)
}

/// Whether factors differ from run to run, or from row to row: then they stand in shared memory.
fn has_runs(plan: &FormatPlan<'_>) -> bool {
    plan.has_scales() || (plan.format.row_header.is_some() && plan.uses_outer())
}

/// Elements for each thread of a CUDA block.
pub fn per_thread(plan: &FormatPlan<'_>) -> u32 {
    (at_once(plan) * plan.format.elements).div_ceil(THREADS)
}

/// The kernel `dequantize`.
pub fn dequantize(plan: &FormatPlan<'_>, function: &str) -> String {
    let format = plan.format;
    let (n, at_once) = (together(plan), at_once(plan));
    let header = header_bytes(format);
    let by_row = format.row_header.is_some();
    let (has_runs, offset) = (has_runs(plan), plan.offset);
    let span = (at_once * (format.bytes + header) + 15).next_multiple_of(16);
    let mut shared = format!("GM_SHARED(u8, bytes, {span});");
    if has_runs {
        shared += &format!("\n    GM_SHARED(f32, scales, {at_once} * RUNS);");
    }
    if offset {
        shared += &format!("\n    GM_SHARED(f32, offsets, {at_once} * RUNS);");
    }
    if by_row {
        shared += &format!("\n    GM_SHARED(u32, places, {at_once});");
    }
    let tail = match (format.row_header, format.tensor_tail) {
        (None, Some((scalar, _))) if plan.uses_outer() => {
            format!("const f32 outer = {};", load_scalar(scalar, "(src + rows * row_bytes)"))
        }
        _ => String::new(),
    };
    let outer = if plan.uses_outer() { "outer" } else { "1.0f" };
    // The factor where blocks have none.
    let factor = cuda::operand(&lower::scale_outside(plan));
    let place_of = |b: &str| {
        if by_row {
            format!("({b}) / (k / ELEMENTS) * row_bytes + {header} + ({b}) % (k / ELEMENTS) * BYTES")
        } else {
            format!("({b}) * BYTES")
        }
    };
    let runs = if has_runs {
        let (of_block, row_outer) = match format.row_header {
            Some(scalar) => (
                "const u64 b = first + i / RUNS;
            const u8 *row = src + b / (k / ELEMENTS) * row_bytes;
            const u32 at = (u32)(place(b, k, row_bytes) - base);
            if (i % RUNS == 0) places[i / RUNS] = at;"
                    .to_string(),
                if plan.uses_outer() {
                    format!("\n            const f32 outer = {};", load_scalar(scalar, "row"))
                } else {
                    "\n            (void)row;".to_string()
                },
            ),
            None => ("const u32 at = shift + i / RUNS * BYTES;".to_string(), String::new()),
        };
        let scale = if plan.has_scales() {
            format!("scale(bytes, at, i % RUNS, {outer})")
        } else {
            format!("{factor};\n            (void)at")
        };
        let offsets = if offset {
            format!("\n            offsets[i] = offset(bytes, at, i % RUNS, {outer});")
        } else {
            String::new()
        };
        format!(
            "GM_NO_UNROLL for (u32 i = gm_thread(); i < count * RUNS; i += {THREADS}) {{
            {of_block}{row_outer}
            scales[i] = {scale};{offsets}
        }}
        gm_sync();"
        )
    } else if by_row {
        format!(
            "GM_NO_UNROLL for (u32 i = gm_thread(); i < count; i += {THREADS}) places[i] = (u32)(place(first + i, k, row_bytes) - base);
        gm_sync();"
        )
    } else {
        String::new()
    };
    let at = if by_row { "places[element / ELEMENTS]" } else { "shift + element / ELEMENTS * BYTES" };
    let run = "element / ELEMENTS * RUNS + element % ELEMENTS / RUN";
    let terms = match (has_runs, offset) {
        (true, true) => format!("const f32 s = scales[{run}], o = offsets[{run}];\n            "),
        (true, false) => format!("const f32 s = scales[{run}];\n            "),
        (false, _) => String::new(),
    };
    let scale = if has_runs { f32("s") } else { lower::scale_outside(plan) };
    let weight = lower::weight(scale, i32("v[i]"), offset.then(|| f32("o")));
    let value = cuda::expr(&weight);
    let of_code = first_of_code(&format.value, "(first * ELEMENTS + element + bad)");
    let report = if plan.last_code.is_some() {
        format!(
            "if (bad < N) {{
                gm_atomic_min(fault, {of_code} * 4 + {INVALID_CODE});
                continue;
            }}"
        )
    } else {
        "(void)bad;".to_string()
    };
    let store = if n == 4 {
        "gm_store((f32x4 *)(dst + first * ELEMENTS + element), f32x4{out[0], out[1], out[2], out[3]});"
    } else {
        "gm_store(dst + first * ELEMENTS + element, out[0]);"
    };
    let takes = parameters(&CudaAbi::DEQUANTIZE);
    format!(
        "// Where block b starts in the tensor, in bytes.
GM_DEVICE u64 place(u64 b, u32 k, u64 row_bytes) {{ (void)k; (void)row_bytes; return {place}; }}

GM_KERNEL({THREADS}) {function}({takes}) {{
    {shared}
    const u64 blocks = (u64)rows * (k / ELEMENTS), size = rows * row_bytes;
    {tail}
    for (u64 first = (u64)gm_block() * {at_once}; first < blocks; first += (u64)gm_blocks() * {at_once}) {{
        const u32 count = (u32)gm_min(blocks - first, (u64){at_once});
        // From the sixteen bytes in which the first block starts to those in which the last one ends.
        const u64 begin = place(first, k, row_bytes), base = begin / 16 * 16;
        const u64 end = place(first + count - 1, k, row_bytes) + BYTES;
        const u32 span = (u32)(end - base), shift = (u32)(begin - base);
        const u32 whole = gm_min((span + 15) / 16, (u32)gm_min((size - base) / 16, (u64)span));
        GM_NO_UNROLL for (u32 i = gm_thread(); i < whole; i += {THREADS})
            gm_shared_put(bytes, i * 16, gm_load_once((const u32x4 *)(src + base) + i));
        GM_NO_UNROLL for (u32 i = whole * 16 + gm_thread(); i < span; i += {THREADS}) bytes[i] = gm_load_once(src + base + i);
        (void)shift;
        gm_sync();
        {runs}
        {unroll} for (u32 j = 0; j < {rounds}; j++) {{
            const u32 element = (j * {THREADS} + gm_thread()) * N;
            if (element >= count * ELEMENTS) continue;
            {terms}i32 v[N];
            const u32 bad = values(bytes, {at}, element % ELEMENTS, v);
            {report}
            f32 out[N];
            GM_UNROLL for (u32 i = 0; i < N; i++) out[i] = {value};
            {store}
        }}
        gm_sync();
    }}
    (void)fault;
}}
GM_EXPORT({function})

",
        place = place_of("b"),
        // Lookups of all rounds at once would want more registers than leave the multiprocessor full.
        unroll = match plan.decode() {
            Decode::Codebook => "GM_UNROLL_TWO",
            Decode::Affine { .. } | Decode::Table(_) => "GM_UNROLL",
        },
        rounds = (at_once * format.elements / n).div_ceil(THREADS),
    )
}
