//! Kernels that go over blocks: `quantize` by rounding, with its steps.

use super::encode::{Rule, WARPS, put};
use super::groups::Groups;
use super::parameters::{SCALE_OVERFLOW, parameters};
use crate::Error;
use crate::lower::ir::{Type, f32, u32};
use crate::lower::{digits, quantize as lower, stored};
use crate::plan::{FormatPlan, RoundingPlan};
use crate::print::cuda;
use crate::text::{joined, when};
use gristmill_spec::model::{
    Factor, Field, FieldLayout, Format, QuantizeRule, Quantizer, Scalar, ScaleRule, Statistic,
};
use gristmill_spec::vocab::CudaAbi;

/// Values of one chunk of a statistic over a row or tensor: what `number::abs_mean` sums together.
pub const CHUNK: u32 = 4096;

/// Bytes before the blocks of a row.
pub fn header_bytes(format: &Format) -> u32 {
    format.row_header.map_or(0, |scalar| scalar.bits() / 8)
}

/// An expression of the scalar of type `scalar` at byte pointer `at`.
pub fn load_scalar(scalar: Scalar, at: &str) -> String {
    let bytes =
        joined((0..scalar.bits() / 8).map(|b| format!("(u32)gm_load({at} + {b}) << {}", 8 * b)), " | ");
    cuda::expr(&stored::widened(scalar, u32(bytes)))
}

/// The bits, as a word, of `stored` as `scalar`, and whether those, as `stored_bits`, stand for a finite number.
fn encode_scalar(scalar: Scalar) -> (String, String) {
    let bits = stored::narrowed(scalar, f32("stored")).to(Type::U32);
    let number = stored::widened(scalar, u32("stored_bits"));
    (cuda::expr(&bits), cuda::expr(&number.finite()))
}

/// Functions of quantizers.
pub const HELPERS: &str = include_str!("../../../cuda/magnitude.h");

/// Blocks of the format that a CUDA block of the quantizer's kernel does at once.
pub fn blocks_at_once(format: &Format, quantizer: &Quantizer) -> u32 {
    WARPS * groups(format, quantizer).map_or(1, |groups| groups.blocks)
}

/// How a warp does several blocks, where it can.
fn groups(format: &Format, quantizer: &Quantizer) -> Option<Groups> {
    match &quantizer.rule {
        // The mean of a block is a sum that the whole warp takes in a certain order.
        QuantizeRule::Round(rule)
            if rule.scale.of != Statistic::AbsMean
                || !matches!(format.value.scale.as_slice(), [Factor::Field(_)]) =>
        {
            Groups::of(format)
        }
        QuantizeRule::Round(_) | QuantizeRule::Search(_) => None,
    }
}

/// The kernels of one quantizer that rounds: `FUNCTION`, and before it `FUNCTION_chunks` and `FUNCTION_finish` where
/// the scale covers more than a block. Returns the text and whether there are steps.
pub fn quantize(
    plan: &FormatPlan<'_>,
    quantizer: &Quantizer,
    function: &str,
) -> Result<(String, bool), Error> {
    let format = plan.format;
    let RoundingPlan { rule, zero, scale } = match &quantizer.rule {
        QuantizeRule::Round(rule) => RoundingPlan::new(plan, rule)?,
        QuantizeRule::Search(search) => {
            let text = super::search::quantize(plan, &quantizer.name, *search, function)?;
            return Ok((text, false));
        }
    };
    let outer = match scale {
        Some(_) => None,
        None => format.row_header.map(|scalar| (scalar, scalar.bits() / 8)).or(format.tensor_tail),
    };
    let rounded = lower::rounded(&rule.scale, rule.round, rule.threshold, rule.clamp, zero);
    let code = lower::bits_of(lower::code(rounded, zero), plan.code_bits, Type::U32);
    let (target, outer_store) = target(format, outer);
    let of_block = Rule {
        needs_key: outer.is_none(),
        step: step(format, &rule.scale, outer.is_some()),
        outer: outer_store,
        scale: scale.map(|(field, scalar)| {
            let (bits, finite) = encode_scalar(scalar);
            (field, bits, finite)
        }),
        code: cuda::expr(&code),
    };
    let steps = when(outer.is_some(), || steps(&rule.scale, function));
    let kernel = match groups(format, quantizer) {
        Some(groups) => super::groups::quantize(plan, groups, &of_block, function),
        None => block_to_a_warp(format, &of_block, &target, function),
    };
    Ok((steps + &kernel, outer.is_some()))
}

