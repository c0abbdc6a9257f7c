//! C++ that reads a format from bytes in shared or global memory: raw fields, integer values, the scale and offset of a run.
//!
//! Any thread can ask for any elements of a block; addresses are polynomials in the element's number with constant
//! coefficients, which the CUDA compiler folds. Values come four at a time where the format's runs allow it: what four
//! neighbours have in common is read once, and codes that lie in neighbouring bytes are read and masked together.

use crate::lower::ir::{Expr, Type, f32, i32, u32};
use crate::lower::{decode as lower, digits, stored};
use crate::plan::{Decode, FormatPlan};
use crate::print::cuda;
use crate::text::joined;
use gristmill_spec::model::{Field, FieldLayout, Format, Slice, Value};
use std::fmt::Write;

/// Constants and functions of a format: `values`, `scale`, `offset`, and what goes with them.
pub fn emit(plan: &FormatPlan<'_>) -> String {
    let format = plan.format;
    let mut out = sizes(plan);
    for field in &format.fields {
        out.push_str(&raw(field));
    }
    out.push_str(&values(plan));
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

/// What a function that reads a block takes: bytes (`const u8 *`, or an array of them in shared memory), and where in them
/// the block starts.
const BLOCK: &str = "const Bytes &bytes, u32 at";
const BYTES: &str = "template <class Bytes> ";

/// Numbers in comments.
const WORDS: [&str; 16] = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen",
];

/// `raw_NAME(bytes, at, i)`: the bits of value i.
fn raw(field: &Field) -> String {
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
                    format!(
                        "    raw |= ((u32)gm_read<u8>(bytes, at + (u32)(a >> 3)) >> (a & 7) & {mask:#x}u) << {low};"
                    )
                } else if whole_bytes(field, slice) {
                    (0..slice.bits / 8)
                        .map(|b| {
                            format!(
                                "    raw |= (u32)gm_read<u8>(bytes, at + (u32)(a >> 3) + {b}) << {};\n",
                                low + 8 * b
                            )
                        })
                        .collect()
                } else {
                    format!(
                        "    u64 bits = 0;
    for (i32 byte = a >> 3; byte <= (a + {last}) >> 3; byte++)
        bits |= (u64)gm_read<u8>(bytes, at + (u32)byte) << (8 * (byte - (a >> 3)));
    raw |= ((u32)(bits >> (a & 7)) & {mask:#x}u) << {low};",
                        last = slice.bits - 1
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

/// Numbers of a table, some on a line.
fn numbers(values: impl IntoIterator<Item = i32>) -> String {
    let values: Vec<String> = values.into_iter().map(|v| v.to_string()).collect();
    joined(values.chunks(24).map(|line| line.join(", ")), ",\n    ")
}

/// Elements whose values are computed together.
pub fn together(plan: &FormatPlan<'_>) -> u32 {
    if plan.format.elements.is_multiple_of(4) && plan.run().is_multiple_of(4) { 4 } else { 1 }
}

/// Largest power of two, at most 16, that divides where blocks start in a tensor: what loads of a block can rely on.
fn alignment(format: &Format) -> u32 {
    let header = format.row_header.map_or(0, |scalar| scalar.bits() / 8);
    1 << (16u32 | format.bytes | header).trailing_zeros()
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
            let each = (0..4).map(|b| format!("(u32)gm_read<u8>(bytes, {place} + {b}) << {}", 8 * b));
            format!("({})", joined(each, " | "))
        }
    }
}

/// `four_NAME(bytes, at, i)`: the bits of values i to i + 3, a byte each, where they can be read together.
fn read_four(format: &Format, field: &Field) -> Option<String> {
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
                format!("    raw |= ({word} >> (a & 7) & {masks:#x}u) << {low};")
            }
            // A product with bits 7 apart puts each bit of four into a byte of its own.
            Some(Four::Bits) if slice.bits == 1 => format!(
                "    raw |= (((u32)gm_read<u8>(bytes, at + (u32)(a >> 3)) >> (a & 7) & 15) * 0x204081u & {masks:#x}u) << {low};"
            ),
            // Where codes are interleaved, four neighbours are of four codes, which are read together however they lie.
            None if format.value.stride != 1 && nibbles(field, slice) => format!(
                "    const u32 pair = (u32)gm_read<u8>(bytes, at + (u32)(a >> 3)) | (u32)gm_read<u8>(bytes, at + (u32)(a >> 3) + 1) << 8;
    // Bytes apart, then the nibbles of each.
    const u32 apart = (pair | pair << 8) & 0xff00ffu;
    raw |= ((apart | apart << 4) & 0xf0f0f0fu) << {low};"
            ),
            Some(Four::Bits) => {
                let each =
                    (0..4).map(|j| format!("(byte >> {} & {mask:#x}u) << {}", slice.bits * j, 8 * j + low));
                format!(
                    "    const u32 byte = (u32)gm_read<u8>(bytes, at + (u32)(a >> 3)) >> (a & 7);\n    raw |= {};",
                    joined(each, " | ")
                )
            }
            None => return None,
        };
        let _ = writeln!(out, "    {{\n{}{text}\n    }}", address(slice));
        low += slice.bits;
    }
    out.push_str("    return raw;\n}\n\n");
    Some(out)
}

