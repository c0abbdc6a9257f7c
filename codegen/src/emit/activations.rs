//! Code of one activation format: a row of f32 to int8 with scales and sums.

use super::quantize::{rounded, step};
use gristmill_spec::model::Activations;

/// The body that every variant wraps.
pub fn emit(format: &Activations) -> String {
    let block = match format.block {
        Some(block) => block.to_string(),
        None => "k.max(1)".to_string(),
    };
    let kept = match (format.keeps_multiplier, format.stored_f16) {
        (true, _) => "apply",
        (false, true) => "number::f16_to_f32(number::f32_to_f16(stored))",
        (false, false) => "stored",
    };
    let rounded = rounded(&format.scale, format.round, 0.0, format.clamp, 0);
    let step = step(&format.scale);
    let overflow = if format.stored_f16 {
        "if kept.is_infinite() { return Err(Fault::ScaleOverflow(index)); }"
    } else {
        ""
    };
    format!(
        "/// One row.
         ///
         /// # Safety
         ///
         /// As [`QuantizeActivationsFn`](gristmill_runtime::abi::QuantizeActivationsFn) says.
         #[inline(always)]
         unsafe fn quantize(
             x: *const f32, k: usize, unit: usize, unit_padded: usize,
             q: *mut i8, scales: *mut f32, sums: *mut i32,
         ) -> Result<(), Fault> {{
             // SAFETY: the caller answers for `k` values.
             let row = unsafe {{ std::slice::from_raw_parts(x, k) }};
             let units = k.div_ceil(unit);
             // SAFETY: the caller answers for `units` padded units and their sums.
             let (q, sums) = unsafe {{
                 (std::slice::from_raw_parts_mut(q, units * unit_padded), std::slice::from_raw_parts_mut(sums, units))
             }};
             sums.fill(0);
             if unit_padded != unit || k % unit != 0 {{ q.fill(0); }}
             for (index, x) in row.chunks({block}).enumerate() {{
                 let first = index * {block};
                 number::check_finite(x).map_err(|fault| number::offset(fault, first))?;
                 {step}
                 let kept = {kept};
                 {overflow}
                 // SAFETY: the caller answers for one scale a block.
                 unsafe {{ scales.add(index).write(kept) }};
                 let mut at = 0;
                 while at < x.len() {{
                     // The part of the block that lies in one unit.
                     let (number, within) = ((first + at) / unit, (first + at) % unit);
                     let len = (unit - within).min(x.len() - at);
                     let mut sum = 0i32;
                     for (q, &x) in q[number * unit_padded + within..][..len].iter_mut().zip(&x[at..][..len]) {{
                         let rounded = {rounded};
                         // SAFETY: clamped to the range of i8, and `max` leaves no NaN.
                         let value = unsafe {{ rounded.to_int_unchecked::<i32>() }};
                         *q = value as i8;
                         sum += value;
                     }}
                     sums[number] += sum;
                     at += len;
                 }}
             }}
             Ok(())
         }}\n"
    )
}
