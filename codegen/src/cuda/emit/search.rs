//! Quantizers that are named algorithms, on the GPU: what `k_min.h` takes of a format.

use super::encode::{WARPS, put};
use super::parameters::{SCALE_OVERFLOW, enumerators, kernel};
use crate::Error;
use crate::lower::ir::{Type, f32};
use crate::lower::stored;
use crate::plan::{FormatPlan, KMinPlan, SearchPlan};
use crate::print::cuda::{self, float};
use gristmill_spec::model::{Format, Search};
use gristmill_spec::vocab::CudaAbi;
use std::fmt::Write;

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
    let body = "    GM_SHARED(u32, all_words, WARPS * WORDS);
    quantize_blocks(all_words, src, dst, rows, k, fault);
    (void)row_bytes; (void)steps;
";
    let kernel = kernel(32 * WARPS, function, &CudaAbi::QUANTIZE, body);
    Ok(format!("{}{K_MIN}\n{kernel}\n", of_format(plan.format, &k_min)))
}

/// The search itself, behind what it takes of a format.
const K_MIN: &str = include_str!("../../../cuda/k_min.h");

/// What depends on the format and on the quantizer's parameters.
fn of_format(format: &Format, k_min: &KMinPlan<'_>) -> String {
    let numbers = [
        ("WARPS", WARPS),
        ("WORDS", format.bytes.div_ceil(4)),
        ("STEPS", k_min.steps),
        ("TOP", k_min.top as u32),
        ("RUN_TOP", k_min.run_top as u32),
        ("MIN_TOP", k_min.min_top as u32),
        ("SCALE_OVERFLOW", u32::from(SCALE_OVERFLOW)),
    ];
    let narrowed = stored::narrowed(k_min.scalar, f32("v"));
    let raw = |field| cuda::expr(&stored::raw_of(field, f32("factor").to(Type::I32)).to(Type::U32));
    let functions = [
        ("f32 stored_value(f32 v)", cuda::expr(&stored::widened(k_min.scalar, narrowed.clone()))),
        ("u32 stored_bits(f32 v)", cuda::expr(&narrowed.to(Type::U32))),
        ("u32 run_scale_bits(f32 factor)", raw(k_min.run_scales)),
        ("u32 run_min_bits(f32 factor)", raw(k_min.run_mins)),
        (
            "f32 levels_of(u32 step)",
            format!("{} + 0.1f * (f32)step + {}", float(k_min.start), float(k_min.top)),
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
        ("scale", k_min.scale),
        ("min", k_min.min),
        ("run_scale", k_min.run_scales),
        ("run_min", k_min.run_mins),
        ("code", k_min.codes),
    ];
    for (name, field) in fields {
        out += &put(name, format, field, false);
    }
    out + "\n"
}
