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
    let (n, at_once, by_row) = (together(plan), at_once(plan), format.row_header.is_some());
    let place = if by_row {
        let header = header_bytes(format);
        format!("(b) / (k / ELEMENTS) * row_bytes + {header} + (b) % (k / ELEMENTS) * BYTES")
    } else {
        "(b) * BYTES".to_string()
    };
    let outer = match (format.row_header, format.tensor_tail) {
        (None, Some((scalar, _))) if plan.uses_outer() => {
            format!("const f32 outer = {};", load_scalar(scalar, "(src + rows * row_bytes)"))
        }
        _ => String::new(),
    };
    let run = "element / ELEMENTS * RUNS + element % ELEMENTS / RUN";
    let terms = match (has_runs(plan), plan.offset) {
        (true, true) => format!("const f32 s = scales[{run}], o = offsets[{run}];\n            "),
        (true, false) => format!("const f32 s = scales[{run}];\n            "),
        (false, _) => String::new(),
    };
    let scale = if has_runs(plan) { f32("s") } else { lower::scale_outside(plan) };
    let weight = lower::weight(scale, i32("v[i]"), plan.offset.then(|| f32("o")));
    let report = if plan.last_code.is_some() {
        format!(
            "if (bad < N) {{
                gm_atomic_min(fault, {} * 4 + {INVALID_CODE});
                continue;
            }}",
            first_of_code(&format.value, "(first * ELEMENTS + element + bad)")
        )
    } else {
        "(void)bad;".to_string()
    };
    format!(
        "// Where block b starts in the tensor, in bytes.
GM_DEVICE u64 place(u64 b, u32 k, u64 row_bytes) {{ (void)k; (void)row_bytes; return {place}; }}

GM_KERNEL({THREADS}) {function}({takes}) {{
    {shared}
    const u64 blocks = (u64)rows * (k / ELEMENTS), size = rows * row_bytes;
    {outer}
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
        shared = shared(plan),
        runs = factors(plan),
        at = if by_row { "places[element / ELEMENTS]" } else { "shift + element / ELEMENTS * BYTES" },
        takes = parameters(&CudaAbi::DEQUANTIZE),
        value = cuda::expr(&weight),
        store = if n == 4 {
            "gm_store((f32x4 *)(dst + first * ELEMENTS + element), f32x4{out[0], out[1], out[2], out[3]});"
        } else {
            "gm_store(dst + first * ELEMENTS + element, out[0]);"
        },
        // Lookups of all rounds at once would want more registers than leave the multiprocessor full.
        unroll = match plan.decode() {
            Decode::Codebook => "GM_UNROLL_TWO",
            Decode::Affine { .. } | Decode::Table(_) => "GM_UNROLL",
        },
        rounds = (at_once * format.elements / n).div_ceil(THREADS),
    )
}

/// Arrays in shared memory.
fn shared(plan: &FormatPlan<'_>) -> String {
    let (format, at_once) = (plan.format, at_once(plan));
    let span = (at_once * (format.bytes + header_bytes(format)) + 15).next_multiple_of(16);
    let mut shared = format!("GM_SHARED(u8, bytes, {span});");
    for (there, ty, name, each) in [
        (has_runs(plan), "f32", "scales", " * RUNS"),
        (plan.offset, "f32", "offsets", " * RUNS"),
        (format.row_header.is_some(), "u32", "places", ""),
    ] {
        if there {
            shared += &format!("\n    GM_SHARED({ty}, {name}, {at_once}{each});");
        }
    }
    shared
}

/// Statements that put the factors of runs into shared memory, and where the blocks of rows are.
fn factors(plan: &FormatPlan<'_>) -> String {
    if !has_runs(plan) {
        return match plan.format.row_header {
            None => String::new(),
            Some(_) => format!(
                "GM_NO_UNROLL for (u32 i = gm_thread(); i < count; i += {THREADS}) places[i] = (u32)(place(first + i, k, row_bytes) - base);
        gm_sync();"
            ),
        };
    }
    let (of_block, row_outer) = match plan.format.row_header {
        Some(scalar) => (
            "const u64 b = first + i / RUNS;
            const u8 *row = src + b / (k / ELEMENTS) * row_bytes;
            const u32 at = (u32)(place(b, k, row_bytes) - base);
            if (i % RUNS == 0) places[i / RUNS] = at;",
            match plan.uses_outer() {
                true => format!("\n            const f32 outer = {};", load_scalar(scalar, "row")),
                false => "\n            (void)row;".to_string(),
            },
        ),
        None => ("const u32 at = shift + i / RUNS * BYTES;", String::new()),
    };
    let outer = if plan.uses_outer() { "outer" } else { "1.0f" };
    let scale = match plan.has_scales() {
        true => format!("scale(bytes, at, i % RUNS, {outer})"),
        // The factor where blocks have none.
        false => format!("{};\n            (void)at", cuda::operand(&lower::scale_outside(plan))),
    };
    let offsets = match plan.offset {
        true => format!("\n            offsets[i] = offset(bytes, at, i % RUNS, {outer});"),
        false => String::new(),
    };
    format!(
        "GM_NO_UNROLL for (u32 i = gm_thread(); i < count * RUNS; i += {THREADS}) {{
            {of_block}{row_outer}
            scales[i] = {scale};{offsets}
        }}
        gm_sync();"
    )
}
