//! From raw specs to the checked model: names are resolved, proofs are done, every mistake is reported.

mod bits;
mod body;
mod codebook;
mod coverage;
mod cuda;
mod format;
mod ident;
mod import;
mod kernel;
mod layout;
mod outer;
mod packing;
mod quantizer;
mod scope;
mod search;
mod value;

use crate::diagnostic::{Diagnostic, Severity, Sink};
use crate::model::{Activations, Format, SpecSet};
use crate::parse::{self, Raw, activations::RawActivations};
use crate::read::{self, SourceFile};
use crate::toml_walk::{File, Span};
use scope::{Named, Scope};
use std::collections::BTreeMap;

/// What came of a set of spec files.
#[derive(Clone, Debug)]
pub struct Report {
    /// The checked specs; `Some` exactly if there are no errors.
    pub set: Option<SpecSet>,
    /// Errors and warnings, by file (in the order given) and place.
    pub diagnostics: Vec<Diagnostic>,
}

/// Parses and checks spec files together. Never fails and never panics: what is wrong is in the report.
pub fn check(sources: &[SourceFile]) -> Report {
    let sink = Sink::default();
    let mut set = check_into(sources, &sink);
    let mut diagnostics = sink.into_inner();
    let order: BTreeMap<&str, usize> =
        sources.iter().enumerate().rev().map(|(i, source)| (source.path.as_str(), i)).collect();
    diagnostics.sort_by_key(|d| (order.get(d.path.as_str()).copied(), d.span.start, d.severity));
    if diagnostics.iter().any(|d| d.severity == Severity::Error) {
        set = None;
    }
    Report { set, diagnostics }
}

fn check_into(sources: &[SourceFile], sink: &Sink) -> Option<SpecSet> {
    let sorted = parse::sort(sources, sink);
    let mut raw = Raw { data: sorted.data, bodies: sorted.bodies, broken: sorted.broken, ..Raw::default() };
    for file in &sorted.files {
        parse::file(file, &mut raw);
    }
    duplicates("format", raw.formats.iter().map(|r| (r.file, r.name)));
    duplicates("activation format", raw.activations.iter().map(|r| (r.file, r.name)));
    duplicates("packing", raw.packings.iter().map(|r| (r.file, r.name)));
    duplicates("kernel", raw.kernels.iter().map(|r| (r.file, r.name)));
    duplicates("import layout", raw.imports.iter().map(|r| (r.file, r.name)));
    import::names(&raw);
    duplicates("codebook", raw.codebooks.iter().map(|r| (r.file, r.name)));
    format::unquantized_ids(&raw.formats);
    format::duplicate_ids(&raw.formats);

    let named = |name: &str| name.to_owned();
    let scope = Scope {
        broken: &raw.broken,
        activations: raw.activations.iter().map(|r| (named(r.name), activations(r))).collect(),
        packings: raw.packings.iter().map(|r| (named(r.name), packing::check(r))).collect(),
        codebooks: codebook::check(&raw, sink),
        bodies: &raw.bodies,
    };
    body::unused(&raw, sink);
    let formats: Named<Format> =
        raw.formats.iter().map(|r| (named(r.name), format::check(r, &scope))).collect();
    let kernels = kernel::check(&raw.kernels, &formats, &scope);
    ident::check(&formats, &scope.activations, &kernels, sink);
    let imports: Named<_> =
        raw.imports.iter().map(|r| (named(r.name), import::check(r, &formats, &scope))).collect();
    let required = coverage::check(&raw, &kernels, &formats, &scope);

    let kernels: Option<Vec<_>> = kernels.into_iter().collect();
    let mut kernels = kernels?;
    kernels.sort_by(|a, b| a.precedence().cmp(&b.precedence()));
    Some(SpecSet {
        formats: formats.into_values().collect::<Option<_>>()?,
        activations: scope.activations.into_values().collect::<Option<_>>()?,
        packings: scope.packings.into_values().collect::<Option<_>>()?,
        kernels,
        imports: imports.into_values().collect::<Option<_>>()?,
        required,
        cuda: raw.cuda.into_iter().next_back().flatten().unwrap_or_default(),
        files: sources.iter().map(|source| read::location(&source.path)).collect(),
    })
}

/// Reports names that two files of one kind share.
fn duplicates<'a>(what: &str, specs: impl Iterator<Item = (&'a File<'a>, &'a str)>) {
    let mut seen: BTreeMap<&str, &File<'_>> = BTreeMap::new();
    let start = Span::default();
    for (file, name) in specs {
        let Some(first) = seen.get(name) else {
            seen.insert(name, file);
            continue;
        };
        let message = format!("the {what} `{name}` is described twice");
        let error = file.error("duplicate-name", start, message).label("again here");
        file.report(
            error
                .also(first.path, start, "first here")
                .help("a spec's name is its file's stem; rename one file"),
        );
    }
}

fn activations(raw: &RawActivations<'_>) -> Option<Activations> {
    let rule = raw.rule.as_ref()?;
    Some(Activations {
        name: raw.name.to_owned(),
        doc: raw.doc.clone(),
        origin: raw.file.origin(Span::default()),
        block: raw.block?,
        scale: rule.scale,
        keeps_multiplier: rule.keeps_multiplier,
        stored_f16: rule.stored_f16,
        round: rule.round,
        clamp: rule.clamp,
        prologue: raw.prologue.clone()?,
    })
}
