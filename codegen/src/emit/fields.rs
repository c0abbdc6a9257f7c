//! Reading and writing the fields of a block: the decode strategies.
//!
//! A slice's digits say which shape its loop has:
//! * *planes*: neighbouring values are in neighbouring bytes, so one shift and one mask serve a run of
//!   bytes, and a compiler turns the loop into vector instructions;
//! * *spread*: several neighbouring values share a byte, which is read once for all of them;
//! * *window*: values cross bytes; each is cut out of a 32-bit word.

use gristmill_spec::model::{Digit, Field, FieldLayout, FieldType, Radix, Scalar, Segment, Slice};
use std::fmt::Write;

/// The loop shape found for a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Runs of `extent` values in neighbouring bytes, for every index of the outer digits.
    Planes {
        /// Digits outside the run.
        outer: Vec<Digit>,
        /// Bytes of a run.
        extent: u32,
    },
    /// `extent` bytes, each holding `inner.extent` neighbouring values, for every outer index.
    Spread {
        /// Digits outside.
        outer: Vec<Digit>,
        /// Bytes.
        extent: u32,
        /// Values of a byte.
        inner: Digit,
    },
    /// Anything else.
    Window,
}

impl Strategy {
    /// Word for plans.
    pub fn name(&self) -> &'static str {
        match self {
            Strategy::Planes { .. } => "planes",
            Strategy::Spread { .. } => "spread",
            Strategy::Window => "window",
        }
    }

    /// Finds the cheapest loop for `slice`.
    pub fn of(slice: &Slice) -> Strategy {
        let mut digits: Vec<Digit> = slice.digits.iter().copied().filter(|d| d.extent > 1).collect();
        // A run of values that spills over several bytes is a run of bytes times a run within a byte.
        if let Some(last) = digits.last().copied()
            && last.stride > 0
            && last.stride < 8
            && 8 % last.stride == 0
            && slice.offset.rem_euclid(8) + last.stride * (i64::from(last.extent) - 1) >= 8
        {
            let per_byte = (8 / last.stride) as u32;
            if last.extent % per_byte == 0 && slice.offset.rem_euclid(8) < last.stride {
                digits.pop();
                digits.push(Digit { extent: last.extent / per_byte, stride: 8 });
                digits.push(Digit { extent: per_byte, stride: last.stride });
            }
        }
        let in_byte = |bit: i64| bit.rem_euclid(8) + i64::from(slice.bits) <= 8;
        let addresses =
            |digits: &[Digit]| combinations(digits).map(|(_, bit)| slice.offset + bit).collect::<Vec<_>>();
        match digits.as_slice() {
            [outer @ .., last] if last.stride == 8 && addresses(outer).iter().all(|&b| in_byte(b)) => {
                Strategy::Planes { outer: outer.to_vec(), extent: last.extent }
            }
            [outer @ .., bytes, inner] if bytes.stride == 8 && inner.stride.abs() < 8 => {
                let all: Vec<Digit> = outer.iter().copied().chain([*inner]).collect();
                let same_byte = combinations(outer).all(|(_, bit)| {
                    let first = slice.offset + bit;
                    let last = first + inner.stride * (i64::from(inner.extent) - 1);
                    first.div_euclid(8) == last.div_euclid(8)
                });
                if same_byte && addresses(&all).iter().all(|&b| in_byte(b)) {
                    Strategy::Spread { outer: outer.to_vec(), extent: bytes.extent, inner: *inner }
                } else {
                    Strategy::Window
                }
            }
            [] if in_byte(slice.offset) => Strategy::Planes { outer: Vec::new(), extent: 1 },
            _ => Strategy::Window,
        }
    }
}

/// Every index of `digits` with its first value's index (in units of what follows) and its bit offset.
fn combinations(digits: &[Digit]) -> impl Iterator<Item = (u32, i64)> + '_ {
    let count: u32 = digits.iter().map(|d| d.extent).product();
    (0..count).map(move |index| {
        let mut rest = index;
        let mut bit = 0;
        for digit in digits.iter().rev() {
            bit += i64::from(rest % digit.extent) * digit.stride;
            rest /= digit.extent;
        }
        (index, bit)
    })
}

