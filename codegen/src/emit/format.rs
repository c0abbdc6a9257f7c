//! Code of one weight format: values, scales, dequantize, quantize, pack, unpack, scalar matmul.
//!
//! Each body is written once, `#[inline(always)]`, over fixed-size arrays; the variants are thin
//! `#[target_feature]` functions around it, so that one text serves every ISA and gives every ISA the
//! same bits.

use super::fields::{needs_window, raw_type, read_f32, read_raw, signed, write_raw};
use super::{doc, float};
use crate::Error;
use crate::plan::{Decode, FormatPlan, PackPlan};
use gristmill_spec::model::{
    Axis, Factor, FieldType, QuantizeRule, Quantizer, Rounding, ScaleRule, Statistic, ValueMap, Via,
};
use std::fmt::Write;

/// Constants, `values` and `terms`.
pub fn decode(plan: &FormatPlan<'_>) -> String {
    let format = plan.format;
    let mut out = String::new();
    let (elements, bytes, groups) = (format.elements, format.bytes, plan.groups);
    let _ = write!(
        out,
        "/// Elements of a block.
         pub const ELEMENTS: usize = {elements};
         /// Bytes of a block.
         pub const BYTES: usize = {bytes};
         /// Runs of a block that share a scale.
         const RUNS: usize = {groups};
         /// Elements of such a run.
         const RUN: usize = {};
         /// The integer value of a weight.
         type Int = {};\n",
        plan.run(),
        plan.value_type(),
    );
    if let ValueMap::Codebook { entries, times, name } = &format.value.map {
        let rows: Vec<String> = entries
            .iter()
            .map(|e| {
                format!("[{}]", e.iter().map(|v| (v * times).to_string()).collect::<Vec<_>>().join(", "))
            })
            .collect();
        let _ = write!(
            out,
            "/// Codebook `{name}`.
             static CODEBOOK: [[Int; {}]; {}] = [{}];\n",
            format.value.group,
            entries.len(),
            rows.join(", ")
        );
    }
    out.push_str(&values(plan));
    out.push_str(&terms(plan));
    out
}

fn window(fields: &[&gristmill_spec::model::Field]) -> &'static str {
    if fields.iter().any(|f| needs_window(f)) {
        "let mut window = [0u8; BYTES + 8];
         window[..BYTES].copy_from_slice(block);\n"
    } else {
        ""
    }
}

