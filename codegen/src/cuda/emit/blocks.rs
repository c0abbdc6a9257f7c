//! Kernels that go over blocks: `quantize` by rounding, with its steps. They stand in `quantize.h` and the headers behind it; here is
//! what they take of a format and a rule.

use super::decode::sizes;
use super::encode::{WARPS, put};
use super::groups::{self, Groups};
use super::outer::header_bytes;
use super::parameters::{SCALE_OVERFLOW, enumerators, kernel};
use super::search;
use super::statistic::{STATISTIC, statistic};
use crate::lower::ir::{Type, f32, u32};
use crate::lower::{digits, quantize as lower, stored};
use crate::plan::{CudaQuantizerPlan, FormatPlan, RoundingPlan};
use crate::print::cuda;
use crate::text::joined;
use gristmill_spec::model::{
    Factor, Field, FieldLayout, Format, QuantizeRule, Quantizer, Scalar, ScaleRule, Statistic,
};
use gristmill_spec::vocab::CudaAbi;

/// Values of one chunk of a statistic over a row or tensor: what `number::abs_mean` sums together.
pub const CHUNK: u32 = 4096;

/// Blocks of the format that a CUDA block of the quantizer's kernel does at once.
pub fn blocks_at_once(format: &Format, quantizer: &Quantizer) -> u32 {
    WARPS * in_groups(format, quantizer).map_or(1, |groups| groups.blocks)
}

