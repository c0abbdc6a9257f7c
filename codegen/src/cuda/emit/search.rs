//! Quantizers that are named algorithms, on the GPU: what `k_min.h` takes of a format.

use super::decode::sizes;
use super::encode::{WARPS, put};
use super::parameters::{SCALE_OVERFLOW, enumerators, kernel};
use crate::lower::ir::{Type, f32};
use crate::lower::stored;
use crate::plan::{FormatPlan, KMinPlan};
use crate::print::cuda::{self, float};
use gristmill_spec::vocab::CudaAbi;
use std::fmt::Write;

/// The kernel of `k-min`.
pub fn quantize(plan: &FormatPlan<'_>, k_min: &KMinPlan<'_>, function: &str) -> String {
    let body = "    GM_SHARED(u32, all_words, WARPS * WORDS);
    quantize_blocks(all_words, src, dst, rows, k, fault);
    (void)row_bytes; (void)steps;
";
    let kernel = kernel(32 * WARPS, function, &CudaAbi::QUANTIZE, body);
    format!("{}{}{K_MIN}\n{kernel}\n", sizes(plan), of_format(plan, k_min))
}

/// The search itself, behind what it takes of a format.
const K_MIN: &str = include_str!("../../../cuda/k_min.h");

/// What depends on the format and on the quantizer's parameters.
fn of_format(plan: &FormatPlan<'_>, k_min: &KMinPlan<'_>) -> String {
    let (format, top) = (plan.format, (1u32 << plan.code_bits) - 1);
    let (scale, scalar) = k_min.scale;
    let numbers = [
        ("WARPS", WARPS),
        ("WORDS", format.bytes.div_ceil(4)),
        ("STEPS", k_min.steps),
        ("TOP", top),
        ("RUN_TOP", k_min.runs.high as u32),
        ("MIN_TOP", k_min.min_runs.high as u32),
        ("SCALE_OVERFLOW", u32::from(SCALE_OVERFLOW)),
    ];
    let narrowed = stored::narrowed(scalar, f32("v"));
    let raw = |field| cuda::expr(&stored::raw_of(field, f32("factor").to(Type::I32)).to(Type::U32));
    let functions = [
        ("f32 stored_value(f32 v)", cuda::expr(&stored::widened(scalar, narrowed.clone()))),
        ("u32 stored_bits(f32 v)", cuda::expr(&narrowed.to(Type::U32))),
        ("u32 run_scale_bits(f32 factor)", raw(k_min.runs.field)),
        ("u32 run_min_bits(f32 factor)", raw(k_min.min_runs.field)),
        (
            "f32 levels_of(u32 step)",
            format!("{} + 0.1f * (f32)step + {}", float(k_min.start), float(top as f32)),
        ),
        ("f32 error_of(f32 off)", if k_min.square { "off * off" } else { "gm_abs(off)" }.to_string()),
        (
            "f32 floor_of([[maybe_unused]] f32 squares)",
            if k_min.rms { "gm_sqrt(squares / (f32)RUN)" } else { "0.0f" }.to_string(),
        ),
    ];
    let mut out = enumerators(&numbers);
    for (declared, value) in functions {
        let _ = writeln!(out, "GM_DEVICE {declared} {{ return {value}; }}");
    }
    let fields = [
        ("scale", scale),
        ("min", k_min.min.0),
        ("run_scale", k_min.runs.field),
        ("run_min", k_min.min_runs.field),
        ("code", &format.fields[format.value.code]),
    ];
    for (name, field) in fields {
        out += &put(name, format, field, false);
    }
    out + "\n"
}
