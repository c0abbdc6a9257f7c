//! C++ that reads the fields of a block: the raw bits of a value, and of four neighbours that lie in neighbouring bytes or in one.

use super::outer::header_bytes;
use crate::lower::digits;
use crate::text::joined;
use gristmill_spec::model::{Field, FieldLayout, Format, Slice};
use std::fmt::Write;

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

/// An expression with `<<`, `>>` or `+` and a number behind it; without them where that is 0.
pub fn by(of: &str, operator: &str, number: u32) -> String {
    if number == 0 { of.to_string() } else { format!("{of} {operator} {number}") }
}

/// An expression of `bits` shifted left.
fn left(bits: &str, shift: u32) -> String {
    if shift == 0 { bits.to_string() } else { format!("({bits}) << {shift}") }
}

/// An expression of the byte behind so many others at the place of bit address `a`.
fn byte(behind: u32) -> String {
    format!("(u32)gm_read<u8>(bytes, {})", by("at + (u32)(a >> 3)", "+", behind))
}

/// What a function that reads a block takes: bytes (`const u8 *`, or an array of them in shared memory), and where in them
/// the block starts.
pub const BLOCK: &str = "const Bytes &bytes, u32 at";
pub const BYTES: &str = "template <class Bytes> ";

/// Numbers in comments.
const WORDS: [&str; 16] = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen",
];

/// `raw_NAME(bytes, at, i)`: the bits of value i.
pub fn raw(field: &Field) -> String {
    let name = &field.name;
    let mut out = String::new();
    match &field.layout {
        FieldLayout::Bits(slices) => {
            let _ = writeln!(out, "{BYTES}GM_DEVICE u32 raw_{name}({BLOCK}, u32 i) {{\n    u32 raw = 0;");
            let mut low = 0;
            for slice in slices {
                let _ = writeln!(out, "    {{\n{}", address(slice));
                let mask = if slice.bits == 32 { u32::MAX } else { (1 << slice.bits) - 1 };
                let text = if in_one_byte(field, slice) {
                    format!("    raw |= {};", left(&format!("{} >> (a & 7) & {mask:#x}u", byte(0)), low))
                } else if whole_bytes(field, slice) {
                    let each = (0..slice.bits / 8).map(|b| by(&byte(b), "<<", low + 8 * b));
                    joined(each.map(|byte| format!("    raw |= {byte};")), "\n")
                } else {
                    format!(
                        "    u64 bits = 0;
    for (i32 byte = a >> 3; byte <= (a + {last}) >> 3; byte++)
        bits |= (u64)gm_read<u8>(bytes, at + (u32)byte) << (8 * (byte - (a >> 3)));
    raw |= {bits};",
                        last = slice.bits - 1,
                        bits = left(&format!("(u32)(bits >> (a & 7)) & {mask:#x}u"), low),
                    )
                };
                let _ = writeln!(out, "{text}\n    }}");
                low += slice.bits;
            }
            out.push_str("    return raw;\n}\n\n");
        }
        FieldLayout::Digits { radix, most_significant_first, segments } => {
            let base = radix.base();
            let places = joined(
                digits::places(field.count, segments).iter().map(|(byte, digit)| {
                    (byte << 7 | digits::power(*radix, *most_significant_first, *digit)).to_string()
                }),
                ", ",
            );
            let _ = writeln!(
                out,
                "// Of each element, its byte * 128 + the power of {word} that brings its digit to the front.
GM_TABLE u32 places_{name}[{count}] = {{{places}}};

// A byte holds ceil(256 * v / {numbers}) of {digits} base-{base} digits: times a power of {word}, the next digit carries out.
{BYTES}GM_DEVICE u32 raw_{name}({BLOCK}, u32 i) {{
    const u32 place = places_{name}[i];
    return ((u32)gm_read<u8>(bytes, at + (place >> 7)) * (place & 127) & 0xff) * {base} >> 8;
}}
",
                count = field.count,
                numbers = radix.numbers(),
                word = WORDS[base as usize],
                digits = WORDS[radix.digits() as usize],
            );
        }
    }
    out
}

/// Largest power of two, at most 16, that divides where blocks start in a tensor: what loads of a block can rely on.
fn alignment(format: &Format) -> u32 {
    1 << (16u32 | format.bytes | header_bytes(format)).trailing_zeros()
}

/// How the same slice of four neighbours is read at once.
pub enum Four {
    /// From four bytes beside each other, the same bits of each; the bytes' alignment.
    Bytes(u32),
    /// From one byte, bits after bits.
    Bits,
}

