//! The kernel that dequantizes. It stands in `dequantize.h`; here is what it takes of a format.

use super::encode::SHARED;
use super::outer::{self, header_bytes};
use super::parameters::{INVALID_CODE, enumerators, kernel};
use crate::plan::{Decode, FormatPlan};
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
    let numbers = [
        ("THREADS", THREADS),
        ("AT_ONCE", at_once(plan)),
        ("HAS_RUNS", u32::from(has_runs(plan))),
        ("INVALID_CODE", u32::from(INVALID_CODE)),
    ];
    // Lookups of all rounds at once would want more registers than leave the multiprocessor full.
    let unroll = match plan.decode() {
        Decode::Codebook => "GM_UNROLL_TWO",
        Decode::Affine { .. } | Decode::Table(_) => "GM_UNROLL",
    };
    let [declared, arguments] = shared(plan);
    let body =
        format!("{declared}    dequantize_blocks({arguments}, src, dst, rows, k, row_bytes, fault);\n");
    format!(
        "{outer}{numbers}#define GM_UNROLL_ROUNDS {unroll}

{header}{kernel}
",
        outer = outer::emit(plan),
        numbers = enumerators(&numbers),
        header = concat!(include_str!("../../../cuda/place.h"), include_str!("../../../cuda/dequantize.h")),
        kernel = kernel(THREADS, function, &CudaAbi::DEQUANTIZE, &body),
    )
}

/// Arrays in shared memory: declarations of those that there are, and all as arguments.
fn shared(plan: &FormatPlan<'_>) -> [String; 2] {
    let format = plan.format;
    let span = (at_once(plan) * (format.bytes + header_bytes(format)) + 15).next_multiple_of(16);
    let (mut declared, mut arguments) =
        (format!("    GM_SHARED(u8, bytes, {span});\n"), String::from("bytes"));
    for (there, ty, name, each) in [
        (has_runs(plan), "f32", "scales", " * RUNS"),
        (plan.offset, "f32", "offsets", " * RUNS"),
        (format.row_header.is_some(), "u32", "places", ""),
    ] {
        if there {
            declared += &format!("    GM_SHARED({ty}, {name}, AT_ONCE{each});\n");
        }
        arguments += if there { ", " } else { ", Absent" };
        arguments += if there { name } else { "{}" };
    }
    [declared, arguments]
}