fn values(plan: &FormatPlan<'_>) -> String {
    let format = plan.format;
    let value = &format.value;
    let code = &format.fields[value.code];
    let wide = plan.value_type() == "i16";
    let mut body = String::new();
    let mut used = vec![code];
    used.extend(value.signs.iter().map(|s| &format.fields[s.field]));
    used.extend(value.shift.iter().map(|s| &format.fields[s.field]));
    body.push_str(window(&used));
    let _ = writeln!(body, "let codes = {};", read_raw(code));
    if let Some(last) = plan.last_code {
        let _ = write!(
            body,
            "// One comparison a block; the position is looked for only when there is something to find.
             if codes.iter().fold(0, |worst, &code| worst.max(code)) > {last} {{
                 let at = codes.iter().position(|&code| code > {last}).unwrap_or(0);
                 return Err(Fault::InvalidCode(at * {}));
             }}\n",
            value.group
        );
    }
    let int = if wide { "i16" } else { "i8" };
    match plan.decode() {
        Decode::Affine { times, zero, signed } => {
            let mut text = String::from("code");
            let bits = plan.code_bits;
            let width = if plan.code_type() == "u8" { 8 } else { 16 };
            if signed && bits < width {
                text = format!("((({text} << {0}) as i{width}) >> {0})", width - bits);
            } else if signed {
                text = format!("({text} as i{width})");
            }
            // Arithmetic modulo 2^8 or 2^16 is exact: the results are known to fit.
            let chained = times != 1 || zero != 0;
            text = match (signed && width == 8 && wide, chained) {
                (true, _) => format!("i16::from({text})"),
                (false, true) => format!("({text} as Int)"),
                (false, false) => format!("{text} as Int"),
            };
            if times != 1 {
                text = format!("{text}.wrapping_mul({})", wrap(times, wide));
            }
            if zero != 0 {
                text = format!("{text}.wrapping_sub({})", wrap(zero, wide));
            }
            let _ = writeln!(
                body,
                "let mut values = [0 as Int; ELEMENTS];
                 for (value, code) in values.iter_mut().zip(codes) {{ *value = {text}; }}"
            );
        }
        Decode::Table(table) => {
            let entries: Vec<String> = table.iter().map(i32::to_string).collect();
            let _ = writeln!(
                body,
                "const LEVELS: [{int}; {}] = [{}];
                 let mut values = [0 as Int; ELEMENTS];
                 for (value, code) in values.iter_mut().zip(codes) {{ *value = LEVELS[usize::from(code) % LEVELS.len()]; }}",
                table.len(),
                entries.join(", "),
            );
        }
        Decode::Codebook { .. } => {
            let _ = writeln!(
                body,
                "let mut values = [0 as Int; ELEMENTS];
                 for (values, code) in values.chunks_exact_mut({}).zip(codes) {{
                     values.copy_from_slice(&CODEBOOK[usize::from(code) % CODEBOOK.len()]);
                 }}",
                value.group
            );
        }
    }
    if let Some(signs) = &value.signs {
        let field = &format.fields[signs.field];
        let run = format.elements / field.count;
        let _ = writeln!(body, "let signs = {};", read_raw(field));
        let parity = if signs.parity {
            format!("let mask = u32::from(mask); let mask = mask | (mask.count_ones() & 1) << {};", run - 1)
        } else {
            "let mask = u32::from(mask);".to_string()
        };
        let _ = writeln!(
            body,
            "for (values, mask) in values.chunks_exact_mut({run}).zip(signs) {{
                 {parity}
                 for (bit, value) in values.iter_mut().enumerate() {{
                     if mask >> bit & 1 != 0 {{ *value = -*value; }}
                 }}
             }}"
        );
    }
    if let Some(shift) = &value.shift {
        let field = &format.fields[shift.field];
        let run = format.elements / field.count;
        let mut table: Vec<String> = shift.values.iter().map(i32::to_string).collect();
        let bits = match field.ty {
            FieldType::Unsigned(bits) => bits,
            _ => 1,
        };
        table.resize(1 << bits, "0".to_string());
        let _ = writeln!(
            body,
            "const SHIFTS: [Int; {}] = [{}];
             let shifts = {};
             for (values, shift) in values.chunks_exact_mut({run}).zip(shifts) {{
                 for value in values {{ *value += SHIFTS[usize::from(shift) % SHIFTS.len()]; }}
             }}",
            table.len(),
            table.join(", "),
            read_raw(field)
        );
    }
    format!(
        "/// The integer values of a block.
         #[inline(always)]
         fn values(block: &[u8; BYTES]) -> Result<[Int; ELEMENTS], Fault> {{ {body} Ok(values) }}\n"
    )
}

/// A constant of the value type, modulo its width.
fn wrap(value: i32, wide: bool) -> String {
    if wide { (value as i16).to_string() } else { (value as i8).to_string() }
}