/// Statements that OR the slice's values, shifted up by `low`, into the array `code` of `ty`.
fn read_slice(out: &mut String, slice: &Slice, low: u32, ty: &str) {
    let mask = (1u64 << slice.bits) - 1;
    let strategy = Strategy::of(slice);
    let value = |byte: &str, shift: i64| {
        let masked = shift + i64::from(slice.bits) < 8;
        let mut text = match (shift, masked) {
            (0, false) => byte.to_string(),
            (0, true) => format!("{byte} & {mask:#x}"),
            (_, false) => format!("{byte} >> {shift}"),
            (_, true) => format!("{byte} >> {shift} & {mask:#x}"),
        };
        if ty != "u8" {
            text = format!("{ty}::from({text})");
        }
        match low {
            0 => text,
            _ if ty == "u8" && (shift > 0 || masked) => format!("({text}) << {low}"),
            _ => format!("{text} << {low}"),
        }
    };
    match &strategy {
        Strategy::Planes { outer, extent } => {
            for (index, bit) in combinations(outer) {
                let at = slice.offset + bit;
                let (byte, shift, first) = (at.div_euclid(8), at.rem_euclid(8), index * extent);
                if *extent == 1 {
                    let _ = writeln!(out, "code[{first}] |= {};", value(&format!("block[{byte}]"), shift));
                } else {
                    let from = value("byte", shift);
                    let _ = writeln!(
                        out,
                        "for i in 0..{extent} {{ let byte = block[{byte} + i]; code[{first} + i] |= {from}; }}"
                    );
                }
            }
        }
        Strategy::Spread { outer, extent, inner } => {
            for (index, bit) in combinations(outer) {
                let at = slice.offset + bit;
                let (byte, first) = (at.div_euclid(8), index * extent * inner.extent);
                let _ = writeln!(out, "for i in 0..{extent} {{ let byte = block[{byte} + i];");
                for j in 0..inner.extent {
                    let shift = at.rem_euclid(8) + i64::from(j) * inner.stride;
                    let _ = writeln!(
                        out,
                        "code[{first} + {} * i + {j}] |= {};",
                        inner.extent,
                        value("byte", shift)
                    );
                }
                let _ = writeln!(out, "}}");
            }
        }
        Strategy::Window => {
            let loops = window_loops(out, slice);
            let value = match low {
                0 => format!("((word >> (at % 8)) & {mask:#x}) as {ty}"),
                _ => format!("(((word >> (at % 8)) & {mask:#x}) << {low}) as {ty}"),
            };
            // A value of up to 32 bits at any bit offset touches up to five bytes.
            let bytes: Vec<String> = (0..8).map(|i| format!("window[at / 8 + {i}]")).collect();
            let _ = writeln!(
                out,
                "let word = u64::from_le_bytes([{}]); code[index] |= {value};",
                bytes.join(", ")
            );
            for _ in 0..loops {
                out.push('}');
            }
        }
    }
}

/// Opens loops over a slice's digits with `index` and `at` (a bit address) bound; returns how many.
fn window_loops(out: &mut String, slice: &Slice) -> usize {
    let mut index = String::from("0");
    let mut at = format!("{}", slice.offset);
    for (level, digit) in slice.digits.iter().enumerate() {
        let _ = writeln!(out, "for d{level} in 0..{}isize {{", digit.extent);
        index =
            if level == 0 { format!("d{level}") } else { format!("({index}) * {} + d{level}", digit.extent) };
        let _ = write!(at, " + d{level} * {}", digit.stride);
    }
    if slice.digits.is_empty() {
        let _ = writeln!(out, "{{");
        let _ = writeln!(out, "let index = 0usize; let at = {}usize;", slice.offset);
        return 1;
    }
    let _ = writeln!(out, "let index = ({index}) as usize; let at = ({at}) as usize;");
    slice.digits.len()
}

