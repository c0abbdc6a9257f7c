//! Whether names that differ in specs differ in generated code too.

use super::scope::{Named, at};
use crate::diagnostic::{Diagnostic, Sink};
use crate::model::{
    Activations, CpuVariant, Format, Kernel, Origin, Quantizer, activations_module, enumerator,
    quantizer_function,
};
use crate::read::is_shipped;
use crate::vocab::{Op, Serves};
use std::collections::{BTreeMap, BTreeSet};

/// Reports names that would be one.
pub(super) fn check(
    formats: &Named<Format>,
    activations: &Named<Activations>,
    kernels: &[Option<Kernel>],
    sink: &Sink,
) {
    let all = || formats.values().flatten();
    enumerators(all().map(|format| (format.name.as_str(), &format.origin)), sink);
    enumerators(activations.values().flatten().map(|format| (format.name.as_str(), &format.origin)), sink);
    modules(all(), activations, sink);
    let kernels: Vec<&Kernel> = kernels.iter().flatten().collect();
    variants(&kernels, sink);
    for (index, format) in formats.values().enumerate() {
        let Some(format) = format else { continue };
        quantizers(format, index, &kernels, sink);
    }
    units(formats, activations, &kernels, sink);
}

/// Where a name is given, and in words what has it.
struct Given<'a> {
    origin: &'a Origin,
    what: String,
}

/// Reports that two things are `name` in generated code, at the user's own one.
fn report(sink: &Sink, name: &str, (first, again): (Given<'_>, Given<'_>), help: &str) {
    let (first, again) = if is_shipped(&again.origin.file) && !is_shipped(&first.origin.file) {
        (again, first)
    } else {
        (first, again)
    };
    let message = format!("{} and {} are both `{name}` in generated code", first.what, again.what);
    let error = Diagnostic::error("duplicate-name", &again.origin.file, again.origin.span.clone(), message);
    let error = error.label("again here").also(&first.origin.file, first.origin.span.clone(), "first here");
    sink.push(error.help(help));
}

/// Formats are enumerators without the `_` of their names.
fn enumerators<'a>(names: impl Iterator<Item = (&'a str, &'a Origin)>, sink: &Sink) {
    let mut seen: BTreeMap<String, (&str, &Origin)> = BTreeMap::new();
    for (name, origin) in names {
        let ident = enumerator(name);
        if ident == "Self" {
            let message = format!("`{name}` is `Self` in generated code, a word of Rust");
            let error = Diagnostic::error("bad-name", &origin.file, origin.span.clone(), message);
            sink.push(error.help("rename the file, for example with a number"));
        }
        let Some(&(other, first)) = seen.get(&ident) else {
            seen.insert(ident, (name, origin));
            continue;
        };
        let given = |name: &str, origin| Given { origin, what: format!("format `{name}`") };
        let help = "names of formats must differ in more than `_`; rename one file";
        report(sink, &ident, (given(other, first), given(name, origin)), help);
    }
}

/// A format is a module of its name, an activation format one behind a word.
fn modules<'a>(formats: impl Iterator<Item = &'a Format>, activations: &Named<Activations>, sink: &Sink) {
    for format in formats {
        let same =
            activations.values().flatten().find(|other| activations_module(&other.name) == format.name);
        if let Some(other) = same {
            let first = Given { origin: &other.origin, what: format!("activation format `{}`", other.name) };
            let again = Given { origin: &format.origin, what: format!("format `{}`", format.name) };
            report(sink, &format.name, (first, again), "rename the format's file");
        }
    }
}

/// A variant is its ISA, features and name in a row, so that a name may look like a feature.
fn variants(kernels: &[&Kernel], sink: &Sink) {
    let mut seen: BTreeMap<(bool, String), Vec<&CpuVariant>> = BTreeMap::new();
    for kernel in kernels {
        let of_activations = kernel.op.info().serves == Serves::Activations;
        for variant in &kernel.cpu {
            let ident = variant.ident();
            let others = seen.entry((of_activations, ident.clone())).or_default();
            let other = others.iter().find(|other| {
                let common = variant.formats.iter().any(|format| other.formats.contains(format));
                let facts =
                    |variant: &CpuVariant| (variant.isa, variant.requires.clone(), variant.label.clone());
                common && facts(other) != facts(variant)
            });
            if let Some(other) = other {
                let given = |variant: &'_ CpuVariant| {
                    let required = variant.requires.iter().map(|feature| format!("`{feature}`"));
                    let features: Vec<String> = required.collect();
                    match features.is_empty() {
                        true => format!("the `{}` variant `{}`", variant.isa, variant.label),
                        false => format!("the `{}` variant with {}", variant.isa, features.join(", ")),
                    }
                };
                let first = Given { origin: &other.origin, what: given(other) };
                let again = Given { origin: &variant.origin, what: given(variant) };
                report(sink, &ident, (first, again), "give one of them another `name`");
            }
            others.push(variant);
        }
    }
}

