//! `quantize` by rounding, where blocks have a power of two of elements: a warp does several blocks at once, four elements
//! to a lane, and puts their bytes together in shared memory, from where they go out sixteen at a time.

use super::decode::{Four, address, four};
use super::encode::{Rule, SHARED, WARPS, put};
use super::parameters::{SCALE_OVERFLOW, parameters};
use crate::plan::{FormatPlan, lcm};
use crate::text::joined;
use gristmill_spec::model::{Field, FieldLayout, Format};
use gristmill_spec::vocab::CudaAbi;
use std::fmt::Write;

/// How a warp divides blocks.
#[derive(Clone, Copy, Debug)]
pub struct Groups {
    /// Lanes of a block.
    lanes: u32,
    /// Times that each of them has four elements.
    vectors: u32,
    /// Blocks whose bytes a warp puts together: a multiple of sixteen bytes.
    pub blocks: u32,
}

impl Groups {
    /// For formats without row headers whose codes are bytes or less, and no digits.
    pub fn of(format: &Format) -> Option<Groups> {
        let elements = format.elements;
        let code = &format.fields[format.value.code];
        let fits = elements.is_power_of_two() && (16..=1024).contains(&elements) && format.value.group <= 1;
        let narrow = match &code.layout {
            FieldLayout::Bits(slices) => slices.iter().map(|slice| slice.bits).sum::<u32>() <= 8,
            FieldLayout::Digits { .. } => false,
        };
        if !fits || !narrow || format.row_header.is_some() {
            return None;
        }
        let lanes = (elements / 4).min(32);
        let aligned = 16u32 >> format.bytes.trailing_zeros().min(4);
        let blocks = lcm(u64::from(32 / lanes), u64::from(aligned)) as u32;
        (WARPS * blocks * format.bytes <= SHARED).then(|| Groups {
            lanes,
            vectors: elements / (4 * lanes),
            blocks,
        })
    }
}