/// The number of the code that the element at expression `element` belongs to.
fn code_index(value: &Value, element: &str) -> String {
    match (value.group.max(1), value.stride) {
        (1, _) => element.to_string(),
        (group, 1) => format!("{element} / {group}u"),
        (group, stride) => format!("{element} / {}u * {stride}u + {element} % {stride}u", group * stride),
    }
}

/// Which of the elements of its code the element at expression `element` is.
fn place_in_code(value: &Value, element: &str) -> String {
    match (value.group.max(1), value.stride) {
        (group, 1) => format!("{element} % {group}u"),
        (group, stride) => format!("{element} % {}u / {stride}u", group * stride),
    }
}

/// The first element of the code that the element at expression `element` belongs to.
fn first_of_code(value: &Value, element: &str) -> String {
    match (value.group.max(1), value.stride) {
        (1, _) => element.to_string(),
        (group, 1) => format!("{element} / {group} * {group}"),
        (group, stride) => {
            let span = group * stride;
            format!("({element} / {span} * {span} + {element} % {stride})")
        }
    }
}

/// Words of a table whose numbers are read `per` at a time: those of a word from its low bits up.
fn words(values: &[i32], per: usize) -> String {
    let bits = 32 / per;
    let mask = u32::MAX >> (32 - bits);
    let word = |of: &[i32]| {
        let each = of.iter().enumerate().map(|(i, v)| (v.cast_unsigned() & mask) << (bits * i));
        format!("{:#x}", each.fold(0, |all, v| all | v))
    };
    let words: Vec<String> = values.chunks(per).map(word).collect();
    joined(words.chunks(12).map(|line| line.join(", ")), ",\n    ")
}

/// `values(bytes, at, e, v)`: the integers of elements e to e + N - 1, where N, [`together`], divides e; the first whose
/// code means nothing, or N.
fn values(plan: &FormatPlan<'_>) -> String {
    let mut text = Values::new(plan);
    let code = text.code();
    if let Some(last) = plan.last_code {
        // From the last one down: the first is what stays.
        let _ = writeln!(
            text.body,
            "    GM_UNROLL for (u32 j = N; j-- > 0;)\n        if ({code} > {last}u) bad = j;"
        );
    }
    text.integers(code);
    text.negate();
    text.shift();
    let Values { n, before, mut body, each, .. } = text;
    if !each.is_empty() {
        let _ = writeln!(body, "    GM_UNROLL for (u32 j = 0; j < N; j++) {{\n{each}    }}");
    }
    format!(
        "enum : u32 {{ N = {n} }};

{before}// The integers of elements e to e + N - 1; the first whose code means nothing, or N.
{BYTES}GM_DEVICE u32 values({BLOCK}, u32 e, i32 (&v)[N]) {{
{body}    return bad;
}}

"
    )
}

