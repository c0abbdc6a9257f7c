//! A drawn format as TOML.

use super::format::{Book, Drawn, Factor, Field, Float, Map};
use std::fmt::Write as _;

/// The format's file.
pub fn format(drawn: &Drawn) -> String {
    let mut out = format!(
        "doc = \"drawn at random\"\nblock = {{ elements = {}, bytes = {} }}\n",
        drawn.elements, drawn.bytes
    );
    if let Some(activations) = drawn.activations {
        let _ = writeln!(out, "activations = \"{activations}\"");
    }
    if let Some((_, Some(bytes))) = drawn.tensor {
        let _ = writeln!(out, "tail_bytes = {bytes}");
    }
    if !drawn.unused.is_empty() {
        let gaps: Vec<String> = drawn
            .unused
            .iter()
            .map(|(offset, bits)| format!("{{ offset = {offset}, bits = {bits} }}"))
            .collect();
        let _ = writeln!(out, "unused = [{}]", gaps.join(", "));
    }
    for field in &drawn.fields {
        let _ = writeln!(out, "\n[[field]]\nname = \"{}\"\ntype = \"{}\"", field.name, field.kind.name());
        out.push_str(&field.text);
        if field.times != 1 {
            let _ = writeln!(out, "times = {}", field.times);
        }
        if field.plus != 0 {
            let _ = writeln!(out, "plus = {}", field.plus);
        }
    }
    let _ = writeln!(out, "\n[value]\ncode = \"{}\"", drawn.fields[drawn.code].name);
    match &drawn.map {
        Map::Affine { times, zero } => {
            if *times != 1 {
                let _ = writeln!(out, "times = {times}");
            }
            if *zero != 0 {
                let _ = writeln!(out, "zero = {zero}");
            }
        }
        Map::Levels(levels) => {
            let _ = writeln!(out, "levels = {levels:?}");
        }
        Map::Book(book) => {
            let _ = writeln!(out, "codebook = \"{}_book\"", drawn.name);
            if book.stride != 1 {
                let _ = writeln!(out, "stride = {}", book.stride);
            }
            if book.times != 1 {
                let _ = writeln!(out, "times = {}", book.times);
            }
        }
    }
    if let Some((field, parity)) = drawn.signs {
        let rule = if parity { "parity" } else { "mask" };
        let _ = writeln!(out, "signs = \"{}\"\nsign_rule = \"{rule}\"", drawn.fields[field].name);
    }
    if let Some((field, values)) = &drawn.shift {
        let name = &drawn.fields[*field].name;
        let _ = writeln!(out, "shift = {{ field = \"{name}\", values = {values:?} }}");
    }
    if let Some(exponent) = drawn.unit {
        let _ = writeln!(out, "unit = {:?}", 2f64.powi(exponent));
    }
    for (key, factors) in [("scale", &drawn.scale), ("add", &drawn.add), ("subtract", &drawn.subtract)] {
        let names: Vec<String> = factors.iter().map(|factor| name(drawn, *factor)).collect();
        match &names[..] {
            [] => {}
            // A single factor needs no list; every other one stands in one all the same.
            [one] if one.len() % 2 == 0 => {
                let _ = writeln!(out, "{key} = {one}");
            }
            names => {
                let _ = writeln!(out, "{key} = [{}]", names.join(", "));
            }
        }
    }
    for quantizer in &drawn.quantizers {
        let _ = write!(out, "\n[[quantize]]\n{quantizer}");
    }
    out
}

fn name(drawn: &Drawn, factor: Factor) -> String {
    let outer =
        |place: &str, float: Option<Float>| format!("\"{place}.{}\"", float.map_or("none", Float::name));
    match factor {
        Factor::Field(field) => format!("\"{}\"", drawn.fields[field].name),
        Factor::Row => outer("row", drawn.row),
        Factor::Tensor => outer("tensor", drawn.tensor.map(|(float, _)| float)),
    }
}

/// The codebook's file.
pub fn book(book: &Book) -> String {
    let table = if book.inside { format!("table = {:?}\n", book.entries) } else { String::new() };
    format!(
        "doc = \"drawn at random\"\nentries = {}\nwidth = {}\nbits = {}\nvalues = {:?}\n{table}origin = \"drawn at random\"\n",
        book.entries.len(),
        book.width,
        book.bits,
        book.values
    )
}

/// One slice in the language's words; `bits` where it is a part.
pub fn slice(bits: Option<usize>, shape: &[usize], strides: &[i64], offset: usize) -> String {
    let bits = bits.map_or(String::new(), |bits| format!("bits = {bits}, "));
    if shape.is_empty() {
        return format!("{{ {bits}offset = {offset} }}");
    }
    let offset = if offset == 0 { String::new() } else { format!(", offset = {offset}") };
    format!("{{ {bits}shape = {shape:?}, stride = {strides:?}{offset} }}")
}

/// The whole text of a field's place is empty where the language's default says it.
pub fn is_default(field: &Field) -> bool {
    field.count == 1
        && field.bits.first().is_some_and(|bits| bits.iter().enumerate().all(|(i, &bit)| i == bit))
}
