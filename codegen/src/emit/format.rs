//! Code of one weight format: the values and scales of a block, and `dequantize`.
//!
//! Each body is written once, `#[inline(always)]`, over fixed-size arrays; the variants are thin
//! `#[target_feature]` functions around it, so that one text serves every ISA and gives every ISA the
//! same bits. `quantize`, `pack` and the scalar product, in the files beside this one, are made the same way.

use super::fields::{needs_window, read_f32, read_i8, read_raw};
use crate::lower::decode as lower;
use crate::lower::ir::{Expr, f32, u32};
use crate::lower::stored::raw_type;
use crate::plan::{Decode, FormatPlan, RunTerm, SuperBlock};
use crate::print::rust;
use crate::text::{joined, when};
use gristmill_spec::model::{Field, Format, Value, ValueMap};
use std::fmt::Write;

/// Constants, `values`, `terms`, and where they are kept apart the parts of those.
pub fn decode(plan: &FormatPlan<'_>) -> String {
    let format = plan.format;
    let mut out = String::new();
    let (elements, bytes) = (format.elements, format.bytes);
    let _ = write!(
        out,
        "/// Elements of a block.
         pub const ELEMENTS: usize = {elements};
         /// Bytes of a block.
         pub const BYTES: usize = {bytes};
         /// The integer value of a weight.
         type Int = {};\n",
        rust::name(lower::integer(plan)),
    );
    if plan.has_scales() {
        let _ = write!(
            out,
            "/// Runs of a block that share a scale.
             const RUNS: usize = {};
             /// Elements of such a run.
             const RUN: usize = {};\n",
            plan.groups,
            plan.run(),
        );
    }
    if let ValueMap::Codebook { entries, name, .. } = &format.value.map {
        let rows = joined(lower::codebook(&format.value).iter().map(|e| format!("{e:?}")), ", ");
        let _ = write!(
            out,
            "/// Codebook `{name}`.
             static CODEBOOK: [[Int; {}]; {}] = [{}];\n",
            format.value.group,
            entries.len(),
            rows
        );
    }
    out.push_str(&values(plan));
    out.push_str(&terms(plan));
    if let Some(superblock) = &plan.superblock {
        out.push_str(&parts(plan, superblock));
    }
    out
}

pub(super) fn window(fields: &[&Field]) -> &'static str {
    if fields.iter().any(|f| needs_window(f)) {
        "let mut window = [0u8; BYTES + 8];
         window[..BYTES].copy_from_slice(block);\n"
    } else {
        ""
    }
}

/// The array of a field's raw values, as an expression that needs nothing but the block.
pub(super) fn read_alone(field: &Field) -> String {
    match window(&[field]) {
        "" => read_raw(field),
        window => format!("{{ {window}{} }}", read_raw(field)),
    }
}

fn values(plan: &FormatPlan<'_>) -> String {
    let value = &plan.format.value;
    let code = &plan.format.fields[value.code];
    let mut used = vec![code];
    used.extend(value.signs.iter().map(|s| &plan.format.fields[s.field]));
    used.extend(value.shift.iter().map(|s| &plan.format.fields[s.field]));
    let worst = plan.last_code.map_or(String::new(), |last| {
        format!(
            "// One comparison a block; the position is looked for only when there is something to find.
             let mut worst = 0;
             for code in &codes {{ worst = worst.max(*code); }}
             if worst > {last} {{
                 let at = codes.iter().position(|&code| code > {last}).unwrap_or(0);
                 return Err(Fault::InvalidCode({}));
             }}\n",
            first_element(value, "at")
        )
    });
    format!(
        "/// The integer values of a block.
         #[inline(always)]
         fn values(block: &[u8; BYTES]) -> Result<[Int; ELEMENTS], Fault> {{
             {}let codes = {};
             {worst}{}{}{} Ok(values)
         }}\n",
        window(&used),
        read_raw(code),
        mapped(plan),
        negated(plan),
        shifted(plan),
    )
}

fn list(integers: &[i32]) -> String {
    joined(integers, ", ")
}