/// What `values` consists of.
struct Values<'a> {
    plan: &'a FormatPlan<'a>,
    value: &'a Value,
    n: u32,
    /// Elements of a code.
    group: u32,
    /// The elements are of one code.
    in_group: bool,
    /// Elements e to e + 3 are each of another code, at one place of it.
    interleaved: bool,
    /// Type of tables.
    int: &'static str,
    /// Tables and functions in front.
    before: String,
    /// Statements.
    body: String,
    /// Statements for element e + j.
    each: String,
}

impl<'a> Values<'a> {
    fn new(plan: &'a FormatPlan<'a>) -> Values<'a> {
        let (n, value) = (together(plan), &plan.format.value);
        let group = value.group.max(1);
        Values {
            plan,
            value,
            n,
            group,
            in_group: value.stride == 1 && group.is_multiple_of(n),
            interleaved: n == 4 && value.stride > 1 && value.stride.is_multiple_of(4),
            int: if plan.value_type() == "i8" { "i8" } else { "i16" },
            before: String::new(),
            body: String::from("    u32 bad = N;\n"),
            each: String::new(),
        }
    }

    /// Adds what reads the codes; an expression of that of element e + j.
    fn code(&mut self) -> String {
        let Values { value, n, group, .. } = *self;
        let code = &self.plan.format.fields[value.code];
        let name = &code.name;
        if self.in_group && n > 1 {
            let _ = writeln!(self.body, "    const u32 code = raw_{name}(bytes, at, e / {group}u);");
            return "code".to_string();
        }
        let four = read_four(self.plan.format, code);
        if let (4, 1, Some(text)) = (n, group, &four) {
            self.before.push_str(text);
            let _ = writeln!(self.body, "    const u32 codes = four_{name}(bytes, at, e);");
            return "(codes >> (8 * j) & 0xff)".to_string();
        }
        if self.interleaved {
            let _ = writeln!(self.body, "    const u32 first = {};", code_index(value, "e"));
            let Some(text) = four else { return format!("raw_{name}(bytes, at, first + j)") };
            self.before.push_str(&text);
            let _ = writeln!(self.body, "    const u32 codes = four_{name}(bytes, at, first);");
            return "(codes >> (8 * j) & 0xff)".to_string();
        }
        let index = if group > 1 { code_index(value, "(e + j)") } else { "e + j".to_string() };
        format!("raw_{name}(bytes, at, {index})")
    }

    /// Adds what makes the map's integers of codes.
    fn integers(&mut self, code: String) {
        // Where a code is beyond the table, another entry is read, and not used.
        let within = match self.plan.last_code {
            Some(last) => format!("gm_min({code}, {last}u)"),
            None => code.clone(),
        };
        match self.plan.decode() {
            Decode::Affine { times, zero, signed } => {
                let integer = lower::affine((times, zero, signed), self.plan.code_bits, u32(code), Type::I32);
                let _ = writeln!(self.each, "        v[j] = {};", cuda::expr(&integer));
            }
            Decode::Table(table) => {
                self.table("levels", table);
                let _ = writeln!(self.each, "        v[j] = levels[{within}];");
            }
            Decode::Codebook if self.in_group && self.n == 4 => self.four_of_an_entry(&within),
            Decode::Codebook => {
                let entries = lower::codebook(self.value).concat();
                let (int, group) = (self.int, self.group);
                let _ = writeln!(
                    self.before,
                    "GM_TABLE {int} codebook[{}] = {{\n    {}}};\n",
                    entries.len(),
                    numbers(entries.iter().copied())
                );
                let element = if self.interleaved { "e" } else { "(e + j)" };
                let place = place_in_code(self.value, element);
                let _ = writeln!(self.each, "        v[j] = codebook[{within} * {group}u + {place}];");
            }
        }
    }

    /// Adds a table.
    fn table(&mut self, name: &str, values: Vec<i32>) {
        let (int, count) = (self.int, values.len());
        let _ = writeln!(self.before, "GM_TABLE {int} {name}[{count}] = {{{}}};\n", numbers(values));
    }

    /// Adds a codebook that is read by words, and what takes four numbers of an entry from it.
    fn four_of_an_entry(&mut self, code: &str) {
        let (entries, group) = (lower::codebook(self.value).concat(), self.group);
        let per = if self.int == "i8" { 4 } else { 2 };
        let bits = 32 / per as u32;
        let _ = writeln!(
            self.before,
            "// The codebook, {per} numbers to a word.\nGM_TABLE u32 codebook[{}] = {{\n    {}}};\n",
            entries.len().div_ceil(per),
            words(&entries, per)
        );
        let _ = writeln!(self.body, "    const u32 first = ({code} * {group}u + e % {group}u) / {per};");
        for j in 0..4 {
            let (word, up) = (j / per, 32 - bits * (j as u32 % per as u32 + 1));
            let _ =
                writeln!(self.body, "    v[{j}] = (i32)(codebook[first + {word}] << {up}) >> {};", 32 - bits);
        }
    }

    /// Adds what reads a field of which each value is for `run` elements, and `then`: once, where those take in all N.
    fn bind(&mut self, field: &Field, binding: &str, then: &str) -> u32 {
        let run = self.plan.format.elements / field.count;
        let name = &field.name;
        let _ = if run.is_multiple_of(self.n) {
            write!(self.body, "    u32 {binding} = raw_{name}(bytes, at, e / {run}u);\n{then}")
        } else {
            write!(self.each, "        u32 {binding} = raw_{name}(bytes, at, (e + j) / {run}u);\n{then}")
        };
        run
    }

    /// Adds what negates integers by signs of their own.
    fn negate(&mut self) {
        let Some(signs) = &self.value.signs else { return };
        let field = &self.plan.format.fields[signs.field];
        let all = lower::signs(signs, self.plan.format.elements / field.count, u32("signs"));
        let parity = match signs.parity {
            true => format!("    signs = {};\n", cuda::expr(&all)),
            false => String::new(),
        };
        let run = self.bind(field, "signs", &parity);
        let _ = writeln!(self.each, "        if (signs >> ((e + j) % {run}u) & 1) v[j] = -v[j];");
    }

    /// Adds what adds shifts.
    fn shift(&mut self) {
        let Some((field, values)) = lower::shifts(self.plan) else { return };
        self.table("shifts", values);
        self.bind(field, "moved", "");
        self.each.push_str("        v[j] += shifts[moved];\n");
    }
}

