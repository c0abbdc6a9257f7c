//! The kernel that gives rows by index as f32, f16 or bf16: a thread decodes a few neighbouring elements of a row. So few
//! rows are asked for at once that nothing is brought to shared memory for them.

use super::blocks::{header_bytes, load_scalar};
use super::decode::{first_of_code, together};
use super::parameters::{INVALID_CODE, parameters};
use crate::lower::decode as lower;
use crate::lower::ir::{f32, i32};
use crate::plan::FormatPlan;
use crate::print::cuda;
use gristmill_spec::vocab::CudaAbi;

/// Threads of a CUDA block.
pub const THREADS: u32 = 256;

/// Elements of a thread.
pub fn per_thread(plan: &FormatPlan<'_>) -> u32 {
    together(plan)
}

/// The kernel `embed`.
pub fn embed(plan: &FormatPlan<'_>, function: &str) -> String {
    let format = plan.format;
    let outer = match (plan.uses_outer(), format.row_header, format.tensor_tail) {
        (true, Some(scalar), _) => load_scalar(scalar, "row"),
        (true, None, Some((scalar, _))) => load_scalar(scalar, "(src + rows * row_bytes)"),
        (true, None, None) | (false, _, _) => "1.0f".to_string(),
    };
    let term = |name: &str| f32(format!("{name}(row, at, run, outer)"));
    let scale = if plan.has_scales() { term("scale") } else { lower::scale_outside(plan) };
    let weight = lower::weight(scale, i32("v[j]"), plan.offset.then(|| term("offset")));
    let value = cuda::expr(&weight);
    let of_code = first_of_code(&format.value, "(position * k + element + bad)");
    let report = if plan.last_code.is_some() {
        format!("if (bad < N) {{ gm_atomic_min(fault, {of_code} * 4 + {INVALID_CODE}); continue; }}")
    } else {
        "(void)bad;".to_string()
    };
    let store = if together(plan) == 4 {
        "if (to == 0) {
            gm_store((f32x4 *)((f32 *)dst + out), f32x4{x[0], x[1], x[2], x[3]});
        } else {
            u32 bits[N];
            GM_UNROLL for (u32 j = 0; j < N; j++) bits[j] = to == 1 ? gm_f32_to_f16(x[j]) : gm_f32_to_bf16(x[j]);
            gm_store((u32x2 *)((u16 *)dst + out), u32x2{bits[0] | bits[1] << 16, bits[2] | bits[3] << 16});
        }"
    } else {
        "if (to == 0) gm_store((f32 *)dst + out, x[0]);
        else gm_store((u16 *)dst + out, to == 1 ? gm_f32_to_f16(x[0]) : gm_f32_to_bf16(x[0]));"
    };
    let takes = parameters(&CudaAbi::EMBED);
    format!(
        "// Row indices[p] of the tensor to row p of `dst`, of type `to`: 0 f32, 1 f16, 2 bf16.
GM_KERNEL({THREADS}) {function}({takes}) {{
    const u32 groups = k / N;
    for (u64 i = (u64)gm_block() * {THREADS} + gm_thread(); i < (u64)count * groups; i += (u64)gm_blocks() * {THREADS}) {{
        const u64 position = i / groups;
        const u32 element = (u32)(i % groups) * N, at = {header} + element / ELEMENTS * BYTES;
        const u8 *row = src + gm_load(indices + position) * row_bytes;
        const u32 run = element % ELEMENTS / RUN;
        const f32 outer = {outer};
        (void)run; (void)outer; (void)rows;
        i32 v[N];
        const u32 bad = values(row, at, element % ELEMENTS, v);
        {report}
        f32 x[N];
        GM_UNROLL for (u32 j = 0; j < N; j++) x[j] = {value};
        const u64 out = position * k + element;
        {store}
    }}
    (void)fault;
}}
GM_EXPORT({function})

",
        header = header_bytes(format),
    )
}