/// `terms`: the scale (and offset) of each run of a block, with or without the factor outside it.
fn terms(plan: &FormatPlan<'_>) -> String {
    let format = plan.format;
    if !plan.has_scales() {
        return String::new();
    }
    let value = &format.value;
    let mut used: Vec<usize> = Vec::new();
    for factor in value.scale.iter().chain(&value.add).chain(&value.subtract) {
        if let Factor::Field(i) = factor
            && !used.contains(i)
        {
            used.push(*i);
        }
    }
    let fields: Vec<_> = used.iter().map(|&i| &format.fields[i]).collect();
    let mut body = window(&fields).to_string();
    for (&i, field) in used.iter().zip(&fields) {
        let _ = writeln!(body, "let f{i} = {};", read_f32(field));
    }
    let product = |factors: &[Factor], unit: f32| -> String {
        let mut parts: Vec<String> = factors
            .iter()
            .map(|factor| match factor {
                Factor::Field(i) => match format.fields[*i].count {
                    1 => format!("f{i}[0]"),
                    count if count == plan.groups => format!("f{i}[run]"),
                    count => format!("f{i}[run * {count} / RUNS]"),
                },
                Factor::Row | Factor::Tensor => "outer".to_string(),
            })
            .collect();
        if unit != 1.0 {
            parts.push(float(unit));
        }
        if parts.is_empty() { "1.0".to_string() } else { parts.join(" * ") }
    };
    let _ = writeln!(
        body,
        "let mut scale = [0f32; RUNS];
         for run in 0..RUNS {{ scale[run] = {}; }}",
        product(&value.scale, value.unit)
    );
    let offset = match (value.add.is_empty(), value.subtract.is_empty()) {
        (true, true) => None,
        (true, false) => Some(product(&value.subtract, 1.0)),
        (false, true) => Some(format!("-({})", product(&value.add, 1.0))),
        (false, false) => Some(format!("{} - {}", product(&value.subtract, 1.0), product(&value.add, 1.0))),
    };
    let (ty, result) = match &offset {
        None => ("[f32; RUNS]", "scale"),
        Some(offset) => {
            let _ = writeln!(
                body,
                "let mut offset = [0f32; RUNS];
                 for run in 0..RUNS {{ offset[run] = {offset}; }}"
            );
            ("([f32; RUNS], [f32; RUNS])", "(scale, offset)")
        }
    };
    let outer = if plan.outer || uses_outer(plan) { "outer: f32" } else { "_outer: f32" };
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

fn uses_outer(plan: &FormatPlan<'_>) -> bool {
    let value = &plan.format.value;
    value
        .scale
        .iter()
        .chain(&value.add)
        .chain(&value.subtract)
        .any(|f| matches!(f, Factor::Row | Factor::Tensor))
}

/// The dequantize body.
pub fn dequantize(plan: &FormatPlan<'_>) -> String {
    let unit = plan.format.value.unit;
    let write = if !plan.has_scales() {
        let scale = match (uses_outer(plan), unit == 1.0) {
            (true, true) => "outer".to_string(),
            (true, false) => format!("(outer * {})", float(unit)),
            (false, _) => float(unit),
        };
        format!("for (out, value) in out.iter_mut().zip(values) {{ *out = {scale} * f32::from(value); }}")
    } else {
        let (pattern, value) = if plan.offset {
            ("let (scale, offset) = terms(block, outer);", "scale[run] * f32::from(value) - offset[run]")
        } else {
            ("let scale = terms(block, outer);", "scale[run] * f32::from(value)")
        };
        format!(
            "{pattern}
             for run in 0..RUNS {{
                 for (out, &value) in out[run * RUN..][..RUN].iter_mut().zip(&values[run * RUN..][..RUN]) {{ *out = {value}; }}
             }}"
        )
    };
    let outer = if plan.has_scales() || uses_outer(plan) { "outer" } else { "_outer" };
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
                 let values = values(block).map_err(|fault| number::offset(fault, index * ELEMENTS))?;
                 {write}
             }}
             Ok(())
         }}\n"
    )
}

/// Rust for the statistic of `x` (a slice), as f32 or f64.
fn statistic(rule: &ScaleRule) -> (&'static str, bool) {
    match rule.of {
        Statistic::AbsMax => ("number::abs_max(x)", false),
        Statistic::SignedAbsMax => ("number::signed_abs_max(x)", false),
        Statistic::AbsMean => ("number::abs_mean(x)", false),
    }
}

/// Statements that bind `apply` (what x is multiplied or divided by) and `stored` from the slice `x`.
pub fn step(rule: &ScaleRule) -> String {
    let (statistic, _) = statistic(rule);
    let levels = float(rule.levels);
    let mut out = format!("let s = {statistic};\n");
    if rule.floor != 0.0 && !rule.f64_division {
        let _ = writeln!(out, "let s = s.max({});", float(rule.floor as f32));
    }
    match rule.via {
        Via::Step => {
            let _ = writeln!(
                out,
                "// A block too small for a finite inverse counts as all zero.
                 let step = s / {levels};
                 let (apply, stored) = match 1.0 / step {{
                     inverse if inverse.is_finite() => (inverse, step),
                     _ => (0.0, 0.0 / {levels}),
                 }};"
            );
        }
        Via::Multiplier if rule.f64_division => {
            let _ = writeln!(
                out,
                "let apply = ({levels_f64} / f64::from(s).max({:?})) as f32;
                 let (apply, stored) = match apply.is_finite() {{ true => (apply, 1.0 / apply), false => (0.0, 0.0) }};",
                rule.floor,
                levels_f64 = format_args!("{:?}f64", f64::from(rule.levels)),
            );
        }
        Via::Multiplier => {
            let _ = writeln!(
                out,
                "let apply = {levels} / s;
                 let (apply, stored) = match apply.is_finite() {{ true => (apply, 1.0 / apply), false => (0.0, 0.0) }};"
            );
        }
        Via::Divide => {
            let _ = writeln!(
                out,
                "let apply = s / {levels};
                 let (apply, stored) = match apply != 0.0 {{ true => (apply, apply), false => (f32::INFINITY, 0.0) }};"
            );
        }
    }
    out
}

