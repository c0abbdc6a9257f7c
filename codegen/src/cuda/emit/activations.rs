//! Activations to int8: the kernel that does nothing else, and the same text in products that quantize for themselves.
//!
//! A CUDA block does a row, or several share its blocks or units. One token leaves a device nearly idle, so what counts is
//! how long the loads of a row take one after the other: each thread has several under way, as they lie in memory, and takes
//! them apart afterwards.

use super::parameters::{SCALE_OVERFLOW, parameters};
use super::quantized::{Rows, Statements, THREADS};
use crate::lower::ir::Type;
use crate::lower::quantize as lower;
use crate::print::cuda;
use gristmill_spec::model::{Activations, Statistic};
use gristmill_spec::vocab::CudaAbi;

/// Reductions over a warp.
const REDUCE_HEADER: &str = include_str!("../../../cuda/reduce.h");

/// Functions that the statements call.
pub(super) fn functions(format: &Activations) -> String {
    let rounded = lower::rounded(&format.scale, format.round, 0.0, format.clamp, 0);
    let integer = cuda::expr(&rounded.to(Type::I32));
    format!(
        "{REDUCE_HEADER}// One value as it lies there; `value` makes f32 of it, and `load` does both.
GM_DEVICE u32 bits(const void *x, u32 type, u64 i) {{
    return type == 0 ? gm_load((const u32 *)x + i) : (u32)gm_load((const u16 *)x + i);
}}

GM_DEVICE f32 value(u32 bits, u32 type) {{
    return type == 0 ? gm_float(bits) : type == 1 ? gm_f16_to_f32((u16)bits) : gm_bf16_to_f32((u16)bits);
}}

GM_DEVICE f32 load(const void *x, u32 type, u64 i) {{ return value(bits(x, type, i), type); }}

// Sixteen interleaved sums of |x| over a row, then their sum in order: what `abs_mean` is defined by. One warp; every warp gets the same.
GM_DEVICE f64 abs_sum_of(const void *x, u32 type, u64 start, u32 len) {{
    f64 sum = 0.0;
    if (gm_lane() < 16)
        for (u32 i = gm_lane(); i < len; i += 16) sum += (f64)gm_abs(load(x, type, start + i));
    f64 total = 0.0;
    for (u32 lane = 0; lane < 16; lane++) total += gm_shfl(sum, lane);
    return total;
}}

// Four values from a multiple of four on, as they lie there, those from `end` on zero; `whole` says that rows are multiples
// of four. `values` makes f32 of them.
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

GM_DEVICE void values(const u32x4 &v, u32 type, bool whole, f32 (&out)[4]) {{
    if (type == 0) {{
        const u32 words[4] = {{v.x, v.y, v.z, v.w}};
        GM_UNROLL for (u32 j = 0; j < 4; j++) out[j] = gm_float(words[j]);
        return;
    }}
    const u32 words[4] = {{whole ? v.x & 0xffff : v.x, whole ? v.x >> 16 : v.y, whole ? v.y & 0xffff : v.z, whole ? v.y >> 16 : v.w}};
    GM_UNROLL for (u32 j = 0; j < 4; j++) out[j] = value(words[j], type);
}}

// Of a number, as an integer of the same order; of what is not finite, at least 0x7f800000.
GM_DEVICE u32 size(f32 x) {{ return gm_bits(x) & 0x7fffffffu; }}

GM_DEVICE i32 quantized(f32 x, f32 apply) {{ return {integer}; }}

"
    )
}

/// The unit of an activation format: one kernel.
pub fn emit(format: &Activations, function: &str) -> String {
    let Statements { declare, body, .. } = statements(format, &Rows::Memory);
    let takes = parameters(&CudaAbi::QUANTIZE_ACTIVATIONS);
    format!(
        "{}GM_KERNEL_WIDE({THREADS}) {function}({takes}) {{
    {declare}const u64 row = gm_block();
    (void)m;
    gm_launch_next();
    gm_wait_for_previous();
    {body}
}}
GM_EXPORT({function})
",
        functions(format)
    )
}

