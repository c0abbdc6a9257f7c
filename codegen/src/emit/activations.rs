//! Code of one activation format: rows of f32 to int8 with scales and sums.

use super::quantize::step;
use crate::lower::ir::{Type, f32};
use crate::lower::quantize as lower;
use crate::print::rust;
use gristmill_spec::model::Activations;

/// The body that every variant wraps: `quantize`. Rows are whole blocks, which a shape rule says.
///
/// Loops go over indices and, where a block has a fixed size, over arrays: that vectorizes whatever the link-time
/// optimization, see `gristmill_runtime::number`.
pub fn emit(format: &Activations) -> String {
    let (blocks, choices) = match format.block {
        Some(block) => (whole_units(format, block), choices(block)),
        None => Default::default(),
    };
    let each_block = match format.block {
        Some(block) => &format!(
            "for index in 0..k / {block} {{
                 let first = index * {block};
                 let end = first + {block};"
        ),
        None => "if k > 0 {\n// A row is one block.\nlet (index, first, end) = (0, 0, k);",
    };
    format!(
        "{blocks}
         /// One row.
         ///
         /// # Safety
         ///
         /// As `abi::QuantizeActivationsFn` of the runtime says.
         #[inline(always)]
         unsafe fn quantize(
             x: *const f32, k: usize, unit: usize, unit_padded: usize,
             q: *mut i8, scales: *mut f32, sums: *mut i32,
         ) -> Result<(), Fault> {{
             let units = k.div_ceil(unit);
             if unit_padded != unit || !k.is_multiple_of(unit) {{
                 // SAFETY: the caller answers for `units` padded units.
                 unsafe {{ q.write_bytes(0, units * unit_padded) }};
             }}
             {choices}
             // SAFETY: the caller answers for a sum each.
             unsafe {{ sums.write_bytes(0, units) }};
             {each_block}
                 // SAFETY: the caller answers for `k` values.
                 let x = unsafe {{ std::slice::from_raw_parts(x.add(first), end - first) }};
                 {}
                 let mut at = first;
                 while at < end {{
                     // The part of the block that lies in one unit.
                     let (number, within) = (at / unit, at % unit);
                     let len = (unit - within).min(end - at);
                     // SAFETY: the part lies in the block and in the unit.
                     let (x, to) = unsafe {{
                         (
                             std::slice::from_raw_parts(x.as_ptr().add(at - first), len),
                             std::slice::from_raw_parts_mut(q.add(number * unit_padded + within), len),
                         )
                     }};
                     let mut sum = 0i32;
                     {}
                     // SAFETY: the caller answers for a sum a unit.
                     unsafe {{ *sums.add(number) += sum }};
                     at += len;
                 }}
             }}
             Ok(())
         }}\n",
        scale(format),
        integers(format, "len", "sum += value;")
    )
}

/// Statements that find `apply` and write the scale of the block `index` that is `x` and starts at element `first`.
fn scale(format: &Activations) -> String {
    let overflow = if format.stored_f16 {
        "if kept.is_infinite() { return Err(Fault::ScaleOverflow(index)); }"
    } else {
        ""
    };
    format!(
        "let magnitude = match number::finite_abs_max(x) {{
             Ok(magnitude) => magnitude,
             Err(fault) => return Err(number::offset(fault, first)),
         }};
         {}
         let kept = {};
         {overflow}
         // SAFETY: the caller answers for one scale a block.
         unsafe {{ scales.add(index).write(kept) }};\n",
        step(&format.scale, if format.keeps_multiplier { &["apply"] } else { &["apply", "stored"] }),
        rust::expr(&lower::kept(format)),
    )
}

/// Statements that make the integers `to` of the values `x`, `len` each, and after each `then`.
fn integers(format: &Activations, len: &str, then: &str) -> String {
    format!(
        "for i in 0..{len} {{
             let x = x[i];
             let rounded = {};
             // SAFETY: clamped to the range of i8, and `max` leaves no NaN.
             let value = {};
             to[i] = value as i8;
             {then}
         }}\n",
        rust::expr(&lower::rounded(&format.scale, format.round, 0.0, format.clamp, 0)),
        rust::expr(&f32("rounded").to(Type::I32)),
    )
}

/// Rows whose units have a size that is known. One loop makes the integers of a block, and others add them up: loops of the
/// sixteen elements of a unit LLVM unrolls before it could vectorize them.
fn whole_units(format: &Activations, block: u32) -> String {
    format!(
        "/// Rows in units of `UNIT` elements that blocks are made of.
         ///
         /// # Safety
         ///
         /// As `abi::QuantizeActivationsFn` of the runtime says.
         #[inline(always)]
         unsafe fn whole_units<const UNIT: usize>(
             x: *const f32, k: usize, unit_padded: usize, q: *mut i8, scales: *mut f32, sums: *mut i32,
         ) -> Result<(), Fault> {{
             for index in 0..k / {block} {{
                 let first = index * {block};
                 // SAFETY: the caller answers for `k` values.
                 let x = unsafe {{ &*x.add(first).cast::<[f32; {block}]>() }};
                 {}
                 let mut to = [0i8; {block}];
                 {}
                 for (part, from) in to.as_chunks::<UNIT>().0.iter().enumerate() {{
                     let unit = first / UNIT + part;
                     let mut sum = 0i32;
                     for i in 0..UNIT {{ sum += from[i] as i32; }}
                     // SAFETY: a block has so many units; the caller answers for a padded unit and a sum each.
                     unsafe {{
                         q.add(unit * unit_padded).cast::<[i8; UNIT]>().write(*from);
                         sums.add(unit).write(sum);
                     }}
                 }}
             }}
             Ok(())
         }}\n",
        scale(format),
        integers(format, &block.to_string(), "")
    )
}

/// Statements that pass rows on to `whole_units` for the units that formats have; others take the general loop.
fn choices(block: u32) -> String {
    let parts = [32, 16].into_iter().filter(|unit| *unit < block && block.is_multiple_of(*unit));
    let choice = |unit: u32| {
        format!(
            "if unit == {unit} {{
                 // SAFETY: passed on.
                 return unsafe {{ whole_units::<{unit}>(x, k, unit_padded, q, scales, sums) }};
             }}\n"
        )
    };
    [block].into_iter().chain(parts).map(choice).collect()
}