/// Whether reading or writing a field needs the padded copy `window` of the block.
pub fn needs_window(field: &Field) -> bool {
    match &field.layout {
        FieldLayout::Bits(slices) => {
            whole_bytes(field).is_none() && slices.iter().any(|s| Strategy::of(s) == Strategy::Window)
        }
        FieldLayout::Digits { .. } => false,
    }
}

/// The unsigned type that holds a field's raw values.
pub fn raw_type(field: &Field) -> &'static str {
    match field.ty {
        FieldType::Unsigned(bits) | FieldType::Signed(bits) if bits <= 8 => "u8",
        FieldType::Unsigned(_) | FieldType::Signed(_) => "u16",
        FieldType::Digit(_) => "u8",
        FieldType::Scalar(Scalar::F32) => "u32",
        FieldType::Scalar(Scalar::F16 | Scalar::Bf16) => "u16",
        FieldType::Scalar(Scalar::E8m0Half | Scalar::Ue4m3Half) => "u8",
    }
}

/// An expression (a block) for the array of a field's raw values, read from `block`.
pub fn read_raw(field: &Field) -> String {
    let ty = raw_type(field);
    if let Some(whole) = whole_bytes(field) {
        return whole;
    }
    let mut out = format!("{{ let mut code = [0{ty}; {}];\n", field.count);
    match &field.layout {
        FieldLayout::Bits(slices) => {
            let mut low = 0;
            for slice in slices {
                read_slice(&mut out, slice, low, ty);
                low += slice.bits;
            }
        }
        FieldLayout::Digits { radix, most_significant_first, segments } => {
            for segment in segments {
                read_digits(&mut out, segment, *radix, *most_significant_first);
            }
        }
    }
    out.push_str("code }");
    out
}

/// A field of one little-endian number on a byte border, the form of almost every scale.
fn whole_bytes(field: &Field) -> Option<String> {
    let FieldLayout::Bits(slices) = &field.layout else { return None };
    let [slice] = slices.as_slice() else { return None };
    if field.count != 1 || slice.offset % 8 != 0 || slice.bits % 8 != 0 || slice.bits == 24 {
        return None;
    }
    let byte = slice.offset / 8;
    let bytes: Vec<String> = (0..i64::from(slice.bits / 8)).map(|i| format!("block[{}]", byte + i)).collect();
    Some(format!("[u{}::from_le_bytes([{}])]", slice.bits, bytes.join(", ")))
}

/// Digits: multiply by a power of the base, keep the byte, and the product with the base carries out the digit.
fn read_digits(out: &mut String, segment: &Segment, radix: Radix, most_significant_first: bool) {
    let (base, last) = (radix.base(), radix.digits() - 1);
    let digits = &segment.digits;
    // The digit's number is constant in the innermost loops, so its power is too.
    let split = digits.iter().rposition(|d| d.digit != 0).map_or(0, |p| p + 1);
    let (outer, inner) = digits.split_at(split);
    let (mut elements, mut up, mut down) = (String::new(), String::new(), String::new());
    for (index, digit) in inner.iter().enumerate() {
        if digit.element != 0 {
            let _ = write!(elements, " + i{index} * {}", digit.element);
        }
        match digit.stride / 8 {
            0 => {}
            step if step > 0 => {
                let _ = write!(up, " + i{index} * {step}");
            }
            step => {
                let _ = write!(down, " - i{index} * {}", step.unsigned_abs());
            }
        }
    }
    let count: u32 = outer.iter().map(|d| d.extent).product();
    for combination in 0..count {
        let mut rest = combination;
        let (mut element, mut byte, mut number) = (segment.first, i64::from(segment.offset / 8), 0);
        for digit in outer.iter().rev() {
            let i = rest % digit.extent;
            rest /= digit.extent;
            element += i * digit.element;
            byte += i64::from(i) * digit.stride / 8;
            number += i * digit.digit;
        }
        let power = base.pow(if most_significant_first { number } else { last - number });
        for (index, digit) in inner.iter().enumerate() {
            let _ = writeln!(out, "for i{index} in 0..{}usize {{", digit.extent);
        }
        // Steps down come last: the sum ends inside the block, so none of them can go below zero.
        let _ = writeln!(
            out,
            "code[{element}{elements}] = ((u16::from(block[{byte}{up}{down}].wrapping_mul({power})) * {base}) >> 8) as u8;"
        );
        for _ in inner {
            out.push('}');
        }
    }
}