/// The kernel.
pub fn quantize(plan: &FormatPlan<'_>, groups: Groups, rule: &Rule<'_>, function: &str) -> String {
    let format = plan.format;
    let Groups { lanes, vectors, blocks } = groups;
    let words = blocks * format.bytes / 4;
    let half = lanes / 2;
    let scale_store = match &rule.scale {
        None => String::new(),
        Some((field, bits, finite)) => format!(
            "const u32 stored_bits = {bits};
            if (ok && !({finite})) {{
                if (part == 0) gm_atomic_min(fault, b * ELEMENTS * 4 + {SCALE_OVERFLOW});
                ok = false;
            }}
            if (ok && part == 0) {{ const u32 i = 0, code = stored_bits; {} }}",
            put(format, field, blocks > 1)
        ),
    };
    let field = &format.fields[format.value.code];
    let put_codes = put_four(format, field).unwrap_or_else(|| {
        format!(
            "GM_UNROLL for (u32 n = 0; n < 4; n++) {{ const u32 i = e + n, code = codes >> (8 * n) & 0xff; {} }}",
            put(format, field, blocks > 1)
        )
    });
    let takes = parameters(&CudaAbi::QUANTIZE);
    format!(
        "GM_KERNEL({threads}) {function}({takes}) {{
    GM_SHARED(u32, all_words, {WARPS} * {words});
    const u32 words = gm_warp() * {words}, part = gm_lane() % {lanes};
    const u64 count = (u64)rows * (k / ELEMENTS);
    for (u64 first = ((u64)gm_block() * {WARPS} + gm_warp()) * {blocks}; first < count; first += (u64)gm_blocks() * {WARPS} * {blocks}) {{
        for (u32 i = gm_lane(); i < {words}; i += 32) all_words[words + i] = 0;
        gm_sync_warp();
        for (u32 pass = 0; pass < {blocks}; pass += {at_once}) {{
            // Lanes without a block do the first one over and put nothing.
            const u32 within = pass + gm_lane() / {lanes};
            const u64 b = first + within;
            const bool there = b < count;
            const i32 base = (i32)(within * BYTES * 8);
            const f32 *x = src + (there ? b : first) * ELEMENTS;
            f32x4 v[{vectors}];
            GM_UNROLL for (u32 j = 0; j < {vectors}; j++) v[j] = gm_load_once((const f32x4 *)x + j * {lanes} + part);
            u32 worst = 0xffffffffu;
            u64 key = 0;
            GM_UNROLL for (u32 j = 0; j < {vectors}; j++) {{
                const f32 four[4] = {{v[j].x, v[j].y, v[j].z, v[j].w}};
                GM_UNROLL for (u32 n = 0; n < 4; n++) {{
                    const u32 e = (j * {lanes} + part) * 4 + n;
                    if (!gm_is_finite(four[n])) worst = gm_min(worst, e);
                    key = gm_max(key, magnitude(four[n], e));
                }}
            }}
            GM_UNROLL for (u32 mask = {half}; mask > 0; mask /= 2) {{
                worst = gm_min(worst, gm_shfl_xor(worst, mask));
                {key}
            }}
            (void)key; (void)base;
            bool ok = there && worst == 0xffffffffu;
            if (there && !ok && part == 0) gm_atomic_min(fault, (b * ELEMENTS + worst) * 4);
            {step}
            {outer}
            {scale_store}
            if (ok) {{
                GM_UNROLL for (u32 j = 0; j < {vectors}; j++) {{
                    const f32 four[4] = {{v[j].x, v[j].y, v[j].z, v[j].w}};
                    const u32 e = (j * {lanes} + part) * 4;
                    u32 codes = 0;
                    GM_UNROLL for (u32 n = 0; n < 4; n++) {{
                        const f32 x = four[n];
                        codes |= ({code}) << (8 * n);
                    }}
                    {put_codes}
                }}
            }}
        }}
        gm_sync_warp();
        const u32 bytes = (u32)gm_min(count - first, (u64){blocks}) * BYTES;
        u8 *out = dst + first * BYTES;
        for (u32 i = gm_lane(); i < bytes / 16; i += 32) gm_store((u32x4 *)out + i, gm_shared_get<u32x4>(all_words, words + i * 4));
        for (u32 i = bytes / 16 * 16 + gm_lane(); i < bytes; i += 32) gm_store(out + i, (u8)(all_words[words + i / 4] >> (8 * (i % 4))));
        gm_sync_warp();
    }}
    (void)row_bytes; (void)steps;
}}
GM_EXPORT({function})

",
        threads = 32 * WARPS,
        at_once = 32 / lanes,
        key = if rule.needs_key { "key = gm_max(key, gm_shfl_xor(key, mask));" } else { "" },
        step = rule.step,
        outer = rule.outer,
        code = rule.code,
    )
}

/// Statements that put `codes`, a byte for each of the values `e` to `e + 3`, where they lie in neighbouring bytes or in one.
fn put_four(format: &Format, field: &Field) -> Option<String> {
    let FieldLayout::Bits(slices) = &field.layout else { return None };
    let mut out = String::from("const u32 i = e;\n");
    let mut low = 0;
    for slice in slices {
        let mask = (1u32 << slice.bits) - 1;
        let masks = mask * 0x0101_0101;
        let text = match four(format, field, slice)? {
            Four::Bytes(alignment) => {
                let rest = if alignment == 4 {
                    ""
                } else {
                    "if (up > 0) gm_shared_or(all_words, words + (u32)(a >> 5) + 1, bits >> (32 - up));"
                };
                format!(
                    "const u32 bits = (codes >> {low} & {masks:#x}u) << (a & 7), up = (u32)(a & 24);
    gm_shared_or(all_words, words + (u32)(a >> 5), bits << up);
    {rest}"
                )
            }
            Four::Bits => {
                let each =
                    (0..4).map(|n| format!("(codes >> {} & {mask:#x}u) << {}", 8 * n + low, slice.bits * n));
                format!(
                    "gm_shared_or(all_words, words + (u32)(a >> 5), ({}) << (a & 31));",
                    joined(each, " | ")
                )
            }
        };
        let _ = write!(out, "{{\n{}    a += base;\n    {text}\n}}\n", address(slice));
        low += slice.bits;
    }
    Some(out)
}
