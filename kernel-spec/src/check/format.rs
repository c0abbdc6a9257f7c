//! Formats: fields against the block, the activation partner, and the whole put together.

use super::{Scope, at, layout, quantizer, resolve, value};
use crate::model::{Factor, Field, Format, Value};
use crate::parse::format::{RawField, RawFormat};
use crate::toml_walk::{At, Span};

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
    for factor in factors() {
        let Factor::Field(field) = *factor else { continue };
        let field = raw.fields.get(field)?;
        let group = elements.value / field.count.max(1);
        if !elements.value.is_multiple_of(field.count)
            || block.is_multiple_of(group)
            || group.is_multiple_of(block)
        {
            continue;
        }
        let message = format!(
            "`{}` has a scale for each {block} activations, which does not go with one `{}` for each {group} weights",
            name.value, field.name.value
        );
        let help =
            "one of the two numbers must divide the other; `activations = \"int8_row\"` goes with everything";
        raw.file.report(raw.file.error("activations-mismatch", name.span, message).help(help));
        return None;
    }
    Some(index)
}