/// Statements that OR the array `code` of raw values into `block`, whose bytes start at zero.
pub fn write_raw(field: &Field) -> String {
    let ty = raw_type(field);
    let mut out = String::new();
    match &field.layout {
        FieldLayout::Bits(slices) => {
            let mut low = 0;
            for slice in slices {
                write_slice(&mut out, slice, low, ty);
                low += slice.bits;
            }
        }
        FieldLayout::Digits { radix, most_significant_first, segments } => {
            write_digits(&mut out, segments, *radix, *most_significant_first);
        }
    }
    out
}

fn write_slice(out: &mut String, slice: &Slice, low: u32, ty: &str) {
    let mask = (1u64 << slice.bits) - 1;
    let value = |code: &str, shift: i64| {
        let mut text = match low {
            // A whole byte.
            0 if ty == "u8" && slice.bits == 8 => code.to_owned(),
            0 => format!("({code} & {mask:#x})"),
            _ => format!("({code} >> {low} & {mask:#x})"),
        };
        if ty != "u8" {
            text = format!("({text} as u8)");
        }
        if shift > 0 { format!("({text} << {shift})") } else { text }
    };
    match Strategy::of(slice) {
        Strategy::Planes { outer, extent } => {
            for (index, bit) in combinations(&outer) {
                let at = slice.offset + bit;
                let (byte, shift, first) = (at.div_euclid(8), at.rem_euclid(8), index * extent);
                let _ = writeln!(
                    out,
                    "for i in 0..{extent} {{ let code = code[{first} + i]; block[{byte} + i] |= {}; }}",
                    value("code", shift)
                );
            }
        }
        Strategy::Spread { outer, extent, inner } => {
            for (index, bit) in combinations(&outer) {
                let at = slice.offset + bit;
                let (byte, first) = (at.div_euclid(8), index * extent * inner.extent);
                let parts: Vec<String> = (0..inner.extent)
                    .map(|j| {
                        let code = format!("code[{first} + {} * i + {j}]", inner.extent);
                        value(&code, at.rem_euclid(8) + i64::from(j) * inner.stride)
                    })
                    .collect();
                let _ =
                    writeln!(out, "for i in 0..{extent} {{ block[{byte} + i] |= {}; }}", parts.join(" | "));
            }
        }
        Strategy::Window => {
            let loops = window_loops(out, slice);
            let _ = writeln!(
                out,
                "let bits = ((u64::from(code[index]) >> {low}) & {mask:#x}) << (at % 8);
                 for (byte, part) in block[at / 8..].iter_mut().zip(bits.to_le_bytes()) {{ *byte |= part; }}"
            );
            for _ in 0..loops {
                out.push('}');
            }
        }
    }
}