/// Statements that bind `apply` and `stored`: computed in front for all blocks of a row or tensor, or from the block's statistic.
fn step(format: &Format, rule: &ScaleRule, computed: bool) -> String {
    if computed {
        let index = if format.row_header.is_some() { "b / (k / ELEMENTS)" } else { "0" };
        return format!(
            "const f32x2 both = gm_load(steps + {index});\n        const f32 apply = both.x, stored = both.y;\n        (void)apply; (void)stored;"
        );
    }
    let statistic = match rule.of {
        Statistic::AbsMax => "magnitude_of(key)",
        Statistic::SignedAbsMax => "magnitude_of(key) == 0.0f ? 0.0f : gm_load(x + position_of(key))",
        Statistic::AbsMean => "(f32)(abs_sum(x, ELEMENTS) / (f64)ELEMENTS)",
    };
    format!("const f32 s = {statistic};\n        {}", cuda::bindings(&lower::step(rule)))
}

/// Statements that bind `block`, where block `b` goes, and those that store the scale outside of it.
fn target(format: &Format, outer: Option<(Scalar, u32)>) -> (String, String) {
    let in_tensor = "u8 *block = dst + b * BYTES;".to_string();
    let Some((scalar, tail)) = outer else { return (in_tensor, String::new()) };
    if format.row_header.is_none() {
        return (in_tensor, outer_bytes(scalar, "b == 0", "(dst + rows * row_bytes)", "0", tail));
    }
    let in_row = format!(
        "const u32 blocks = k / ELEMENTS;
        u8 *row = dst + b / blocks * row_bytes;
        u8 *block = row + {} + b % blocks * BYTES;",
        header_bytes(format)
    );
    (in_row, outer_bytes(scalar, "b % blocks == 0", "row", "b * ELEMENTS", 0))
}

/// The kernel in which a warp does one block at a time.
fn block_to_a_warp(format: &Format, rule: &Rule<'_>, target: &str, function: &str) -> String {
    let Codes { tables, declare, put: put_code, gather } = codes(format, &format.fields[format.value.code]);
    let scale_store = rule.scale.as_ref().map_or(String::new(), |(field, bits, finite)| {
        format!(
            "const u32 stored_bits = {bits};
        if (!({finite})) {{
            if (gm_lane() == 0) gm_atomic_min(fault, b * ELEMENTS * 4 + {SCALE_OVERFLOW});
            continue;
        }}
        if (gm_lane() == 0) {{ const u32 i = 0, code = stored_bits; {} }}",
            put(format, field, false)
        )
    });
    format!(
        "{tables}enum : u32 {{ {function}_WORDS = {words} }};
GM_KERNEL({threads}) {function}({takes}) {{
    GM_SHARED(u32, all_words, {WARPS} * {function}_WORDS);
    {declare}
    const u32 words = gm_warp() * {function}_WORDS;
    const u64 count = (u64)rows * (k / ELEMENTS);
    for (u64 b = (u64)gm_block() * {WARPS} + gm_warp(); b < count; b += (u64)gm_blocks() * {WARPS}) {{
        const f32 *x = src + b * ELEMENTS;
        {target}
        for (u32 i = gm_lane(); i < {function}_WORDS; i += 32) all_words[words + i] = 0;
        u32 worst = 0xffffffffu;
        u64 key = 0;
        for (u32 e = gm_lane(); e < ELEMENTS; e += 32) {{
            const f32 v = gm_load(x + e);
            if (!gm_is_finite(v) && e < worst) worst = e;
            const u64 m = magnitude(v, e);
            key = m > key ? m : key;
        }}
        worst = warp_min(worst);
        if (worst != 0xffffffffu) {{
            if (gm_lane() == 0) gm_atomic_min(fault, (b * ELEMENTS + worst) * 4);
            continue;
        }}
        key = warp_max(key);
        (void)key;
        {step}
        {outer}
        gm_sync_warp();
        {scale_store}
        for (u32 e = gm_lane(); e < ELEMENTS; e += 32) {{
            const u32 code = [&](f32 x) {{ return {code}; }}(gm_load(x + e));
            const u32 i = e;
            {put_code}
        }}
        gm_sync_warp();
        {gather}
        for (u32 i = gm_lane(); i < BYTES; i += 32) gm_store(block + i, (u8)(all_words[words + i / 4] >> (8 * (i % 4))));
        gm_sync_warp();
    }}
    (void)row_bytes; (void)steps;
}}
GM_EXPORT({function})

",
        words = format.bytes.div_ceil(4),
        threads = 32 * WARPS,
        takes = parameters(&CudaAbi::QUANTIZE),
        step = rule.step,
        outer = rule.outer,
        code = rule.code,
    )
}