/// How a warp does several blocks, where it can.
fn in_groups(format: &Format, quantizer: &Quantizer) -> Option<Groups> {
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

/// The kernels of one quantizer: `FUNCTION`, and before it `FUNCTION_chunks` and `FUNCTION_finish` where the scale covers more than a
/// block. Returns the text and whether there are steps.
pub fn quantize(
    plan: &FormatPlan<'_>,
    quantizer: &Quantizer,
    planned: &CudaQuantizerPlan<'_>,
    function: &str,
) -> (String, bool) {
    let format = plan.format;
    let RoundingPlan { rule, zero, scale } = match planned {
        CudaQuantizerPlan::Round(rounding) => *rounding,
        CudaQuantizerPlan::KMin(k_min) => return (search::quantize(plan, k_min, function), false),
    };
    let outer = match scale {
        Some(_) => None,
        None => format.row_header.map(|scalar| (scalar, scalar.bits() / 8)).or(format.tensor_tail),
    };
    let groups = in_groups(format, quantizer);
    let rounded = lower::rounded(&rule.scale, rule.round, rule.threshold, rule.clamp, zero);
    let code = lower::bits_of(lower::code(rounded, zero), plan.code_bits, Type::U32);
    let mut text = sizes(plan) + &numbers(format, &rule.scale, scale.is_some(), outer) + "\n";
    text += &step_of(&rule.scale);
    text += &format!(
        "GM_DEVICE u32 code_of(f32 x, [[maybe_unused]] f32 apply) {{ return {}; }}\n",
        cuda::expr(&code)
    );
    text += &scalar_stored(scale.map(|(_, scalar)| scalar).or(outer.map(|(scalar, _)| scalar)));
    let several = groups.as_ref().is_some_and(|groups| groups.blocks > 1);
    if let Some((field, _)) = scale {
        text += &put("scale", format, field, several);
    }
    text += &put("code", format, &format.fields[format.value.code], several);
    text += concat!(
        "\n",
        include_str!("../../../cuda/place.h"),
        include_str!("../../../cuda/magnitude.h"),
        include_str!("../../../cuda/quantize.h"),
    );
    if outer.is_some() {
        text += &steps(function);
    }
    text += &match groups {
        Some(groups) => groups::quantize(format, groups, function),
        None => block_to_a_warp(format, function),
    };
    (text, outer.is_some())
}

/// What `quantize.h` is told in numbers; `outer` is what stands outside of blocks, and its bytes with what follows.
fn numbers(format: &Format, rule: &ScaleRule, has_scale: bool, outer: Option<(Scalar, u32)>) -> String {
    let (outer_bytes, tail) = outer.map_or((0, 0), |(scalar, tail)| (scalar.bits() / 8, tail));
    let numbers = [
        ("WARPS", WARPS),
        ("CHUNK", CHUNK),
        ("HEADER", header_bytes(format)),
        ("STEPS_IN_FRONT", u32::from(outer.is_some())),
        ("HAS_SCALE", u32::from(has_scale)),
        ("OUTER_BYTES", outer_bytes),
        ("TAIL", tail),
        ("SCALE_OVERFLOW", u32::from(SCALE_OVERFLOW)),
    ];
    format!("{}{STATISTIC}constexpr Statistic OF = {};\n", enumerators(&numbers), statistic(rule.of))
}

/// The emitted `step_of`.
fn step_of(rule: &ScaleRule) -> String {
    format!(
        "// What elements are multiplied with or divided by, and what is stored.
GM_DEVICE f32x2 step_of(f32 s) {{
    {}
    return f32x2{{apply, stored}};
}}

",
        cuda::bindings(&lower::step(rule))
    )
}

/// The emitted `stored_bits`, a number as `scalar`, and `holds`: whether those bits stand for a finite one.
fn scalar_stored(scalar: Option<Scalar>) -> String {
    let (bits, finite) = match scalar {
        Some(scalar) => (
            cuda::expr(&stored::narrowed(scalar, f32("stored")).to(Type::U32)),
            cuda::expr(&stored::widened(scalar, u32("bits")).finite()),
        ),
        None => ("0".to_string(), "true".to_string()),
    };
    format!(
        "GM_DEVICE u32 stored_bits([[maybe_unused]] f32 stored) {{ return {bits}; }}
GM_DEVICE bool holds([[maybe_unused]] u32 bits) {{ return {finite}; }}
"
    )
}

/// The two kernels that find the step of a row or tensor.
fn steps(function: &str) -> String {
    let [chunks, finish] = ["chunks", "finish"].map(|step| format!("{function}_{step}"));
    let of_chunks = "    quantize_chunks(src, rows, len, partial, fault);\n";
    let of_all = "    quantize_finish(src, len, partial, steps, fault);\n    (void)rows;\n";
    format!(
        "{}{}\n{}\n",
        include_str!("../../../cuda/quantize_steps.h"),
        kernel(32 * WARPS, &chunks, &CudaAbi::CHUNKS, of_chunks),
        kernel(32, &finish, &CudaAbi::FINISH, of_all),
    )
}

/// The kernel in which a warp does one block at a time.
fn block_to_a_warp(format: &Format, function: &str) -> String {
    let field = &format.fields[format.value.code];
    let digits = digits_of(field);
    let (declared, codes) = match &digits {
        Some(_) => (format!("    GM_SHARED(u8, all_codes, WARPS * ({} + 1));\n", field.count), "all_codes"),
        None => (String::new(), "Absent{}"),
    };
    let body = format!(
        "    GM_SHARED(u32, all_words, WARPS * WORDS);
{declared}    quantize_blocks(all_words, {codes}, src, dst, rows, k, row_bytes, steps, fault);
"
    );
    let numbers = [("WORDS", format.bytes.div_ceil(4)), ("HAS_DIGITS", u32::from(digits.is_some()))];
    format!(
        "{}{}{}{}\n",
        digits.unwrap_or_default(),
        enumerators(&numbers),
        include_str!("../../../cuda/quantize_block.h"),
        kernel(32 * WARPS, function, &CudaAbi::QUANTIZE, &body),
    )
}

/// What gathers codes that are digits, with its tables.
fn digits_of(field: &Field) -> Option<String> {
    let FieldLayout::Digits { radix, most_significant_first, segments } = &field.layout else { return None };
    let count = field.count;
    let (bytes, elements): (Vec<u32>, Vec<Vec<u32>>) =
        digits::bytes(count, segments, *radix, *most_significant_first).into_iter().unzip();
    let numbers = [
        ("CODES", count),
        ("BASE", radix.base()),
        ("DIGITS", radix.digits()),
        ("NUMBERS", radix.numbers()),
        ("DIGIT_BYTES", bytes.len() as u32),
    ];
    Some(format!(
        "{}GM_TABLE u16 digit_bytes[DIGIT_BYTES] = {{{}}};
// From the most significant digit down; {count}: none.
GM_TABLE u16 digit_elements[DIGITS * DIGIT_BYTES] = {{{}}};

{}",
        enumerators(&numbers),
        joined(&bytes, ", "),
        joined(elements.concat(), ", "),
        include_str!("../../../cuda/digits.h"),
    ))
}
