//! The kernel that gives rows by index as f32, f16 or bf16. It stands in `embed.h`; here is what it takes of a format.

use super::decode::together;
use super::outer;
use super::parameters::{INVALID_CODE, enumerators, kernel};
use crate::plan::FormatPlan;
use gristmill_spec::vocab::CudaAbi;

/// Threads of a CUDA block.
pub const THREADS: u32 = 256;

/// Elements of a thread.
pub fn per_thread(plan: &FormatPlan<'_>) -> u32 {
    together(plan)
}

/// The kernel `embed`.
pub fn embed(plan: &FormatPlan<'_>, function: &str) -> String {
    let body = "    embed_rows(src, indices, dst, to, count, rows, k, row_bytes, fault);\n";
    outer::emit(plan)
        + &enumerators(&[("THREADS", THREADS), ("INVALID_CODE", u32::from(INVALID_CODE))])
        + include_str!("../../../cuda/embed.h")
        + &kernel(THREADS, function, &CudaAbi::EMBED, body)
        + "\n"
}