/// Statements that bind `values` to what the `codes` are mapped to.
fn mapped(plan: &FormatPlan<'_>) -> String {
    let value = &plan.format.value;
    match plan.decode() {
        Decode::Affine { times, zero, signed } => {
            let code = Expr::name(raw_type(&plan.format.fields[value.code]), "code");
            let integer = lower::affine((times, zero, signed), plan.code_bits, code, lower::integer(plan));
            format!(
                "let mut values = [0 as Int; ELEMENTS];
                 for i in 0..ELEMENTS {{ let code = codes[i]; values[i] = {}; }}\n",
                rust::expr(&integer)
            )
        }
        Decode::Table(table) => format!(
            "const LEVELS: [Int; {}] = [{}];
             let mut values = [0 as Int; ELEMENTS];
             for i in 0..ELEMENTS {{ values[i] = LEVELS[usize::from(codes[i]) % LEVELS.len()]; }}\n",
            table.len(),
            list(&table),
        ),
        Decode::Codebook => {
            let place = match value.stride {
                1 => format!("{} * i + j", value.group),
                stride => format!("{} + {stride} * j", first_element(value, "i")),
            };
            format!(
                "let mut values = [0 as Int; ELEMENTS];
                 for i in 0..ELEMENTS / {group} {{
                     let entry = &CODEBOOK[usize::from(codes[i]) % CODEBOOK.len()];
                     for j in 0..{group} {{ values[{place}] = entry[j]; }}
                 }}\n",
                group = value.group
            )
        }
    }
}

/// Statements that negate `values` by signs of their own.
fn negated(plan: &FormatPlan<'_>) -> String {
    let Some(signs) = &plan.format.value.signs else { return String::new() };
    let field = &plan.format.fields[signs.field];
    let run = plan.format.elements / field.count;
    let all = rust::expr(&lower::signs(signs, run, u32("mask")));
    let parity = when(signs.parity, || format!("let mask = {all};"));
    format!(
        "let signs = {};
         for i in 0..ELEMENTS / {run} {{
             let mask = u32::from(signs[i]);
             {parity}
             for bit in 0..{run} {{
                 // All ones where the sign is set: two's complement without a branch.
                 let negative = -((mask >> bit & 1) as Int);
                 let value = &mut values[{run} * i + bit];
                 *value = (*value ^ negative) - negative;
             }}
         }}\n",
        read_raw(field)
    )
}

/// Statements that add shifts to `values`.
fn shifted(plan: &FormatPlan<'_>) -> String {
    let Some((field, shifts)) = lower::shifts(plan) else { return String::new() };
    let run = plan.format.elements / field.count;
    format!(
        "const SHIFTS: [Int; {}] = [{}];
         let shifts = {};
         for i in 0..ELEMENTS / {run} {{
             let shift = SHIFTS[usize::from(shifts[i]) % SHIFTS.len()];
             for j in 0..{run} {{ values[{run} * i + j] += shift; }}
         }}\n",
        shifts.len(),
        list(&shifts),
        read_raw(field)
    )
}

/// The first element of the code whose number is the expression `code`.
fn first_element(value: &Value, code: &str) -> String {
    match value.stride {
        1 => format!("{code} * {}", value.group),
        stride => format!("{code} / {stride} * {} + {code} % {stride}", value.group * stride),
    }
}

/// `terms`: the scale (and offset) of each run of a block, with or without the factor outside it.
fn terms(plan: &FormatPlan<'_>) -> String {
    let format = plan.format;
    if !plan.has_scales() {
        return String::new();
    }
    let fields_used = lower::fields_of_terms(&format.value);
    let fields: Vec<_> = fields_used.iter().map(|&i| &format.fields[i]).collect();
    let mut body = format!("{}{}", window(&fields), numbers(format, &fields_used));
    let (scale, offset) = lower::terms(plan, &number_of_field);
    let _ = writeln!(
        body,
        "let mut scale = [0f32; RUNS];
         for run in 0..RUNS {{ scale[run] = {}; }}",
        rust::expr(&scale)
    );
    let (ty, result) = match &offset {
        None => ("[f32; RUNS]", "scale"),
        Some(offset) => {
            let _ = writeln!(
                body,
                "let mut offset = [0f32; RUNS];
                 for run in 0..RUNS {{ offset[run] = {}; }}",
                rust::expr(offset)
            );
            ("([f32; RUNS], [f32; RUNS])", "(scale, offset)")
        }
    };
    let outer = if plan.uses_outer() { "outer: f32" } else { "_outer: f32" };
    format!(
        "/// {}
         #[inline(always)]
         fn terms(block: &[u8; BYTES], {outer}) -> {ty} {{ {body} {result} }}\n",
        if offset.is_some() {
            "Scale of each run, and the term that is subtracted after scaling."
        } else {
            "Scale of each run."
        }
    )
}

/// Statements that read the numbers of fields, each to an array.
fn numbers(format: &Format, fields: &[usize]) -> String {
    fields.iter().map(|&i| format!("let f{i} = {};\n", read_f32(&format.fields[i]))).collect()
}