/// What quantizes row `row` of `x`, whose values are of type `type`, with all threads of a CUDA block.
pub(super) fn statements(format: &Activations, rows: &Rows) -> Statements {
    let step = format!(
        "{}\n    (void)stored;\n    const f32 kept = {};",
        cuda::bindings(&lower::step(&format.scale)),
        cuda::expr(&lower::kept(format))
    );
    let Statements { declare, body, meets } = match format.block {
        Some(block) => of_blocks(block, format.scale.of, &step, rows),
        None => of_rows(format.scale.of, &step, rows),
    };
    Statements { declare, body: format!("{}{body}", rows.sizes(format.block)), meets }
}

/// Statements that declare `s`, the statistic of a block whose largest size is `largest`; `position` says how the first
/// place of that is found.
fn declare_s(of: Statistic, position: &str) -> String {
    match of {
        Statistic::AbsMax => "const f32 s = gm_float(largest);".to_string(),
        Statistic::SignedAbsMax => format!(
            "{position}
        const f32 s = largest == 0 ? 0.0f : load(x, type, start + position);"
        ),
        Statistic::AbsMean => "const f32 s = (f32)(abs_sum_of(x, type, start, len) / (f64)len);".to_string(),
    }
}

/// A block to a warp, or several: its units lie within it.
fn of_blocks(block: u32, of: Statistic, step: &str, rows: &Rows) -> Statements {
    let slowly = block_by_block(block, of, step, rows);
    // As many values to a lane as make one load, or two.
    let each = if block <= 128 { 4 } else { 8 };
    let together = block.is_power_of_two() && (16..=256).contains(&block) && of != Statistic::AbsMean;
    let body = match rows {
        _ if !together => slowly,
        Rows::Memory => format!(
            "if (unit % {each} == 0 && (unit / {each} & (unit / {each} - 1)) == 0 && unit_padded % 4 == 0) {{
    {}
    }} else {{
    {slowly}
    }}",
            several_blocks(block, each, of, step, rows)
        ),
        Rows::Shared { unit: (unit, padded), .. } => {
            let whole =
                unit.is_multiple_of(each) && (unit / each).is_power_of_two() && padded.is_multiple_of(4);
            if whole { several_blocks(block, each, of, step, rows) } else { slowly }
        }
    };
    Statements { declare: String::new(), body, meets: false }
}

