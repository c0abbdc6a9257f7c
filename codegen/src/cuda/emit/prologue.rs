//! Activations through the steps of a prologue, and to int8: a CUDA block does a row.
//!
//! A row is copied once, to memory that the block alone reads and writes until it is done, so that it stays in the caches. What the
//! steps compute stands in `prologue.h`.

use super::activations::{self, Statements, THREADS, Target};
use gristmill_spec::model::Activations;
use gristmill_spec::vocab::{CudaAbi, GateFunction, PrologueStep};

/// The steps.
const STEPS: &str = include_str!("../../../cuda/prologue.h");

/// The unit of an activation format: one kernel.
pub fn emit(format: &Activations, function: &str) -> String {
    let Statements { declare, call, .. } = activations::statements(format, &Target::Memory);
    let steps: String = format.prologue.iter().map(|step| one(*step)).collect();
    let body = format!(
        "    {declare}GM_SHARED(u32, bad_of_warp, {warps});
    GM_SHARED(f32, norm, 2);
    const u64 row = gm_block();
    const u64 place = row * k;
    f32 *const at = rows + place;
    (void)m;
    {unused}gm_launch_next();
    gm_wait_for_previous();
    if (!all_finite(src + row * src_stride, k, place, fault, bad_of_warp)) {{
        refuse(at, k);
        return;
    }}
    for (u32 i = gm_thread(); i < k; i += {THREADS}) gm_store(at + i, gm_load(src + row * src_stride + i));
    {steps}if (!q) return;
    gm_sync();
    {{
        const f32 *const x = rows;
        const u32 type = 0;
        {call};
    }}
",
        unused = unused(format),
        warps = THREADS / 32,
    );
    activations::functions(format)
        + STEPS
        + &gate()
        + &activations::kernel(function, &CudaAbi::PROLOGUE, &body)
}

/// The functions of a gate by their numbers.
fn gate() -> String {
    let each = GateFunction::ALL.iter().map(|function| {
        format!(
            "    if (function == {}) return {}(x);\n",
            *function as u32,
            function.name().replace('-', "_")
        )
    });
    format!(
        "GM_DEVICE f32 gate(f32 x, u32 function) {{\n{}    return 0.0f;\n}}\n\n",
        each.collect::<String>()
    )
}

/// Operands of steps that a format has not.
fn unused(format: &Activations) -> String {
    let operands: [(PrologueStep, &[&str]); 4] = [
        (PrologueStep::Gate, &["up", "up_stride", "function"]),
        (PrologueStep::Add, &["residual", "residual_stride", "sum"]),
        (PrologueStep::RmsNorm, &["weight", "epsilon", "norm"]),
        (PrologueStep::Hadamard, &["signs", "block", "factor"]),
    ];
    let missing = operands.iter().filter(|(step, _)| !format.prologue.contains(step));
    missing.flat_map(|(_, names)| names.iter()).map(|name| format!("(void){name};\n    ")).collect()
}

/// Statements of a step over the row at `at`; it is left out where its operand is not there.
fn one(step: PrologueStep) -> String {
    let (used, call) = match step {
        PrologueStep::Gate => {
            ("up", "gate_row(at, up + row * up_stride, function, k, place, fault, bad_of_warp)")
        }
        PrologueStep::Add => (
            "residual",
            "add_row(at, residual + row * residual_stride, sum + place, k, place, fault, bad_of_warp)",
        ),
        PrologueStep::RmsNorm => {
            ("weight", "normalize_row(at, weight, epsilon, k, place, fault, bad_of_warp, norm)")
        }
        PrologueStep::Hadamard => {
            ("block > 0", "transform_row(at, signs, block, factor, k, place, fault, bad_of_warp)")
        }
    };
    format!(
        "if ({used} && !{call}) {{
        refuse(at, k);
        return;
    }}
    "
    )
}