/// How a slice of values `4 i` to `4 i + 3` is read, where one way holds for every `i`.
pub fn four(format: &Format, field: &Field, slice: &Slice) -> Option<Four> {
    let mut starts = (0..field.count).step_by(4);
    let apart = |stride: i64| {
        starts
            .clone()
            .all(|i| (1..4).all(|j| slice.address(i + j) - slice.address(i) == i64::from(j) * stride))
    };
    if !field.count.is_multiple_of(4) || slice.offset < 0 {
        None
    } else if apart(8) && in_one_byte(field, slice) {
        let places = starts.fold(alignment(format), |all, i| all | (slice.address(i) >> 3) as u32);
        Some(Four::Bytes(1 << places.trailing_zeros().min(2)))
    } else if apart(i64::from(slice.bits))
        && starts.all(|i| slice.address(i) % 8 + i64::from(4 * slice.bits) <= 8)
    {
        Some(Four::Bits)
    } else {
        None
    }
}

/// Whether values `4 i` to `4 i + 3` of a slice are the nibbles of two bytes, for every `i`.
fn nibbles(field: &Field, slice: &Slice) -> bool {
    let apart = |i: u32| (1..4).all(|j| slice.address(i + j) - slice.address(i) == i64::from(4 * j));
    slice.bits == 4
        && slice.offset >= 0
        && field.count.is_multiple_of(4)
        && (0..field.count).step_by(4).all(|i| slice.address(i) % 8 == 0 && apart(i))
}

/// An expression of the four bytes at `place` of shared memory, whose address has that alignment.
fn four_bytes(place: &str, alignment: u32) -> String {
    match alignment {
        4 => format!("gm_read<u32>(bytes, {place})"),
        2 => format!("((u32)gm_read<u16>(bytes, {place}) | (u32)gm_read<u16>(bytes, {place} + 2) << 16)"),
        _ => {
            let byte = |b| format!("(u32)gm_read<u8>(bytes, {})", by(place, "+", b));
            format!("({})", joined((0..4).map(|b| by(&byte(b), "<<", 8 * b)), " | "))
        }
    }
}

/// `four_NAME(bytes, at, i)`: the bits of values i to i + 3, a byte each, where they can be read together.
pub fn read_four(format: &Format, field: &Field) -> Option<String> {
    let FieldLayout::Bits(slices) = &field.layout else { return None };
    if slices.iter().map(|slice| slice.bits).sum::<u32>() > 8 {
        return None;
    }
    let mut out = format!("{BYTES}GM_DEVICE u32 four_{}({BLOCK}, u32 i) {{\n    u32 raw = 0;\n", field.name);
    let mut low = 0;
    for slice in slices {
        let mask = (1u32 << slice.bits) - 1;
        let masks = mask * 0x0101_0101;
        let text = match four(format, field, slice) {
            Some(Four::Bytes(alignment)) => {
                let word = four_bytes("at + (u32)(a >> 3)", alignment);
                format!("    raw |= {};", left(&format!("{word} >> (a & 7) & {masks:#x}u"), low))
            }
            // A product with bits 7 apart puts each bit of four into a byte of its own.
            Some(Four::Bits) if slice.bits == 1 => {
                let bits = format!("({} >> (a & 7) & 15) * 0x204081u & {masks:#x}u", byte(0));
                format!("    raw |= {};", left(&bits, low))
            }
            // Where codes are interleaved, four neighbours are of four codes, which are read together however they lie.
            None if format.value.stride != 1 && nibbles(field, slice) => format!(
                "    const u32 pair = {} | {} << 8;
    // Bytes apart, then the nibbles of each.
    const u32 apart = (pair | pair << 8) & 0xff00ffu;
    raw |= {};",
                byte(0),
                byte(1),
                left("(apart | apart << 4) & 0xf0f0f0fu", low)
            ),
            Some(Four::Bits) => {
                let bits = |j| format!("({} & {mask:#x}u)", by("byte", ">>", slice.bits * j));
                let each = (0..4).map(|j| by(&bits(j), "<<", 8 * j + low));
                format!("    const u32 byte = {} >> (a & 7);\n    raw |= {};", byte(0), joined(each, " | "))
            }
            None => return None,
        };
        let _ = writeln!(out, "    {{\n{}{text}\n    }}", address(slice));
        low += slice.bits;
    }
    out.push_str("    return raw;\n}\n\n");
    Some(out)
}
