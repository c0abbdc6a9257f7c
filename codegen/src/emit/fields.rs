//! Reading and writing the fields of a block: the decode strategies.
//!
//! A slice's digits say which shape its loop has:
//! * *planes*: neighbouring values are in neighbouring bytes, so one shift and one mask serve a run of
//!   bytes, and a compiler turns the loop into vector instructions;
//! * *spread*: several neighbouring values share a byte, which is read once for all of them;
//! * *window*: values cross bytes; each is cut out of a 32-bit word.

use crate::lower::ir::{Expr, Type};
use crate::lower::{digits, stored};
use crate::print::rust;
use crate::text::joined;
use gristmill_spec::model::{Digit, Field, FieldLayout, Radix, Segment, Slice};
use std::fmt::Write;
use std::ops::Range;

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
fn read_slice(out: &mut String, slice: &Slice, low: u32, ty: Type) {
    let mask = (1u64 << slice.bits) - 1;
    let strategy = Strategy::of(slice);
    let value = |byte: &str, shift: i64| {
        let bits = (Expr::name(Type::U8, byte) >> shift as u32).low(slice.bits);
        rust::expr(&(bits.to(ty) << low))
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
                0 => format!("((word >> (at % 8)) & {mask:#x}) as {}", rust::name(ty)),
                _ => format!("(((word >> (at % 8)) & {mask:#x}) << {low}) as {}", rust::name(ty)),
            };
            // A value of up to 32 bits at any bit offset touches up to five bytes.
            let bytes = joined((0..8).map(|i| format!("window[at / 8 + {i}]")), ", ");
            let _ = writeln!(out, "let word = u64::from_le_bytes([{}]); code[index] |= {value};", bytes);
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

/// An expression (a block) for the array of a field's raw values, read from `block`.
pub fn read_raw(field: &Field) -> String {
    if whole_bytes(field).is_some() {
        return format!("[{}]", read_one(field));
    }
    let ty = stored::raw_type(field);
    let mut out = format!("{{ let mut code = [0{}; {}];\n", rust::name(ty), field.count);
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

/// The bytes of a field that is one little-endian number on a byte border, the form of almost every scale.
fn whole_bytes(field: &Field) -> Option<Range<i64>> {
    let FieldLayout::Bits(slices) = &field.layout else { return None };
    let [slice] = slices.as_slice() else { return None };
    let whole = field.count == 1 && slice.offset % 8 == 0 && [8, 16, 32].contains(&slice.bits);
    whole.then(|| slice.offset / 8..(slice.offset + i64::from(slice.bits)) / 8)
}

/// An expression for the raw value of a field that has one.
pub(super) fn read_one(field: &Field) -> String {
    match whole_bytes(field).map(|bytes| bytes.map(|byte| format!("block[{byte}]")).collect::<Vec<_>>()) {
        None => format!("{}[0]", read_raw(field)),
        Some(bytes) if bytes.len() == 1 => bytes.concat(),
        Some(bytes) => format!("u{}::from_le_bytes([{}])", 8 * bytes.len(), bytes.join(", ")),
    }
}

/// Digits: multiply by a power of the base, keep the byte, and the product with the base carries out the digit.
fn read_digits(out: &mut String, segment: &Segment, radix: Radix, most_significant_first: bool) {
    let base = radix.base();
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
        let power = digits::power(radix, most_significant_first, number);
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

/// Statements that OR the array `code` of raw values into `block`, whose bytes start at zero: those that a field has to itself are stored.
pub fn write_raw(field: &Field) -> String {
    if let Some(Range { start, end }) = whole_bytes(field).filter(|bytes| bytes.end - bytes.start > 1) {
        return format!("block[{start}..{end}].copy_from_slice(&code[0].to_le_bytes());\n");
    }
    let ty = stored::raw_type(field);
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
            let rows = digits::bytes(field.count, segments, *radix, *most_significant_first);
            write_digits(&mut out, &rows, *radix);
        }
    }
    out
}

fn write_slice(out: &mut String, slice: &Slice, low: u32, ty: Type) {
    let mask = (1u64 << slice.bits) - 1;
    let value = |code: &str, shift: i64| {
        let bits = (Expr::name(ty, code) >> low).low(slice.bits);
        rust::expr(&(bits.to(Type::U8) << shift as u32))
    };
    match Strategy::of(slice) {
        Strategy::Planes { outer, extent } => {
            for (index, bit) in combinations(&outer) {
                let at = slice.offset + bit;
                let (byte, shift, first) = (at.div_euclid(8), at.rem_euclid(8), index * extent);
                if extent == 1 {
                    let _ = writeln!(out, "block[{byte}] |= {};", value(&format!("code[{first}]"), shift));
                } else {
                    let to = value("code", shift);
                    let _ = writeln!(
                        out,
                        "for i in 0..{extent} {{ let code = code[{first} + i]; block[{byte} + i] |= {to}; }}"
                    );
                }
            }
        }
        Strategy::Spread { outer, extent, inner } => {
            for (index, bit) in combinations(&outer) {
                let at = slice.offset + bit;
                let (byte, first) = (at.div_euclid(8), index * extent * inner.extent);
                let parts: Vec<String> = (0..inner.extent)
                    .map(|j| {
                        let code = format!("code[{first} + {} * i + {j}]", inner.extent);
                        format!("({})", value(&code, at.rem_euclid(8) + i64::from(j) * inner.stride))
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
fn write_digits(out: &mut String, rows: &[(u32, Vec<u32>)], radix: Radix) {
    let rows: Vec<String> = rows.iter().map(|(byte, elements)| format!("({byte}, {elements:?})")).collect();
    let _ = writeln!(
        out,
        "// Byte, and the element of each digit from the most significant down; ELEMENTS: none. The table costs nothing at run time
         // and keeps the loop free of index arithmetic.
         const DIGITS: [(usize, [usize; {}]); {}] = [{}];
         for (byte, elements) in DIGITS {{
             let mut number = 0u16;
             for element in elements {{
                 number = number * {} + u16::from(code.get(element).copied().unwrap_or(0));
             }}
             block[byte] = (number * 256).div_ceil({}) as u8;
         }}",
        radix.digits(),
        rows.len(),
        rows.join(", "),
        radix.base(),
        radix.numbers()
    );
}

/// An expression for the array of a field's values as f32 (scales and offsets), read from `block`.
pub fn read_f32(field: &Field) -> String {
    read_as(field, Type::F32, stored::number)
}

/// The same for a field of integers that fit in i8.
pub fn read_i8(field: &Field) -> String {
    read_as(field, Type::I8, stored::integer)
}

/// What each raw value of a field means.
fn read_as(field: &Field, ty: Type, meaning: fn(&Field, Expr) -> Expr) -> String {
    let value = rust::expr(&meaning(field, Expr::name(stored::raw_type(field), "raw")).to(ty));
    if field.count == 1 {
        return format!("{{ let raw = {}; [{value}] }}", read_one(field));
    }
    format!(
        "{{
             let mut values = [0{}; {count}];
             let raw = {};
             for i in 0..{count} {{ let raw = raw[i]; values[i] = {value}; }}
             values
         }}",
        rust::name(ty),
        read_raw(field),
        count = field.count
    )
}