/// Where the codes of a field go.
struct Codes {
    /// Tables in front of the kernel.
    tables: String,
    /// Declarations in it.
    declare: String,
    /// The statement that puts `code` of value `i`.
    put: String,
    /// What remains to be done when all are there.
    gather: String,
}

fn codes(format: &Format, field: &Field) -> Codes {
    let FieldLayout::Digits { radix, most_significant_first, segments } = &field.layout else {
        return Codes {
            tables: String::new(),
            declare: String::new(),
            put: put(format, field, false),
            gather: String::new(),
        };
    };
    let count = field.count;
    let (base, digits, numbers) = (radix.base(), radix.digits(), radix.numbers());
    let (bytes, elements): (Vec<u32>, Vec<Vec<u32>>) =
        digits::bytes(count, segments, *radix, *most_significant_first).into_iter().unzip();
    let list = |values: &[u32]| joined(values, ", ");
    let n = bytes.len();
    Codes {
        tables: format!(
            "GM_TABLE u16 digit_bytes[{n}] = {{{}}};
// From the most significant digit down; {count}: none.
GM_TABLE u16 digit_elements[{}] = {{{}}};
",
            list(&bytes),
            digits as usize * n,
            list(&elements.concat()),
        ),
        declare: format!(
            "GM_SHARED(u8, all_codes, {WARPS} * ({count} + 1));
    const u32 codes = gm_warp() * ({count} + 1);"
        ),
        put: "all_codes[codes + i] = (u8)code;".to_string(),
        gather: format!(
            "if (gm_lane() == 0) all_codes[codes + {count}] = 0;
        gm_sync_warp();
        for (u32 i = gm_lane(); i < {n}; i += 32) {{
            u32 number = 0;
            for (u32 d = 0; d < {digits}; d++) number = number * {base} + all_codes[codes + digit_elements[i * {digits} + d]];
            const u32 byte = (number * 256 + {}) / {numbers};
            gm_shared_or(all_words, words + digit_bytes[i] / 4, byte << (8 * (digit_bytes[i] % 4)));
        }}
        gm_sync_warp();",
            numbers - 1
        ),
    }
}

/// Statements that write a row's header or a tensor's tail.
fn outer_bytes(scalar: Scalar, condition: &str, at: &str, index: &str, tail: u32) -> String {
    let (bits, finite) = encode_scalar(scalar);
    let size = scalar.bits() / 8;
    let rest =
        when(tail > size, || format!("for (u32 i = {size}; i < {tail}; i++) gm_store({at} + i, (u8)0);"));
    format!(
        "if ({condition} && gm_lane() == 0) {{
            const u32 stored_bits = {bits};
            if (!({finite}) && gm_is_finite(stored)) gm_atomic_min(fault, (u64)({index}) * 4 + {SCALE_OVERFLOW});
            for (u32 i = 0; i < {size}; i++) gm_store({at} + i, (u8)(stored_bits >> (8 * i)));
            {rest}
        }}"
    )
}