/// A lane has `each` neighbouring values, and a warp as many blocks as there are lanes for.
fn several_blocks(block: u32, each: u32, of: Statistic, step: &str, rows: &Rows) -> String {
    let lanes = block / each;
    let at_once = 32 / lanes;
    let vectors = each / 4;
    let reduce = |function: &str, value: &str| match lanes {
        32 => format!("{value} = gm_warp_{function}({value});"),
        _ => format!(
            "GM_UNROLL for (u32 mask = 1; mask < {lanes}; mask *= 2) {value} = gm_{function}({value}, gm_shfl_xor({value}, mask));"
        ),
    };
    let position = format!(
        "u32 position = 0xffffffffu;
        GM_UNROLL for (u32 i = 0; i < {each}; i++)
            if (size(v[i / 4][i % 4]) == largest) position = gm_min(position, within + i);
        {}",
        reduce("min", "position")
    );
    let (first, apart) = rows.shares();
    let put_zero = rows.put("byte", &format!("{} + in * unit_padded + unit + i % padding", rows.row()), "0");
    let pad = match rows {
        Rows::Shared { unit: (unit, padded), .. } if unit == padded => String::new(),
        Rows::Memory | Rows::Shared { .. } => format!(
            "const u32 padding = unit_padded - unit, padded = gm_min(blocks - first, {at_once}u) * ({block} / unit) * padding;
        for (u32 i = gm_lane(); i < padded; i += 32) {{
            const u32 in = first * ({block} / unit) + i / padding;
            {put_zero}
        }}"
        ),
    };
    format!(
        "for (u32 first = ({first}) * {at_once}; first < blocks; first += ({apart}) * {at_once}) {{
        // Lanes without a block do the last one over and put nothing.
        const bool there = first + gm_lane() / {lanes} < blocks;
        const u32 b = there ? first + gm_lane() / {lanes} : blocks - 1, within = gm_lane() % {lanes} * {each};
        const u64 start = row * k + b * {block};
        f32 v[{vectors}][4];
        u32 largest = 0;
        u32x4 raw[{vectors}];
        GM_UNROLL for (u32 n = 0; n < {vectors}; n++) raw[n] = four(x, type, start, within + n * 4, {block}, true);
        GM_UNROLL for (u32 n = 0; n < {vectors}; n++) {{
            values(raw[n], type, true, v[n]);
            GM_UNROLL for (u32 j = 0; j < 4; j++) largest = gm_max(largest, size(v[n][j]));
        }}
        {largest}
        if (largest >= 0x7f800000u && there)
            for (u32 i = 0; i < {each}; i++)
                if (!gm_is_finite(v[i / 4][i % 4])) {{
                    gm_atomic_min(fault, {place} * 4);
                    break;
                }}
        {s}
        {step}
        if (largest < 0x7f800000u && !gm_is_finite(kept) && there && within == 0) gm_atomic_min(fault, {of_block} * 4 + {SCALE_OVERFLOW});
        // What was found wanting is put all the same: a kernel that goes on finds something there.
        if (there && within == 0) {{ {put_scale} }}
        const u32 u = (b * {block} + within) / unit;
        i32 sum = 0;
        GM_UNROLL for (u32 n = 0; n < {vectors}; n++) {{
            u32 bytes = 0;
            GM_UNROLL for (u32 j = 0; j < 4; j++) {{
                const i32 i = quantized(v[n][j], apply);
                bytes |= ((u32)i & 0xff) << (8 * j);
                sum += i;
            }}
            const u32 at = within % unit + n * 4;
            if (there) {{ {put_word} }}
        }}
        for (u32 mask = 1; mask < unit / {each}; mask *= 2) sum += gm_shfl_xor(sum, mask);
        if (there && within % unit == 0) {{ {put_sum} }}
        {pad}
    }}",
        largest = reduce("max", "largest"),
        place = rows.place("start + within + i"),
        of_block = rows.place("start"),
        s = declare_s(of, &position),
        put_scale = rows.put("scale", "b", "kept"),
        put_word = rows.put("word", &format!("{} + u * unit_padded + at", rows.row()), "bytes"),
        put_sum = rows.put("sum", "u", "sum"),
    )
}

/// A warp for each block, and each unit in it.
fn block_by_block(block: u32, of: Statistic, step: &str, rows: &Rows) -> String {
    let position = "u32 position = 0xffffffffu;
        for (u32 i = gm_lane(); i < len; i += 32)
            if (size(load(x, type, start + i)) == largest) position = gm_min(position, i);
        position = gm_warp_min(position);";
    let (first, apart) = rows.shares();
    format!(
        "for (u32 b = {first}; b < blocks; b += {apart}) {{
        const u32 len = {block};
        const u64 start = row * k + b * {block};
        u32 largest = 0;
        for (u32 i = gm_lane(); i < len; i += 32) largest = gm_max(largest, size(load(x, type, start + i)));
        largest = gm_warp_max(largest);
        if (largest >= 0x7f800000u)
            for (u32 i = gm_lane(); i < len; i += 32)
                if (!gm_is_finite(load(x, type, start + i))) {{
                    gm_atomic_min(fault, {place} * 4);
                    break;
                }}
        {s}
        {step}
        if (largest < 0x7f800000u && !gm_is_finite(kept) && gm_lane() == 0) gm_atomic_min(fault, {of_block} * 4 + {SCALE_OVERFLOW});
        if (gm_lane() == 0) {{ {put_scale} }}
        for (u32 first = 0; first < len; first += unit) {{
            const u32 u = (b * {block} + first) / unit;
            i32 sum = 0;
            for (u32 i = gm_lane(); i < unit_padded; i += 32) {{
                const i32 v = i < unit ? quantized(load(x, type, start + first + i), apply) : 0;
                {put_byte}
                sum += v;
            }}
            sum = gm_warp_sum(sum);
            if (gm_lane() == 0) {{ {put_sum} }}
        }}
    }}",
        place = rows.place("start + i"),
        of_block = rows.place("start"),
        s = declare_s(of, position),
        put_scale = rows.put("scale", "b", "kept"),
        put_byte = rows.put("byte", &format!("{} + u * unit_padded + i", rows.row()), "v"),
        put_sum = rows.put("sum", "u", "sum"),
    )
}

