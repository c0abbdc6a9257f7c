//! C++ that reads a format: raw fields, the integer value of an element, the scale and offset of a run.
//!
//! All of it is by element, so that any thread can ask for any element of a block; addresses are polynomials in
//! the element's number with constant coefficients, which the CUDA compiler folds.

use super::float;
use crate::plan::{Decode, FormatPlan};
use gristmill_spec::model::{Factor, Field, FieldLayout, FieldType, Scalar, Segment, Slice, ValueMap};
use std::fmt::Write;

/// Constants and functions of a format: `value`, and `scale` and `offset` where its blocks have them.
pub fn emit(plan: &FormatPlan<'_>) -> String {
    let format = plan.format;
    let mut out = sizes(plan);
    for field in &format.fields {
        out.push_str(&raw(field));
    }
    out.push_str(&value(plan));
    out.push_str(&terms(plan));
    out
}

/// Sizes of a block: all that units need which read none.
pub fn sizes(plan: &FormatPlan<'_>) -> String {
    let format = plan.format;
    format!(
        "enum : u32 {{ ELEMENTS = {}, BYTES = {}, RUNS = {}, RUN = {} }};\n\n",
        format.elements,
        format.bytes,
        plan.groups,
        plan.run()
    )
}

/// Statements that bind `a`, the bit address of value `i`.
pub fn address(slice: &Slice) -> String {
    let mut out = String::from("    [[maybe_unused]] u32 rest = i;\n    i32 a = ");
    let _ = writeln!(out, "{};", slice.offset);
    for (level, digit) in slice.digits.iter().enumerate().rev() {
        if level == 0 {
            let _ = writeln!(out, "    a += (i32)rest * {};", digit.stride);
        } else {
            let _ = writeln!(
                out,
                "    a += (i32)(rest % {0}u) * {1};\n    rest /= {0}u;",
                digit.extent, digit.stride
            );
        }
    }
    out
}

/// Whether no value of a slice crosses a border of bytes.
fn in_one_byte(field: &Field, slice: &Slice) -> bool {
    (0..field.count).all(|i| slice.address(i).rem_euclid(8) + i64::from(slice.bits) <= 8)
}

/// Whether every value of a slice is whole bytes.
fn whole_bytes(field: &Field, slice: &Slice) -> bool {
    slice.bits.is_multiple_of(8) && (0..field.count).all(|i| slice.address(i).rem_euclid(8) == 0)
}

