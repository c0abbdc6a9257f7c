//! Formats: fields against the block, the activation partner, and the whole put together.

use super::scope::{Scope, at, resolve};
use super::{layout, quantizer, value};
use crate::model::{Factor, Field, Format, Value};
use crate::parse::format::{RawField, RawFormat};
use crate::toml_walk::{At, Span};

/// GGUF type ids of types without blocks, which every reader of such files knows (`ggml_type` of ggml).
const UNQUANTIZED: [(u32, &str); 8] =
    [(0, "f32"), (1, "f16"), (24, "i8"), (25, "i16"), (26, "i32"), (27, "i64"), (28, "f64"), (30, "bf16")];

/// Reports GGUF type ids that are those of types without blocks: no tensor would be read as the format.
pub(super) fn unquantized_ids(formats: &[RawFormat<'_>]) {
    for format in formats {
        let Some(id) = format.gguf else { continue };
        if let Some((_, name)) = UNQUANTIZED.iter().find(|(known, _)| *known == id.value) {
            let message = format!("`{}` claims GGUF type {}, which is {name}", format.name, id.value);
            let error = format.file.error("unquantized-gguf", id.span, message);
            let help = "leave `gguf` out of a format that GGUF files have no type for";
            format.file.report(error.label("no format of blocks").help(help));
        }
    }
}

/// Reports GGUF type ids that two formats claim.
pub(super) fn duplicate_ids(formats: &[RawFormat<'_>]) {
    for (index, format) in formats.iter().enumerate() {
        let Some(id) = format.gguf else { continue };
        let first = formats[..index].iter().find_map(|f| Some((f, f.gguf.filter(|g| g.value == id.value)?)));
        if let Some((other, there)) = first
            && other.name != format.name
        {
            let message = format!("`{}` and `{}` both claim GGUF type {}", format.name, other.name, id.value);
            let error = format.file.error("duplicate-gguf", id.span, message);
            let help = "leave `gguf` out of the one that is only to be chosen by name";
            format.file.report(error.also(other.file.path, there.span, "claimed here").help(help));
        }
    }
}

pub(super) fn check(raw: &RawFormat<'_>, scope: &Scope<'_>) -> Option<Format> {
    let errors = raw.file.sink.errors();
    names(raw);
    if let (true, Some(bytes)) = (raw.complete, raw.bytes) {
        layout::check(raw, bytes);
    }
    let elements = raw.elements?;
    for field in &raw.fields {
        divides(raw, field, elements);
    }
    let checked = value::check(raw, elements, scope)?;
    let activations = activations(raw, elements, &checked.value, scope);
    if let Some(activations) = activations {
        sums(raw, elements, &checked, at(&scope.activations, activations).and_then(|a| a.block));
    }
    let quantizers = quantizer::check(raw, &checked);
    if raw.file.sink.errors() > errors {
        return None;
    }
    Some(Format {
        name: raw.name.to_owned(),
        doc: raw.doc.clone(),
        family: raw.family.clone(),
        origin: raw.file.origin(Span::default()),
        gguf: raw.gguf.map(|at| at.value),
        elements: elements.value,
        bytes: raw.bytes?.value,
        row_header: checked.row_header,
        tensor_tail: checked.tensor_tail,
        fields: raw.fields.iter().map(field).collect(),
        value: checked.value,
        quantizers,
        activations: activations?,
    })
}

fn field(raw: &RawField) -> Field {
    Field {
        name: raw.name.value.clone(),
        ty: raw.ty.value,
        count: raw.count,
        layout: raw.layout.clone(),
        times: raw.times,
        plus: raw.plus,
    }
}

fn names(raw: &RawFormat<'_>) {
    for (index, field) in raw.fields.iter().enumerate() {
        if let Some(first) = raw.fields[..index].iter().find(|f| f.name.value == field.name.value) {
            let message = format!("two fields are called `{}`", field.name.value);
            let error = raw.file.error("duplicate-name", field.name.span, message).label("again here");
            raw.file.report(error.also(raw.file.path, first.name.span, "first here"));
        }
    }
}

fn divides(raw: &RawFormat<'_>, field: &RawField, elements: At<u32>) {
    if elements.value.is_multiple_of(field.count) {
        return;
    }
    let message = format!(
        "field `{}` holds {} values, which does not divide the block's {} elements",
        field.name.value, field.count, elements.value
    );
    let error = raw.file.error("count-mismatch", field.layout_span, message);
    raw.file.report(error.also(raw.file.path, elements.span, "elements of the block"));
}

/// The activation format by name or by default, checked against the runs of elements that share a scale.
fn activations(raw: &RawFormat<'_>, elements: At<u32>, value: &Value, scope: &Scope<'_>) -> Option<usize> {
    let factors = || value.scale.iter().chain(&value.add).chain(&value.subtract);
    let in_block = factors().any(|f| matches!(f, Factor::Field(_)));
    let stated = raw.activations.as_ref();
    let name = stated.cloned().unwrap_or_else(|| {
        let name = match elements.value {
            _ if !in_block => "int8_row",
            n if n % 32 != 0 => "int8_row",
            n if n % 256 == 0 => "q8_k",
            _ => "q8_0",
        };
        At { value: name.to_owned(), span: elements.span }
    });
    let index = resolve(raw.file, &name, "activation format", &scope.activations, scope)?;
    let Some(block) = at(&scope.activations, index).and_then(|a| a.block) else { return Some(index) };
    let fits = |group: u32| block.is_multiple_of(group) || group.is_multiple_of(block);
    let refuse = |what: String| {
        let message = format!(
            "`{}` has a scale for each {block} activations, which does not go with {what}",
            name.value
        );
        let help =
            "one of the two numbers must divide the other; `activations = \"int8_row\"` goes with everything";
        raw.file.report(raw.file.error("activations-mismatch", name.span, message).help(help));
        None
    };
    for factor in factors() {
        let Factor::Field(field) = *factor else { continue };
        let field = raw.fields.get(field)?;
        let group = elements.value / field.count.max(1);
        if elements.value.is_multiple_of(field.count) && !fits(group) {
            return refuse(format!("one `{}` for each {group} weights", field.name.value));
        }
    }
    if !in_block && !fits(elements.value) {
        return refuse(format!("blocks of {} weights", elements.value));
    }
    Some(index)
}

/// The integer sum of a run of weights with the most extreme activations must fit 32 bits.
fn sums(raw: &RawFormat<'_>, elements: At<u32>, checked: &value::Checked, block: Option<u32>) {
    let value = &checked.value;
    let factors = || value.scale.iter().chain(&value.add).chain(&value.subtract);
    let runs = factors().filter_map(|factor| match factor {
        Factor::Field(field) => raw.fields.get(*field).map(|field| elements.value / field.count.max(1)),
        Factor::Row | Factor::Tensor => None,
    });
    let run = runs.fold(elements.value, gcd);
    let whole_rows = factors().all(|factor| !matches!(factor, Factor::Field(_)))
        && value.add.is_empty()
        && value.subtract.is_empty();
    let run = match (block, whole_rows) {
        // How long a row may be then is a rule of each kernel.
        (None, true) => return,
        (None, false) => run,
        (Some(block), _) => block.min(run),
    };
    let largest = 128 * u64::from(run) * checked.largest.value;
    if largest > i32::MAX.unsigned_abs().into() {
        let message = format!(
            "sums over runs of {run} weights up to {} could reach {largest}, beyond 32 bits",
            checked.largest.value
        );
        let error = raw.file.error("sum-overflow", checked.largest.span, message);
        let help = "let fewer weights share a scale, or move `zero` into a minimum (`subtract`)";
        raw.file.report(error.also(raw.file.path, elements.span, "elements of the block").help(help));
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