/// The two kernels that find the step of a row or tensor.
fn steps(rule: &ScaleRule, function: &str) -> String {
    let partial = match rule.of {
        Statistic::AbsMax | Statistic::SignedAbsMax => "const u64 result = key;",
        Statistic::AbsMean => "const u64 result = gm_bits(abs_sum(x, n));",
    };
    let statistic = match rule.of {
        Statistic::AbsMax => "u64 key = 0;
    for (u64 c = gm_lane(); c < chunks; c += 32) key = gm_max(key, gm_load(partial + row * chunks + c));
    const f32 s = magnitude_of(warp_max(key));"
            .to_string(),
        Statistic::SignedAbsMax => format!(
            "u64 key = 0, at = 0xffffffffffffffffull;
    for (u64 c = gm_lane(); c < chunks; c += 32) {{
        const u64 m = gm_load(partial + row * chunks + c);
        if ((m >> 32) > (key >> 32)) {{ key = m; at = c; }}
    }}
    const u64 most = warp_max(key) >> 32;
    // Of the lanes that hold the largest, the one with the first chunk.
    u64 first = (key >> 32) == most ? at : 0xffffffffffffffffull;
    for (u32 mask = 16; mask > 0; mask /= 2) first = gm_min(first, gm_shfl_xor(first, mask));
    f32 s = 0.0f;
    if (most != 0) s = gm_load(src + row * len + first * {CHUNK} + position_of(gm_load(partial + row * chunks + first)));"
        ),
        Statistic::AbsMean => "// In order: the sum of each chunk was taken at once, the sums of chunks are added one by one.
    f64 total = 0.0;
    for (u64 first = 0; first < chunks; first += 32) {
        const f64 mine = first + gm_lane() < chunks ? gm_double(gm_load(partial + row * chunks + first + gm_lane())) : 0.0;
        const u32 n = chunks - first < 32 ? (u32)(chunks - first) : 32;
        for (u32 lane = 0; lane < n; lane++) total += gm_shfl(mine, lane);
    }
    const f32 s = len == 0 ? 0.0f : (f32)(total / (f64)len);"
            .to_string(),
    };
    let chunks_take = parameters(&CudaAbi::CHUNKS);
    let finish_takes = parameters(&CudaAbi::FINISH);
    format!(
        "GM_KERNEL({threads}) {function}_chunks({chunks_take}) {{
    const u64 chunks = (len + {CHUNK} - 1) / {CHUNK};
    for (u64 c = (u64)gm_block() * {WARPS} + gm_warp(); c < rows * chunks; c += (u64)gm_blocks() * {WARPS}) {{
        const u64 start = c / chunks * len + c % chunks * {CHUNK};
        const u64 left = len - c % chunks * {CHUNK};
        const u32 n = left < {CHUNK} ? (u32)left : {CHUNK};
        const f32 *x = src + start;
        u32 worst = 0xffffffffu;
        u64 key = 0;
        for (u32 i = gm_lane(); i < n; i += 32) {{
            const f32 v = gm_load(x + i);
            if (!gm_is_finite(v) && i < worst) worst = i;
            const u64 m = magnitude(v, i);
            key = m > key ? m : key;
        }}
        worst = warp_min(worst);
        key = warp_max(key);
        (void)key;
        if (worst != 0xffffffffu && gm_lane() == 0) gm_atomic_min(fault, (start + worst) * 4);
        {partial}
        if (gm_lane() == 0) gm_store(partial + c, result);
    }}
}}
GM_EXPORT({function}_chunks)

GM_KERNEL(32) {function}_finish({finish_takes}) {{
    const u64 chunks = (len + {CHUNK} - 1) / {CHUNK};
    const u64 row = gm_block();
    {statistic}
    {step}
    (void)src; (void)rows;
    if (gm_lane() == 0) {{
        // Where the statistic itself is not finite, a value was not, and is reported.
        if (!gm_is_finite(stored) && gm_is_finite(s)) gm_atomic_min(fault, row * len * 4 + {SCALE_OVERFLOW});
        gm_store(steps + row, f32x2{{apply, stored}});
    }}
}}
GM_EXPORT({function}_finish)

",
        threads = 32 * WARPS,
        step = cuda::bindings(&lower::step(rule)),
    )
}