/// Digits to bytes: v in as many digits as a byte holds, stored as ceil(256 * v / the count of such numbers).
fn write_digits(out: &mut String, segments: &[Segment], radix: Radix, most_significant_first: bool) {
    let (base, digits, numbers) = (radix.base(), radix.digits(), radix.numbers());
    let places: Vec<(u32, i64, u32)> = segments
        .iter()
        .flat_map(|segment| {
            let count: u32 = segment.digits.iter().map(|d| d.extent).product();
            (0..count).map(move |combination| {
                let mut rest = combination;
                let (mut element, mut byte, mut number) = (segment.first, i64::from(segment.offset / 8), 0);
                for digit in segment.digits.iter().rev() {
                    let i = rest % digit.extent;
                    rest /= digit.extent;
                    element += i * digit.element;
                    byte += i64::from(i) * digit.stride / 8;
                    number += i * digit.digit;
                }
                (element, byte, number)
            })
        })
        .collect();
    let mut bytes: Vec<i64> = places.iter().map(|p| p.1).collect();
    bytes.sort_unstable();
    bytes.dedup();
    // The table costs nothing at run time and keeps the loop free of index arithmetic.
    let mut table = vec![vec![u32::MAX; digits as usize]; bytes.len()];
    for (element, byte, number) in places {
        let row = bytes.binary_search(&byte).unwrap_or(0);
        let place = if most_significant_first { number } else { digits - 1 - number };
        table[row][place as usize] = element;
    }
    let rows: Vec<String> = bytes
        .iter()
        .zip(&table)
        .map(|(byte, elements)| {
            let elements: Vec<String> = elements
                .iter()
                .map(|&e| if e == u32::MAX { "usize::MAX".to_string() } else { e.to_string() })
                .collect();
            format!("({byte}, [{}])", elements.join(", "))
        })
        .collect();
    let _ = writeln!(
        out,
        "// Byte, and the element of each digit from the most significant down.
         const DIGITS: [(usize, [usize; {digits}]); {}] = [{}];
         for (byte, elements) in DIGITS {{
             let mut number = 0u16;
             for element in elements {{
                 number = number * {base} + u16::from(code.get(element).copied().unwrap_or(0));
             }}
             block[byte] = (number * 256).div_ceil({numbers}) as u8;
         }}",
        rows.len(),
        rows.join(", ")
    );
}

/// An expression for the array of a field's values as f32 (scales and offsets), read from `block`.
pub fn read_f32(field: &Field) -> String {
    let value = match field.ty {
        FieldType::Scalar(scalar) => {
            let f = match scalar {
                Scalar::F16 => "number::f16_to_f32",
                Scalar::Bf16 => "number::bf16_to_f32",
                Scalar::F32 => "f32::from_bits",
                Scalar::E8m0Half => "number::e8m0_half_to_f32",
                Scalar::Ue4m3Half => "number::ue4m3_half_to_f32",
            };
            format!("{f}(raw)")
        }
        FieldType::Unsigned(_) | FieldType::Signed(_) | FieldType::Digit(_) => {
            format!("{} as f32", integer(field))
        }
    };
    read_as(field, "f32", &value)
}

/// The same for a field of integers that fit in i8.
pub fn read_i8(field: &Field) -> String {
    read_as(field, "i8", &format!("({}) as i8", integer(field)))
}

/// `value` of each `raw` of a field.
fn read_as(field: &Field, ty: &str, value: &str) -> String {
    format!(
        "{{
             let mut values = [0{ty}; {}];
             let raw = {};
             for i in 0..{} {{ let raw = raw[i]; values[i] = {value}; }}
             values
         }}",
        field.count,
        read_raw(field),
        field.count
    )
}

/// The integer of `raw`, as i32.
fn integer(field: &Field) -> String {
    match field.ty {
        FieldType::Signed(bits) => {
            let (signed, width) = if bits <= 8 { ("i8", 8) } else { ("i16", 16) };
            let extended = if bits == width {
                format!("i32::from(raw as {signed})")
            } else {
                format!("i32::from(((raw << {0}) as {signed}) >> {0})", width - bits)
            };
            scaled(&extended, field)
        }
        FieldType::Unsigned(_) | FieldType::Digit(_) | FieldType::Scalar(_) => {
            scaled("i32::from(raw)", field)
        }
    }
}

/// ` + 3` or ` - 3`.
pub fn signed(value: i32) -> String {
    if value < 0 { format!(" - {}", value.unsigned_abs()) } else { format!(" + {value}") }
}

fn scaled(raw: &str, field: &Field) -> String {
    match (field.times, field.plus) {
        (1, 0) => raw.to_string(),
        (1, plus) => format!("({raw}{})", signed(plus)),
        (times, 0) => format!("({raw} * {times})"),
        (times, plus) => format!("({raw} * {times}{})", signed(plus)),
    }
}