/// An expression of the rounded, clamped integer (as f32) of `x`, given `apply`.
pub fn rounded(rule: &ScaleRule, round: Rounding, threshold: f64, clamp: (i32, i32), zero: i32) -> String {
    let scaled = match rule.via {
        Via::Divide => "(x / apply)",
        Via::Step | Via::Multiplier => "(x * apply)",
    };
    let nearest = match round {
        Rounding::HalfEven => format!("{scaled}.round_ties_even()"),
        Rounding::HalfAway => format!("{scaled}.round()"),
        Rounding::HalfTowardZero => format!("number::round_half_toward_zero({scaled})"),
        Rounding::HalfUp => {
            format!("(({scaled} + {}).trunc() - {})", float(zero as f32 + 0.5), float(zero as f32))
        }
        Rounding::Sign => format!("number::sign(x, {threshold:?})"),
    };
    format!("{nearest}.max({}).min({})", float(clamp.0 as f32), float(clamp.1 as f32))
}

/// The body of one quantizer: `step_NAME` where the scale covers more than a block, and `quantize_NAME`.
pub fn quantize(plan: &FormatPlan<'_>, quantizer: &Quantizer) -> Result<String, Error> {
    let format = plan.format;
    let name = &quantizer.name;
    let rule = match &quantizer.rule {
        QuantizeRule::Round(rule) => rule,
        QuantizeRule::Search(search) => return super::search::quantize(plan, name, *search),
    };
    let code = &format.fields[format.value.code];
    let Decode::Affine { times, zero, .. } = plan.decode() else {
        return Err(Error::plan(
            format,
            "rounding needs evenly spaced levels; this quantizer can't make a table's codes",
        ));
    };
    if times != 1
        || format.value.unit != 1.0
        || !format.value.add.is_empty()
        || !format.value.subtract.is_empty()
    {
        return Err(Error::plan(format, "its quantizer can round to `scale * (code - zero)` only"));
    }
    let [factor] = format.value.scale.as_slice() else {
        return Err(Error::plan(format, "its quantizer needs exactly one scale"));
    };
    let mut out = String::new();
    let half_up_zero = zero;
    let rounded = rounded(&rule.scale, rule.round, rule.threshold, rule.clamp, half_up_zero);
    let mut body = String::new();
    let mut store = String::new();
    match factor {
        Factor::Field(index) => {
            let field = &format.fields[*index];
            if field.count != 1 {
                return Err(Error::plan(format, "its quantizer needs one scale a block"));
            }
            body.push_str(&step(&rule.scale));
            store.push_str(&super::search::store_float(format, field, "stored")?);
        }
        Factor::Row | Factor::Tensor => {
            let _ = write!(
                out,
                "/// The step of `{name}` for a row or tensor.
                 ///
                 /// # Safety
                 ///
                 /// `src` holds `len` values.
                 #[inline(always)]
                 unsafe fn step_{name}(src: *const f32, len: usize) -> Result<Step, Fault> {{
                     // SAFETY: the caller answers for `len` values.
                     let x = unsafe {{ std::slice::from_raw_parts(src, len) }};
                     number::check_finite(x)?;
                     {}
                     match stored.is_finite() {{
                         true => Ok(Step {{ apply, stored }}),
                         false => Err(Fault::ScaleOverflow(0)),
                     }}
                 }}\n",
                step(&rule.scale)
            );
            body.push_str("let apply = step.apply;\n");
        }
    }
    let outer_step = matches!(factor, Factor::Row | Factor::Tensor);
    let signed_min = if zero == 0 { String::new() } else { format!(" + {}", float(zero as f32)) };
    let mask = if plan.code_bits >= 16 { u32::from(u16::MAX) } else { (1u32 << plan.code_bits) - 1 };
    let code_type = raw_type(code);
    let _ = write!(
        out,
        "/// Values to blocks by `{name}`.
         ///
         /// # Safety
         ///
         /// `src` holds `blocks * ELEMENTS` values and `dst` room for `blocks` blocks.
         #[inline(always)]
         unsafe fn quantize_{name}(src: *const f32, dst: *mut u8, blocks: usize, {step_name}: Step) -> Result<(), Fault> {{
             for index in 0..blocks {{
                 // SAFETY: the caller answers for the values of `blocks` blocks.
                 let x = unsafe {{ &*src.add(index * ELEMENTS).cast::<[f32; ELEMENTS]>() }};
                 // SAFETY: the caller answers for room for `blocks` blocks.
                 let block = unsafe {{ &mut *dst.add(index * BYTES).cast::<[u8; BYTES]>() }};
                 number::check_finite(x).map_err(|fault| number::offset(fault, index * ELEMENTS))?;
                 {body}
                 let mut code = [0{code_type}; ELEMENTS];
                 for (code, &x) in code.iter_mut().zip(x) {{
                     let q = {rounded}{signed_min};
                     // SAFETY: clamped to the range of the code, and `max` leaves no NaN.
                     *code = (unsafe {{ q.to_int_unchecked::<i32>() }} & {mask:#x}) as {code_type};
                 }}
                 *block = [0; BYTES];
                 {}
                 {store}
             }}
             Ok(())
         }}\n",
        write_raw(code),
        step_name = if outer_step { "step" } else { "_step" },
    );
    Ok(out)
}

/// `pack_NAME` and `unpack_NAME` for one packing.
pub fn pack(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    let name = &pack.packing.name;
    let (tile_k, tile_bytes, bits) = (pack.tile.k, pack.tile.bytes, pack.tile.bits);
    let min = plan.min();
    let unit = plan.unit;
    let k_bits: Vec<String> = (0..tile_k).map(|k| pack.bit(0, k).to_string()).collect();
    let row_stride = pack.tile.digits.iter().find(|d| d.axis == Axis::Row).map_or(0, |d| d.stride);
    let (encode, decode) = match &pack.table {
        None => (
            if min == 0 {
                "value as u8".to_string()
            } else {
                format!("(i32::from(value){}) as u8", signed(-min))
            },
            if min == 0 { "i32::from(code)".to_string() } else { format!("i32::from(code){}", signed(min)) },
        ),
        Some(_) => {
            let mut index = vec![0u8; (plan.max() - min + 1) as usize];
            for (i, value) in plan.values.iter().enumerate() {
                index[(value - min) as usize] = i as u8;
            }
            (
                format!(
                    "{{ const INDEX: [u8; {}] = {index:?}; INDEX[(i32::from(value){}) as usize] }}",
                    index.len(),
                    signed(-min)
                ),
                format!(
                    "{{ const VALUES: [i32; {}] = {:?}; VALUES[usize::from(code) % VALUES.len()] }}",
                    plan.values.len(),
                    plan.values
                ),
            )
        }
    };
    let unit_of = |k: &str| -> (String, String) {
        if unit == 0 {
            ("0usize".to_string(), k.to_string())
        } else {
            let padded = unit.next_multiple_of(pack.multiple);
            let packed = if padded == unit {
                k.to_string()
            } else {
                format!("{k} / {unit} * {padded} + {k} % {unit}")
            };
            (format!("({k} / {unit})"), packed)
        }
    };
    let (unit_index, packed_k) = unit_of("k");
    let rows = pack.packing.rows;
    let scales = if plan.has_scales() {
        let (pattern, mins) = if plan.offset {
            (
                "let (scale, offset) = terms(block, 1.0);",
                format!("mins.add({unit_index} * {rows} + row).write(offset[run]);"),
            )
        } else {
            ("let scale = terms(block, 1.0);", String::new())
        };
        format!(
            "{pattern}
             for start in (0..ELEMENTS).step_by({unit}) {{
                 let (run, k) = (start / RUN, first + start);
                 // SAFETY: the caller answers for room for one value a unit and row.
                 unsafe {{ scales.add({unit_index} * {rows} + row).write(scale[run]); {mins} }}
             }}"
        )
    } else {
        String::new()
    };
    let (scales_name, mins_name) =
        (if plan.has_scales() { "scales" } else { "_scales" }, if plan.offset { "mins" } else { "_mins" });
    let value = match (plan.has_scales(), plan.offset) {
        (true, true) => format!(
            "let (scale, offset) = unsafe {{ (scales.add({unit_index} * {rows} + row).read(), mins.add({unit_index} * {rows} + row).read()) }};
             outer * (scale * value as f32 - offset)"
        ),
        (true, false) => format!(
            "let scale = unsafe {{ scales.add({unit_index} * {rows} + row).read() }};
             outer * (scale * value as f32)"
        ),
        (false, _) if plan.format.value.unit != 1.0 => {
            format!("outer * {} * value as f32", float(plan.format.value.unit))
        }
        (false, _) => "outer * value as f32".to_string(),
    };
    let value = value
        .replace("let (scale", "// SAFETY: the caller answers for packed scales.\nlet (scale")
        .replace("let scale =", "// SAFETY: the caller answers for packed scales.\nlet scale =");
    format!(
        "/// Bit of element k of a tile's first row in packing `{name}`.
         const K_BITS_{upper}: [usize; {tile_k}] = [{}];

         /// Rows of blocks to one panel of `{name}`.
         ///
         /// # Safety
         ///
         /// As [`PackFn`](gristmill_runtime::abi::PackFn) says.
         #[inline(always)]
         unsafe fn pack_{name}(
             src: *const u8, row_stride: usize, rows: usize, k: usize,
             codes: *mut u8, {scales_name}: *mut f32, {mins_name}: *mut f32,
         ) -> Result<(), Fault> {{
             for row in 0..rows {{
                 for index in 0..k / ELEMENTS {{
                     let first = index * ELEMENTS;
                     // SAFETY: the caller answers for `rows` rows of `k / ELEMENTS` blocks.
                     let block = unsafe {{ &*src.add(row * row_stride + index * BYTES).cast::<[u8; BYTES]>() }};
                     let values = values(block).map_err(|fault| number::offset(fault, row * k + first))?;
                     {scales}
                     for (element, &value) in values.iter().enumerate() {{
                         let code = {encode};
                         let k = first + element;
                         let at = {packed_k};
                         let bit = row * {row_stride} + K_BITS_{upper}[at % {tile_k}];
                         // SAFETY: the caller answers for a whole panel.
                         unsafe {{ *codes.add(at / {tile_k} * {tile_bytes} + bit / 8) |= code << (bit % 8) }};
                     }}
                 }}
             }}
             Ok(())
         }}

         /// One row of a panel of `{name}` to values.
         ///
         /// # Safety
         ///
         /// As [`UnpackFn`](gristmill_runtime::abi::UnpackFn) says.
         unsafe fn unpack_{name}(
             codes: *const u8, {scales_name}: *const f32, {mins_name}: *const f32, outer: f32, row: usize, k: usize, dst: *mut f32,
         ) {{
             for k in 0..k {{
                 let at = {packed_k};
                 let bit = row * {row_stride} + K_BITS_{upper}[at % {tile_k}];
                 // SAFETY: the caller answers for a whole panel.
                 let code = unsafe {{ (*codes.add(at / {tile_k} * {tile_bytes} + bit / 8) >> (bit % 8)) & {mask:#x} }};
                 let value = {decode};
                 let value = {{ {value} }};
                 // SAFETY: the caller answers for room for `k` values.
                 unsafe {{ dst.add(k).write(value) }};
             }}
         }}\n",
        k_bits.join(", "),
        upper = name.to_uppercase(),
        mask = (1u32 << bits) - 1,
    )
}

/// The scalar matmul: the reference, straight from the format's own rows.
pub fn matmul_scalar(plan: &FormatPlan<'_>) -> String {
    let block_activations = plan.activations.block;
    let (declare, accumulate, result) = if plan.unit == 0 {
        (
            "let mut sums = [0i32; TOKENS];".to_string(),
            "for (token, sum) in sums[..tokens].iter_mut().enumerate() {
                 // SAFETY: the caller answers for `m` rows of activations.
                 let x = unsafe { std::slice::from_raw_parts(a.x.add((first + token) * a.x_stride + index * ELEMENTS), ELEMENTS) };
                 *sum += values.iter().zip(x).map(|(&v, &x)| i32::from(v) * i32::from(x)).sum::<i32>();
             }"
            .to_string(),
            "let y = sums[token] as f32;".to_string(),
        )
    } else {
        let unit = plan.unit;
        let x_scale = match block_activations {
            Some(block) => {
                format!("unsafe {{ *a.x_scales.add((first + token) * a.x_blocks + k / {block}) }}")
            }
            None => String::new(),
        };
        let bind = if x_scale.is_empty() {
            String::new()
        } else {
            format!("// SAFETY: the caller answers for a scale a block.\nlet x_scale = {x_scale};\n")
        };
        let has_x = block_activations.is_some();
        let scaled = match (plan.has_scales(), has_x) {
            (true, true) => "*y += scale[run] * x_scale * sum as f32;",
            (true, false) => "*y += scale[run] * sum as f32;",
            (false, true) => "*y += x_scale * sum as f32;",
            (false, false) => "*y += sum as f32;",
        };
        let offset = match (plan.offset, has_x) {
            (true, true) => {
                "*y -= offset[run] * x_scale * x.iter().map(|&x| i32::from(x)).sum::<i32>() as f32;"
            }
            (true, false) => "*y -= offset[run] * x.iter().map(|&x| i32::from(x)).sum::<i32>() as f32;",
            (false, _) => "",
        };
        let terms = match (plan.has_scales(), plan.offset) {
            (true, true) => "let (scale, offset) = terms(block, 1.0);",
            (true, false) => "let scale = terms(block, 1.0);",
            (false, _) => "",
        };
        let run = if plan.has_scales() { "let run = start / RUN;" } else { "" };
        (
            "let mut sums = [0f32; TOKENS];".to_string(),
            format!(
                "{terms}
                 for start in (0..ELEMENTS).step_by({unit}) {{
                     {run}
                     let k = index * ELEMENTS + start;
                     for (token, y) in sums[..tokens].iter_mut().enumerate() {{
                         // SAFETY: the caller answers for `m` rows of activations.
                         let x = unsafe {{ std::slice::from_raw_parts(a.x.add((first + token) * a.x_stride + k), {unit}) }};
                         let sum: i32 = values[start..][..{unit}].iter().zip(x).map(|(&v, &x)| i32::from(v) * i32::from(x)).sum();
                         {bind}{scaled}
                         {offset}
                     }}
                 }}"
            ),
            "let y = sums[token];".to_string(),
        )
    };
    let finish = finish_scalar(plan);
    format!(
        "/// Tokens that share one pass over a row.
         const TOKENS: usize = 8;

         /// The reference product.
         ///
         /// # Safety
         ///
         /// As [`MatmulArgs`] says, with the format's own rows in `codes`. Activation units are not padded.
         pub unsafe fn matmul_scalar(a: &MatmulArgs) {{
             for row in a.row_begin..a.row_end {{
                 for first in (0..a.m).step_by(TOKENS) {{
                     let tokens = TOKENS.min(a.m - first);
                     {declare}
                     for index in 0..a.k / ELEMENTS {{
                         // SAFETY: the caller answers for rows of `stride` bytes.
                         let block = unsafe {{ &*a.codes.add(row * a.stride + index * BYTES).cast::<[u8; BYTES]>() }};
                         // Packing refused codes without meaning before this is called.
                         let Ok(values) = values(block) else {{ continue }};
                         {accumulate}
                     }}
                     for token in 0..tokens {{
                         {result}
                         {finish}
                         // SAFETY: the caller answers for `m * n` outputs.
                         unsafe {{ a.y.add((first + token) * a.n + row).write(y) }};
                     }}
                 }}
             }}
         }}\n",
    )
}

/// From the sum over k (f32 `y`) to the output: activation scale, outer scale, bias, in this order.
fn finish_scalar(plan: &FormatPlan<'_>) -> String {
    let mut out = String::new();
    if plan.activations.block.is_none() {
        let operator = if plan.activations.keeps_multiplier { "/" } else { "*" };
        let _ = writeln!(
            out,
            "// SAFETY: the caller answers for a scale a token.
             let y = y {operator} unsafe {{ *a.x_scales.add(first + token) }};"
        );
    }
    if uses_outer(plan) {
        let _ = writeln!(
            out,
            "// SAFETY: the caller answers for a scale a row.
             let y = y * unsafe {{ *a.outer.add(row) }};"
        );
    }
    if !plan.has_scales() && plan.format.value.unit != 1.0 {
        let _ = writeln!(out, "let y = y * {};", float(plan.format.value.unit));
    }
    let _ = writeln!(
        out,
        "// SAFETY: `bias` is null or holds `n` values.
         let y = if a.bias.is_null() {{ y }} else {{ y + unsafe {{ *a.bias.add(row) }} }};"
    );
    out
}

/// One line of documentation for the module of a format.
pub fn module_doc(plan: &FormatPlan<'_>) -> String {
    doc(&format!("`{}`: {}", plan.format.name, plan.format.doc))
}