/// `raw_NAME(block, i)`: the bits of value i.
fn raw(field: &Field) -> String {
    let name = &field.name;
    let mut out = String::new();
    match &field.layout {
        FieldLayout::Bits(slices) => {
            let _ = writeln!(out, "GM_DEVICE u32 raw_{name}(const u8 *block, u32 i) {{\n    u32 raw = 0;");
            let mut low = 0;
            for slice in slices {
                let _ = writeln!(out, "    {{\n{}", address(slice));
                let mask = if slice.bits == 32 { u32::MAX } else { (1 << slice.bits) - 1 };
                let text = if in_one_byte(field, slice) {
                    format!("    raw |= (gm_load(block + (a >> 3)) >> (a & 7) & {mask:#x}u) << {low};")
                } else if whole_bytes(field, slice) {
                    (0..slice.bits / 8)
                        .map(|b| {
                            format!("    raw |= (u32)gm_load(block + (a >> 3) + {b}) << {};\n", low + 8 * b)
                        })
                        .collect()
                } else {
                    format!(
                        "    u64 bits = 0;
    for (i32 byte = a >> 3; byte <= (a + {last}) >> 3; byte++)
        bits |= (u64)gm_load(block + byte) << (8 * (byte - (a >> 3)));
    raw |= ((u32)(bits >> (a & 7)) & {mask:#x}u) << {low};",
                        last = slice.bits - 1
                    )
                };
                let _ = writeln!(out, "{text}\n    }}");
                low += slice.bits;
            }
            out.push_str("    return raw;\n}\n\n");
        }
        FieldLayout::Digits { most_significant_first, segments } => {
            let places: Vec<String> = places(field.count, segments)
                .iter()
                .map(|(byte, digit)| (byte << 3 | digit).to_string())
                .collect();
            let number = if *most_significant_first { "place & 7" } else { "4 - (place & 7)" };
            let _ = writeln!(
                out,
                "// Byte * 8 + digit of each element.
GM_TABLE u16 places_{name}[{count}] = {{{places}}};

// A byte holds ceil(256 * v / 243) of five base-3 digits: times a power of three, the next digit carries out.
GM_DEVICE u32 raw_{name}(const u8 *block, u32 i) {{
    const u32 place = places_{name}[i];
    u32 byte = gm_load(block + (place >> 3));
    for (u32 n = {number}; n > 0; n--) byte = byte * 3 & 0xff;
    return byte * 3 >> 8;
}}
",
                count = field.count,
                places = places.join(", "),
            );
        }
    }
    out
}

/// (byte, digit) of every element.
pub fn places(count: u32, segments: &[Segment]) -> Vec<(u32, u32)> {
    let mut places = vec![(0, 0); count as usize];
    for segment in segments {
        let combinations: u32 = segment.digits.iter().map(|d| d.extent).product();
        for combination in 0..combinations {
            let mut rest = combination;
            let (mut element, mut bit, mut number) = (segment.first, i64::from(segment.offset), 0);
            for digit in segment.digits.iter().rev() {
                let i = rest % digit.extent;
                rest /= digit.extent;
                element += i * digit.element;
                bit += i64::from(i) * digit.stride;
                number += i * digit.digit;
            }
            if let Some(place) = places.get_mut(element as usize) {
                *place = ((bit / 8) as u32, number);
            }
        }
    }
    places
}

/// Numbers of a table, some on a line.
fn numbers(values: impl IntoIterator<Item = i32>) -> String {
    let values: Vec<String> = values.into_iter().map(|v| v.to_string()).collect();
    values.chunks(24).map(|line| line.join(", ")).collect::<Vec<_>>().join(",\n    ")
}

/// `value(block, e, bad)`: the integer of element `e`; a code without a meaning sets `bad`.
fn value(plan: &FormatPlan<'_>) -> String {
    let format = plan.format;
    let value = &format.value;
    let code = &format.fields[value.code].name;
    let narrow = plan.value_type() == "i8";
    let int = if narrow { "i8" } else { "i16" };
    let mut tables = String::new();
    let mut body = format!(
        "    const u32 code = raw_{code}(block, e{});\n",
        if value.group > 1 { format!(" / {}u", value.group) } else { String::new() }
    );
    if let Some(last) = plan.last_code {
        let _ = writeln!(body, "    if (code > {last}u) {{ bad = true; return 0; }}");
    }
    match plan.decode() {
        Decode::Affine { times, zero, signed } => {
            let mut text = if signed {
                let shift = 32 - plan.code_bits;
                format!("((i32)(code << {shift}) >> {shift})")
            } else {
                "(i32)code".to_string()
            };
            if times != 1 {
                text = format!("{text} * {times}");
            }
            if zero != 0 {
                text = format!("{text} - ({zero})");
            }
            let _ = writeln!(body, "    i32 value = {text};");
        }
        Decode::Table(table) => {
            let _ = writeln!(
                tables,
                "GM_TABLE {int} levels[{}] = {{{}}};\n",
                table.len(),
                numbers(table.iter().copied())
            );
            let _ = writeln!(body, "    i32 value = levels[code];");
        }
        Decode::Codebook { times } => {
            if let ValueMap::Codebook { name, entries, .. } = &value.map {
                let _ = writeln!(
                    tables,
                    "// Codebook `{name}`.\nGM_TABLE {int} codebook[{}] = {{\n    {}}};\n",
                    entries.len() * value.group as usize,
                    numbers(entries.iter().flatten().map(|v| v * times))
                );
            }
            let _ = writeln!(body, "    i32 value = codebook[code * {0}u + e % {0}u];", value.group);
        }
    }
    if let Some(signs) = &value.signs {
        let field = &format.fields[signs.field];
        let run = format.elements / field.count;
        let _ = writeln!(body, "    u32 signs = raw_{}(block, e / {run}u);", field.name);
        if signs.parity {
            let _ = writeln!(body, "    signs |= (gm_popc(signs) & 1) << {};", run - 1);
        }
        let _ = writeln!(body, "    if (signs >> (e % {run}u) & 1) value = -value;");
    }
    if let Some(shift) = &value.shift {
        let field = &format.fields[shift.field];
        let run = format.elements / field.count;
        let mut values = shift.values.clone();
        let bits = match field.ty {
            FieldType::Unsigned(bits) => bits,
            FieldType::Signed(_) | FieldType::Scalar(_) | FieldType::Trit => 1,
        };
        values.resize(1 << bits, 0);
        let _ = writeln!(tables, "GM_TABLE {int} shifts[{}] = {{{}}};\n", values.len(), numbers(values));
        let _ = writeln!(body, "    value += shifts[raw_{}(block, e / {run}u)];", field.name);
    }
    format!(
        "{tables}// The integer value of element e; `bad` becomes true where its code means nothing.
GM_DEVICE i32 value(const u8 *block, u32 e, bool &bad) {{
{body}    return value;
}}

"
    )
}

/// A field's value as f32, from its raw bits.
fn as_float(field: &Field) -> String {
    let raw = format!("raw_{}(block, i)", field.name);
    let integer = |raw: String| match (field.times, field.plus) {
        (1, 0) => format!("(f32)({raw})"),
        (times, plus) => format!("(f32)(({raw}) * ({times}) + ({plus}))"),
    };
    match field.ty {
        FieldType::Scalar(scalar) => match scalar {
            Scalar::F16 => format!("gm_f16_to_f32((u16){raw})"),
            Scalar::Bf16 => format!("gm_bf16_to_f32((u16){raw})"),
            Scalar::F32 => format!("gm_float({raw})"),
            Scalar::E8m0Half => format!("gm_e8m0_half_to_f32((u8){raw})"),
            Scalar::Ue4m3Half => format!("gm_ue4m3_half_to_f32((u8){raw})"),
        },
        FieldType::Unsigned(_) | FieldType::Trit => integer(format!("(i32){raw}")),
        FieldType::Signed(bits) => integer(format!("(i32)({raw} << {0}) >> {0}", 32 - bits)),
    }
}

/// `scale` and `offset` of a run, with the factor outside the block.
fn terms(plan: &FormatPlan<'_>) -> String {
    if !plan.has_scales() {
        return String::new();
    }
    let format = plan.format;
    let value = &format.value;
    let mut out = String::new();
    let mut used: Vec<usize> = Vec::new();
    for factor in value.scale.iter().chain(&value.add).chain(&value.subtract) {
        if let Factor::Field(i) = factor
            && !used.contains(i)
        {
            used.push(*i);
            let field = &format.fields[*i];
            let _ = writeln!(
                out,
                "GM_DEVICE f32 float_{}(const u8 *block, u32 i) {{ return {}; }}",
                field.name,
                as_float(field)
            );
        }
    }
    let product = |factors: &[Factor], unit: f32| -> String {
        let mut parts: Vec<String> = factors
            .iter()
            .map(|factor| match factor {
                Factor::Field(i) => {
                    let field = &format.fields[*i];
                    let index = match field.count {
                        1 => "0".to_string(),
                        count if count == plan.groups => "run".to_string(),
                        count => format!("run * {count}u / RUNS"),
                    };
                    format!("float_{}(block, {index})", field.name)
                }
                Factor::Row | Factor::Tensor => "outer".to_string(),
            })
            .collect();
        if unit != 1.0 {
            parts.push(float(unit));
        }
        if parts.is_empty() { "1.0f".to_string() } else { parts.join(" * ") }
    };
    let function = |name: &str, doc: &str, body: &str| {
        format!(
            "// {doc}\nGM_DEVICE f32 {name}(const u8 *block, u32 run, f32 outer) {{ (void)block; (void)run; (void)outer; return {body}; }}\n\n"
        )
    };
    out.push_str(&function("scale", "Scale of a run.", &product(&value.scale, value.unit)));
    let offset = match (value.add.is_empty(), value.subtract.is_empty()) {
        (true, true) => None,
        (true, false) => Some(product(&value.subtract, 1.0)),
        (false, true) => Some(format!("-({})", product(&value.add, 1.0))),
        (false, false) => Some(format!("{} - {}", product(&value.subtract, 1.0), product(&value.add, 1.0))),
    };
    if let Some(offset) = offset {
        out.push_str(&function("offset", "What is subtracted after scaling.", &offset));
    }
    out
}