/// The number of a field whose numbers are in an array.
fn number_of_field(field: usize, index: Expr) -> Expr {
    f32(format!("f{field}[{}]", rust::expr(&index)))
}

/// `scale_parts` and `min_parts`: the number that each super-block's terms share, and the integer of each run.
fn parts(plan: &FormatPlan<'_>, superblock: &SuperBlock) -> String {
    let format = plan.format;
    let value = &format.value;
    let runs = superblock.runs;
    let count = plan.groups / runs;
    let of = |name: &str, doc: &str, term: &RunTerm, unit: f32, negative: bool| {
        let mut fields: Vec<_> = term.shared.iter().map(|&i| &format.fields[i]).collect();
        let product = lower::shared(plan, term, unit, count, &number_of_field);
        let product = rust::expr(&if negative { -product } else { product });
        let integer = &format.fields[term.integer];
        fields.push(integer);
        // What several runs share is repeated.
        let integers = if integer.count == plan.groups {
            read_i8(integer)
        } else {
            format!(
                "{{
                     let few = {};
                     let mut each = [0i8; RUNS];
                     for run in 0..RUNS {{ each[run] = few[run * {} / RUNS]; }}
                     each
                 }}",
                read_i8(integer),
                integer.count
            )
        };
        format!(
            "/// {doc} of each super-block without the integer of its runs, and those integers.
             #[inline(always)]
             fn {name}(block: &[u8; BYTES]) -> ([f32; SUPERBLOCKS], [i8; RUNS]) {{
                 {window}{numbers}
                 let mut shared = [0f32; SUPERBLOCKS];
                 for i in 0..SUPERBLOCKS {{ shared[i] = {product}; }}
                 (shared, {integers})
             }}\n",
            window = window(&fields),
            numbers = numbers(format, &term.shared),
        )
    };
    let mut out = format!(
        "/// Runs whose integer sums are added up before they are scaled.
         const SUPERBLOCK: usize = {runs};
         /// Such super-blocks in a block.
         const SUPERBLOCKS: usize = {count};\n"
    );
    out.push_str(&of("scale_parts", "Scale", &superblock.scale, value.unit, false));
    if let Some(min) = &superblock.min {
        out.push_str(&of("min_parts", "What is subtracted", min, 1.0, value.subtract.is_empty()));
    }
    out
}

/// The dequantize body.
pub fn dequantize(plan: &FormatPlan<'_>) -> String {
    let integer = |name: &str| Expr::name(lower::integer(plan), name);
    let write = if !plan.has_scales() {
        let weight = lower::weight(lower::scale_outside(plan), integer("values[i]"), None);
        format!("for i in 0..ELEMENTS {{ out[i] = {}; }}", rust::expr(&weight))
    } else {
        let offset = plan.offset.then(|| f32("offset[run]"));
        let weight = lower::weight(f32("scale[run]"), integer("value"), offset);
        format!(
            "let {} = terms(block, outer);
             for run in 0..RUNS {{
                 // SAFETY: a block has so many runs.
                 let (out, values) = unsafe {{
                     (
                         &mut *out.as_mut_ptr().add(run * RUN).cast::<[f32; RUN]>(),
                         &*values.as_ptr().add(run * RUN).cast::<[Int; RUN]>(),
                     )
                 }};
                 for i in 0..RUN {{ let value = values[i]; out[i] = {}; }}
             }}",
            if plan.offset { "(scale, offset)" } else { "scale" },
            rust::expr(&weight)
        )
    };
    let outer = if plan.has_scales() || plan.uses_outer() { "outer" } else { "_outer" };
    format!(
        "/// Blocks to values.
         ///
         /// # Safety
         ///
         /// `src` holds `blocks` blocks and `dst` room for `blocks * ELEMENTS` values.
         #[inline(always)]
         unsafe fn dequantize(src: *const u8, dst: *mut f32, blocks: usize, {outer}: f32) -> Result<(), Fault> {{
             for index in 0..blocks {{
                 // SAFETY: the caller answers for `blocks` blocks and their values.
                 let block = unsafe {{ &*src.add(index * BYTES).cast::<[u8; BYTES]>() }};
                 // SAFETY: as above.
                 let out = unsafe {{ &mut *dst.add(index * ELEMENTS).cast::<[f32; ELEMENTS]>() }};
                 let values = match values(block) {{
                     Ok(values) => values,
                     Err(fault) => return Err(number::offset(fault, index * ELEMENTS)),
                 }};
                 {write}
             }}
             Ok(())
         }}\n"
    )
}