/// Bytes of shared memory that the warps of `threads` threads find things of a row in, besides the row itself.
pub(super) fn shared_bytes(format: &Activations, threads: u32) -> u32 {
    match format.block {
        Some(_) => 0,
        None => row_arrays(format.scale.of).count() as u32 * 4 * (threads / 32),
    }
}

/// Types and names of arrays with an element for each warp.
fn row_arrays(of: Statistic) -> impl Iterator<Item = (&'static str, &'static str)> {
    let position = (of == Statistic::SignedAbsMax).then_some(("u32", "position_of_warp"));
    [("u32", "size_of_warp"), ("i32", "sum_of_warp")].into_iter().chain(position)
}

/// One scale for the row, found by all warps together; where several CUDA blocks share its units, by each of them.
fn of_rows(of: Statistic, step: &str, rows: &Rows) -> Statements {
    let (threads, warps, ahead) = (rows.threads(), rows.warps(), rows.ahead());
    let warps_at_most = rows.most_warps();
    let declare: String =
        row_arrays(of).map(|(ty, name)| format!("GM_SHARED({ty}, {name}, {warps_at_most});\n    ")).collect();
    let first_only = match rows {
        Rows::Memory => "gm_thread() == 0 && gm_block_y() == 0",
        Rows::Shared { .. } => "gm_thread() == 0",
    };
    let quantize = match rows {
        Rows::Memory => format!(
            "if (units == 1) {{
        if (gm_block_y() > 0) return;
        {}
        return;
    }}
    {}",
            one_unit(rows),
            several_units(rows)
        ),
        Rows::Shared { unit: (0, _), .. } => one_unit(rows),
        Rows::Shared { .. } => several_units(rows),
    };
    let body = format!(
        "const u32 len = k;
    const u64 start = row * k;
    const bool whole = {whole};
    u32 largest = 0;
    // What a thread loads first stays with it.
    u32x4 raw[{ahead}];
    {{
        const u32 first = gm_thread() * 4;
        {loads_first}
        {sizes_first}
    }}
    GM_NO_UNROLL for (u32 first = gm_thread() * 4 + {round}; first < len; first += {round}) {{
        u32x4 more[{ahead}];
        {loads_more}
        {sizes_more}
    }}
    largest = gm_warp_max(largest);
    if (gm_lane() == 0) size_of_warp[gm_warp()] = largest;
    gm_sync();
    largest = gm_warp_max(gm_lane() < {warps} ? (u32)size_of_warp[gm_lane()] : 0);
    if (largest >= 0x7f800000u) {{
        // All threads are here, and each reports the first that it finds.
        for (u32 i = gm_thread(); i < len; i += {threads})
            if (!gm_is_finite(load(x, type, start + i))) {{
                gm_atomic_min(fault, {place} * 4);
                break;
            }}
        return;
    }}
    {s}
    {step}
    if (!gm_is_finite(kept)) {{
        if (gm_thread() == 0) gm_atomic_min(fault, {of_row} * 4 + {SCALE_OVERFLOW});
        return;
    }}
    if ({first_only}) {{ {put_scale} }}
    {quantize}",
        whole = rows.whole(),
        round = rows.round(),
        loads_first = loads(rows, "raw"),
        sizes_first = sizes(rows, "raw"),
        loads_more = loads(rows, "more"),
        sizes_more = sizes(rows, "more"),
        place = rows.place("start + i"),
        of_row = rows.place("start"),
        s = declare_s(of, &position_in_row(&threads, &warps)),
        put_scale = rows.put("scale", "0", "kept"),
    );
    Statements { declare, body, meets: matches!(rows, Rows::Shared { unit: (0, _), sums: true, .. }) }
}

/// Statements that find the first place in a row of its largest size.
fn position_in_row(threads: &str, warps: &str) -> String {
    format!(
        "u32 position = 0xffffffffu;
    for (u32 i = gm_thread(); i < len; i += {threads})
        if (size(load(x, type, start + i)) == largest) position = gm_min(position, i);
    position = gm_warp_min(position);
    if (gm_lane() == 0) position_of_warp[gm_warp()] = position;
    gm_sync();
    position = gm_warp_min(gm_lane() < {warps} ? (u32)position_of_warp[gm_lane()] : 0xffffffffu);"
    )
}

