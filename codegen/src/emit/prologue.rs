//! Code of an activation format's prologue: what may be done to a row before it is quantized, step by step where it lies.

use gristmill_spec::model::Activations;
use gristmill_spec::vocab::PrologueStep;

/// The body that every variant wraps, `prologue`: the steps in the order of the spec, and then [`quantize`](super::activations).
///
/// A row is copied once and stays in the first cache until it is int8. What a step computes stands in
/// `gristmill_runtime::prologue::steps`, and is inlined into each variant.
pub fn emit(format: &Activations) -> String {
    let steps: String = format.prologue.iter().map(|step| one(*step)).collect();
    format!(
        "/// One row.
         ///
         /// # Safety
         ///
         /// As `abi::PrologueFn` of the runtime says.
         #[inline(always)]
         unsafe fn prologue(args: &PrologueArgs) -> Result<(), Fault> {{
             let k = args.k;
             // SAFETY: the caller answers for `k` values, and for room for as many that nobody else has.
             let (x, row) = unsafe {{
                 (std::slice::from_raw_parts(args.x, k), std::slice::from_raw_parts_mut(args.row, k))
             }};
             steps::copy(x, row)?;
             {steps}
             // SAFETY: the caller answers for what `quantize` takes; `row` holds `k` values.
             unsafe {{
                 quantize(row.as_ptr(), k, args.unit, args.unit_padded, args.q, args.scales, args.sums)
             }}
         }}\n"
    )
}

fn one(step: PrologueStep) -> &'static str {
    match step {
        PrologueStep::Gate => {
            "if !args.up.is_null() {
                 // SAFETY: the caller answers for `k` values.
                 let up = unsafe { std::slice::from_raw_parts(args.up, k) };
                 steps::gate(row, up, args.function)?;
             }\n"
        }
        PrologueStep::Add => {
            "if !args.residual.is_null() {
                 // SAFETY: the caller answers for `k` values, and for room for as many.
                 let (residual, sum) = unsafe {
                     (std::slice::from_raw_parts(args.residual, k), std::slice::from_raw_parts_mut(args.sum, k))
                 };
                 steps::add(row, residual, sum)?;
             }\n"
        }
        PrologueStep::RmsNorm => {
            "if !args.weight.is_null() {
                 // SAFETY: the caller answers for `k` values.
                 let weight = unsafe { std::slice::from_raw_parts(args.weight, k) };
                 steps::rms_norm(row, weight, args.epsilon)?;
             }\n"
        }
        PrologueStep::Hadamard => {
            "if args.block > 0 {
                 let signs = match args.signs.is_null() {
                     true => None,
                     // SAFETY: the caller answers for `k` values.
                     false => Some(unsafe { std::slice::from_raw_parts(args.signs, k) }),
                 };
                 steps::hadamard(row, signs, args.block)?;
             }\n"
        }
    }
}
