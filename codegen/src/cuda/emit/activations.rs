//! Activations to int8: the kernel that does nothing else, and the same in products that quantize for themselves. What it does
//! stands in `activations.h`.

use super::parameters::{SCALE_OVERFLOW, enumerators, exported, parameters};
use super::statistic::{STATISTIC, statistic};
use crate::lower::ir::Type;
use crate::lower::quantize as lower;
use crate::print::cuda;
use gristmill_spec::model::{Activations, Statistic};
use gristmill_spec::vocab::CudaAbi;

/// Threads of a CUDA block of the kernel that does nothing else: it does a row, or several share its blocks or K groups.
pub const THREADS: u32 = 256;

/// How values of activations are read.
pub(super) const VALUES: &str = include_str!("../../../cuda/values.h");

/// Where a quantized row goes: number `row` of `x`, whose values are of type `type`.
pub(super) enum Target {
    /// To memory, with the parameters of the kernel that does nothing else.
    Memory,
    /// To `x_values`, `x_scales` and `x_sums` in the shared memory of the CUDA block that multiplies it, as row `t`.
    Shared {
        /// Elements of a K group and what they are padded to; one of 0 is the row.
        unit: (u32, u32),
        /// Bytes, scales and sums of a row.
        capacity: [u32; 3],
        /// Whether sums are needed.
        sums: bool,
        /// Most threads of the CUDA block.
        threads: u32,
    },
}

/// What in a kernel quantizes a row with all threads of a CUDA block.
pub(super) struct Statements {
    /// Declarations in its outermost scope.
    pub(super) declare: String,
    /// An expression: whether the row could be quantized. Where blocks have scales, nothing.
    pub(super) call: String,
    /// All threads meet behind the last value: other threads may read them, though not the sums.
    pub(super) meets: bool,
}

/// Functions that the statements call.
pub(super) fn functions(format: &Activations) -> String {
    let rounded = lower::rounded(&format.scale, format.round, 0.0, format.clamp, 0);
    format!(
        "{reduce}{numbers}
// What values are quantized with, and the scale that is kept.
struct Step {{ f32 apply, kept; }};

GM_DEVICE Step step_of(f32 s) {{
    {step}
    (void)stored;
    const f32 kept = {kept};
    return Step{{apply, kept}};
}}

GM_DEVICE i32 quantized(f32 x, f32 apply) {{ return {integer}; }}

{VALUES}{STATISTIC}{rows}",
        reduce = include_str!("../../../cuda/reduce.h"),
        numbers = enumerators(&[("THREADS", THREADS), ("SCALE_OVERFLOW", u32::from(SCALE_OVERFLOW))]),
        step = cuda::bindings(&lower::step(&format.scale)),
        kept = cuda::expr(&lower::kept(format)),
        integer = cuda::expr(&rounded.to(Type::I32)),
        rows = include_str!("../../../cuda/activations.h"),
    )
}

/// The unit of an activation format: one kernel.
pub fn emit(format: &Activations, function: &str) -> String {
    let Statements { declare, call, .. } = statements(format, &Target::Memory);
    let body = format!(
        "    {declare}const u64 row = gm_block();
    (void)m;
    gm_launch_next();
    gm_wait_for_previous();
    {call};
"
    );
    functions(format) + &kernel(function, &CudaAbi::QUANTIZE_ACTIVATIONS, &body)
}

/// A kernel of which a CUDA block does a row; `body` has its statements, lines of text.
pub(super) fn kernel(function: &str, abi: &CudaAbi, body: &str) -> String {
    exported(&format!("GM_KERNEL_WIDE({THREADS})"), function, &parameters(abi), body)
}

/// What quantizes a row of a format.
pub(super) fn statements(format: &Activations, target: &Target) -> Statements {
    let of = statistic(format.scale.of);
    let blocks = format.block.map_or("1".to_string(), |block| format!("(k / {block})"));
    let (units, place, to, threads) = match *target {
        Target::Memory => {
            let to = format!(
                "ToMemory{{q + row * units * unit_padded, scales + row * {blocks}, sums + row * units}}"
            );
            ("unit, unit_padded, units".to_string(), "0", to, THREADS)
        }
        Target::Shared { unit: (unit, padded), capacity: [values, scales, of_sums], sums, threads } => {
            let units = match unit {
                0 => format!("0, (k + {}) / {padded} * {padded}, 1", padded - 1),
                _ => format!("{unit}, {padded}, (k + {}) / {unit}", unit - 1),
            };
            let (ty, array) = if sums { ("Sums", "Sums{x_sums}") } else { ("NoSums", "NoSums{}") };
            let to = format!(
                "ToShared<{ty}>{{x_values, x_scales, {array}, t * {values}, t * {scales}, t * {of_sums}}}"
            );
            (units, "a.x_first", to, threads)
        }
    };
    let arguments = format!("(Row{{x, type, k, {units}, row * k, {place}, fault}}, {to}");
    match format.block {
        Some(block) => Statements {
            declare: String::new(),
            call: format!("quantize_blocks<{of}, {block}>{arguments})"),
            meets: false,
        },
        None => {
            let [sizes, sums] = row_arrays(format.scale.of).map(|of_warp| of_warp * threads / 32);
            Statements {
                declare: format!(
                    "GM_SHARED(u32, size_of_warp, {sizes});\n    GM_SHARED(i32, sum_of_warp, {sums});\n    "
                ),
                call: format!("quantize_row<{of}>{arguments}, size_of_warp, sum_of_warp)"),
                meets: matches!(target, Target::Shared { unit: (0, _), sums: true, .. }),
            }
        }
    }
}

/// Bytes of shared memory that the warps of `threads` threads find things of a row in, besides the row itself.
pub(super) fn shared_bytes(format: &Activations, threads: u32) -> u32 {
    match format.block {
        Some(_) => 0,
        None => row_arrays(format.scale.of).iter().sum::<u32>() * 4 * (threads / 32),
    }
}

/// Elements for each warp of `size_of_warp`, which has room for positions too, and of `sum_of_warp`.
fn row_arrays(of: Statistic) -> [u32; 2] {
    [if of == Statistic::SignedAbsMax { 2 } else { 1 }, 1]
}