/// Statements that begin the loads of a round, to `raw`.
fn loads(rows: &Rows, raw: &str) -> String {
    let (ahead, threads) = (rows.ahead(), rows.threads());
    format!(
        "GM_UNROLL for (u32 n = 0; n < {ahead}; n++) {raw}[n] = four(x, type, start, first + n * 4 * {threads}, k, whole);"
    )
}

/// Statements that have `largest` take in what a round has loaded.
fn sizes(rows: &Rows, raw: &str) -> String {
    let (ahead, threads) = (rows.ahead(), rows.threads());
    format!(
        "GM_UNROLL for (u32 n = 0; n < {ahead}; n++) {{
            const u32 i = first + n * 4 * {threads};
            if (i >= len) continue;
            f32 v[4];
            values({raw}[n], type, whole, v);
            GM_UNROLL for (u32 j = 0; j < 4; j++) largest = gm_max(largest, size(v[j]));
        }}"
    )
}

/// Statements that quantize a row that is one unit, with all threads.
fn one_unit(rows: &Rows) -> String {
    let (ahead, threads, warps) = (rows.ahead(), rows.threads(), rows.warps());
    let word = |at: &str| rows.put("word", at, "bytes");
    let (by_byte, put_word) = match rows {
        Rows::Memory => (
            format!(
                "if (unit_padded % 4 != 0)
                GM_UNROLL for (u32 j = 0; j < 4; j++) if (i + j < unit_padded) {{ {} }}
            ",
                rows.put("byte", "row * unit_padded + i + j", "bytes >> (8 * j)")
            ),
            word("row * unit_padded + i"),
        ),
        // There every tile of a packing is whole words.
        Rows::Shared { .. } => (String::new(), word(&format!("{} + i", rows.row()))),
    };
    // Behind the last barrier the first warp adds what the warps have.
    let sum = match rows {
        Rows::Shared { sums: false, .. } => "(void)sum;".to_string(),
        Rows::Memory | Rows::Shared { .. } => format!(
            "sum = gm_warp_sum(sum);
        if (gm_lane() == 0) sum_of_warp[gm_warp()] = sum;
        gm_sync();
        if (gm_warp() == 0) {{
            sum = gm_warp_sum(gm_lane() < {warps} ? (i32)sum_of_warp[gm_lane()] : 0);
            if (gm_lane() == 0) {{ {} }}
        }}",
            rows.put("sum", "0", "sum")
        ),
    };
    format!(
        "i32 sum = 0;
        GM_NO_UNROLL for (u32 first = gm_thread() * 4; first < unit_padded; first += {round}) {{
            if (first >= {round}) {{ {load} }}
            GM_UNROLL for (u32 n = 0; n < {ahead}; n++) {{
                const u32 i = first + n * 4 * {threads};
                if (i >= unit_padded) continue;
                f32 v[4];
                values(raw[n], type, whole, v);
                u32 bytes = 0;
                GM_UNROLL for (u32 j = 0; j < 4; j++) {{
                    const i32 of = (whole ? i : i + j) < k ? quantized(v[j], apply) : 0;
                    bytes |= ((u32)of & 0xff) << (8 * j);
                    sum += of;
                }}
                {by_byte}if (unit_padded % 4 == 0) {{ {put_word} }}
            }}
        }}
        {sum}",
        round = rows.round(),
        load = loads(rows, "raw"),
    )
}

/// Statements that quantize a row of several units, a warp for each.
fn several_units(rows: &Rows) -> String {
    let (first, apart) = rows.shares();
    format!(
        "for (u32 u = {first}; u < units; u += {apart}) {{
        i32 sum = 0;
        for (u32 i = gm_lane(); i < unit_padded; i += 32) {{
            const i32 v = i < unit && u * unit + i < k ? quantized(load(x, type, start + u * unit + i), apply) : 0;
            {}
            sum += v;
        }}
        sum = gm_warp_sum(sum);
        if (gm_lane() == 0) {{ {} }}
    }}",
        rows.put("byte", &format!("{} + u * unit_padded + i", rows.row()), "v"),
        rows.put("sum", "u", "sum"),
    )
}
