//! C++ that reads a format from bytes in shared or global memory: raw fields, integer values, the scale and offset of a run.
//!
//! Any thread can ask for any elements of a block; addresses are polynomials in the element's number with constant
//! coefficients, which the CUDA compiler folds. Values come four at a time where the format's runs allow it: what four
//! neighbours have in common is read once, and codes that lie in neighbouring bytes are read and masked together.

use super::fields::{BLOCK, BYTES, raw, read_four};
use crate::lower::ir::{Expr, Type, f32, i32, u32};
use crate::lower::{decode as lower, stored};
use crate::plan::{Decode, FormatPlan};
use crate::print::cuda;
use crate::text::joined;
use gristmill_spec::model::{Field, Value};
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

/// Numbers of a table, some on a line.
fn numbers(values: impl IntoIterator<Item = i32>) -> String {
    let values: Vec<String> = values.into_iter().map(|v| v.to_string()).collect();
    joined(values.chunks(24).map(|line| line.join(", ")), ",\n    ")
}

/// Elements whose values are computed together.
pub fn together(plan: &FormatPlan<'_>) -> u32 {
    if plan.format.elements.is_multiple_of(4) && plan.run().is_multiple_of(4) { 4 } else { 1 }
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
    int: Type,
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
            int: lower::integer(plan),
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
                let (int, group) = (cuda::name(self.int), self.group);
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
        let (int, count) = (cuda::name(self.int), values.len());
        let _ = writeln!(self.before, "GM_TABLE {int} {name}[{count}] = {{{}}};\n", numbers(values));
    }

    /// Adds a codebook that is read by words, and what takes four numbers of an entry from it.
    fn four_of_an_entry(&mut self, code: &str) {
        let (entries, group) = (lower::codebook(self.value).concat(), self.group);
        let bits = self.int.bits();
        let per = (32 / bits) as usize;
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