/// A quantizer is a function of its name, and one more for each variant.
fn quantizers(format: &Format, index: usize, kernels: &[&Kernel], sink: &Sink) {
    let quantize = kernels.iter().filter(|kernel| kernel.op == Op::Quantize).flat_map(|kernel| &kernel.cpu);
    let serving: Vec<String> =
        quantize.filter(|variant| variant.formats.contains(&index)).map(CpuVariant::ident).collect();
    let functions = |quantizer: &Quantizer| -> Vec<String> {
        let own = quantizer_function(&quantizer.name);
        let compiled = serving.iter().map(|ident| format!("{own}_{ident}")).collect::<Vec<_>>();
        [vec![own], compiled].concat()
    };
    for (position, quantizer) in format.quantizers.iter().enumerate() {
        let own = functions(quantizer);
        for other in &format.quantizers[..position] {
            // One name twice is reported where quantizers are.
            let taken =
                functions(other).into_iter().find(|name| other.name != quantizer.name && own.contains(name));
            if let Some(name) = taken {
                let given = |quantizer: &'_ Quantizer| format!("quantizer `{}`", quantizer.name);
                let first = Given { origin: &other.origin, what: given(other) };
                let again = Given { origin: &quantizer.origin, what: given(quantizer) };
                report(
                    sink,
                    &name,
                    (first, again),
                    "no name of a quantizer may be another's with an ISA behind it; rename one",
                );
            }
        }
    }
}

/// Kernels of GPUs are in translation units of the function, the format and the variant's name in a row.
fn units(formats: &Named<Format>, activations: &Named<Activations>, kernels: &[&Kernel], sink: &Sink) {
    struct Seen<'a> {
        variant: &'a Origin,
        quantizer: Option<&'a Quantizer>,
        format: &'a str,
    }
    let mut seen: BTreeMap<String, Seen<'_>> = BTreeMap::new();
    // Generated products are in units by what they are made of, and those by hand share the one of their function.
    for kernel in kernels.iter().filter(|kernel| !kernel.op.info().product) {
        let served = kernel.cuda.iter().flat_map(|variant| {
            let formats = variant.formats.as_ref().unwrap_or(&kernel.formats);
            formats.iter().map(move |format| (variant, *format))
        });
        for (variant, index) in served {
            let (format, quantizers): (&str, Vec<Option<&Quantizer>>) = match kernel.op.info().serves {
                Serves::Activations => match at(activations, index) {
                    Some(format) => (&format.name, vec![None]),
                    None => continue,
                },
                Serves::Formats => match at(formats, index) {
                    Some(format) if kernel.op == Op::Quantize => {
                        (&format.name, format.quantizers.iter().map(Some).collect())
                    }
                    Some(format) => (&format.name, vec![None]),
                    None => continue,
                },
            };
            let mut names = BTreeSet::new();
            // One name twice is reported where quantizers are.
            for quantizer in quantizers.into_iter().filter(|q| names.insert(q.map(|q| q.name.as_str()))) {
                let function = quantizer.map_or(kernel.op.name().to_owned(), |q| quantizer_function(&q.name));
                let name = variant.unit(&function, format, kernel);
                let Some(first) = seen.get(&name) else {
                    seen.insert(name, Seen { variant: &variant.origin, quantizer, format });
                    continue;
                };
                let what = |format: &str, quantizer: Option<&Quantizer>| match quantizer {
                    Some(quantizer) => {
                        format!("the kernel of quantizer `{}` of format `{format}`", quantizer.name)
                    }
                    None => format!("a kernel of format `{format}`"),
                };
                // One variant has several quantizers: then they are the places.
                let places = match (first.quantizer, quantizer) {
                    (Some(other), Some(own)) if first.variant == &variant.origin => {
                        (&other.origin, &own.origin)
                    }
                    _ => (first.variant, &variant.origin),
                };
                let other = Given { origin: places.0, what: what(first.format, first.quantizer) };
                let own = Given { origin: places.1, what: what(format, quantizer) };
                report(sink, &name, (other, own), "give one of them another `name`");
            }
        }
    }
}