/// `scale` and `offset` of a run, with the factor outside the block, and `weight_of` an integer.
fn terms(plan: &FormatPlan<'_>) -> String {
    let format = plan.format;
    let mut out = String::new();
    for i in lower::fields_of_terms(&format.value) {
        let field = &format.fields[i];
        let _ = writeln!(
            out,
            "{BYTES}GM_DEVICE f32 float_{name}({BLOCK}, u32 i) {{ const u32 raw = raw_{name}(bytes, at, i); return {}; }}",
            cuda::expr(&stored::number(field, u32("raw"))),
            name = field.name,
        );
    }
    let number = |field: usize, index: Expr| {
        let name = &format.fields[field].name;
        f32(format!("float_{name}(bytes, at, {})", cuda::expr(&index)))
    };
    let (scale, offset) = lower::terms(plan, &number);
    let weight = lower::weight(f32("s"), i32("v"), offset.is_some().then(|| f32("o")));
    let mut function = |name: &str, doc: &str, body: &Expr| {
        let _ = writeln!(
            out,
            "// {doc}\n{BYTES}GM_DEVICE f32 {name}({BLOCK}, u32 run, f32 outer) {{ (void)bytes; (void)at; (void)run; (void)outer; return {}; }}\n",
            cuda::expr(body)
        );
    };
    function("scale", "Scale of a run.", &scale);
    let none = Expr::f32(0.0);
    function("offset", "What is subtracted after scaling.", offset.as_ref().unwrap_or(&none));
    let _ = writeln!(
        out,
        "enum : bool {{ HAS_OFFSET = {} }};

// The weight of an integer of a run with scale s and offset o.
GM_DEVICE f32 weight_of(i32 v, f32 s, [[maybe_unused]] f32 o) {{ return {}; }}

// The first element of the code that an element of the tensor belongs to.
GM_DEVICE u64 first_of_code(u64 element) {{ return {}; }}
",
        offset.is_some(),
        cuda::expr(&weight),
        first_of_code(&format.value, "element"),
    );
    out
}
