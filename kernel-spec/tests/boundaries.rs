//! Rules at their boundaries: small edits of sound specs, exactly at a bound, one below and one above it. What the checker
//! says of each stands in `tests/boundaries/*.txt`: that it is accepted, with what was made of it, or every diagnostic.
//!
//! `BLESS=1 cargo test -p gristmill-spec --test boundaries` rewrites these files; read the diff.

use gristmill_spec::model::{Format, Kernel, SpecSet};
use gristmill_spec::{Diagnostic, SourceFile, check, shipped};
use std::fmt::Write as _;
use std::path::Path;

#[path = "boundaries/bodies.rs"]
mod bodies;
#[path = "boundaries/cuda.rs"]
mod cuda;
#[path = "boundaries/formats.rs"]
mod formats;
#[path = "boundaries/imports.rs"]
mod imports;
#[path = "boundaries/kernels.rs"]
mod kernels;
#[path = "boundaries/packings.rs"]
mod packings;
#[path = "boundaries/searches.rs"]
mod searches;

/// Replacements in the text of the first file.
type Edits = &'static [(&'static str, &'static str)];

/// A name and what is edited.
type Case = (&'static str, Edits);

/// The text with every replacement made once; each must find its place.
#[track_caller]
fn edited(text: &str, edits: &[(&str, &str)]) -> String {
    edits.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "`{from}` is not in\n{text}");
        text.replacen(from, to, 1)
    })
}

fn source(path: &str, text: impl Into<Vec<u8>>) -> SourceFile {
    SourceFile { path: path.to_owned(), bytes: text.into() }
}

/// The shipped files whose path has one of these words.
fn shipped_of(kinds: &[&str]) -> Vec<SourceFile> {
    let shipped = shipped().expect("readable").into_iter();
    shipped.filter(|source| kinds.iter().any(|kind| source.path.contains(kind))).collect()
}

/// A diagnostic in one line, with the text of every place that it points at.
fn line(diagnostic: &Diagnostic, sources: &[SourceFile]) -> String {
    let at = |path: &str, span: &std::ops::Range<usize>| {
        let source = sources.iter().find(|source| source.path == path).expect("a file of the set");
        let text = String::from_utf8_lossy(&source.bytes[span.clone()]).into_owned();
        text.lines().next().unwrap_or_default().trim().to_owned()
    };
    let Diagnostic { severity, code, message, path, span, label, labels, help } = diagnostic;
    let mut line = format!("{severity:?}[{code}] {message} @ {}", at(path, span));
    if !label.is_empty() {
        let _ = write!(line, " ({label})");
    }
    for label in labels {
        let _ = write!(line, " / {} ({})", at(&label.path, &label.span), label.text);
    }
    if let Some(help) = help {
        let _ = write!(line, " = {}", help.lines().collect::<Vec<_>>().join(" "));
    }
    line
}

fn of_format(format: &Format, set: &SpecSet) -> String {
    let integers = format.integers();
    let ends = integers.first().zip(integers.last());
    let activations = &set.activations[format.activations].name;
    let quantizers: Vec<_> = format.quantizers.iter().map(|quantizer| &quantizer.rule).collect();
    let value = &format.value;
    let stride = if value.stride == 1 { String::new() } else { format!(", stride {}", value.stride) };
    format!(
        "activations {activations}, {} integers {ends:?}, group {}{stride}, signs {:?}, shift {:?}, unit {}, scale {:?}, \
         add {:?}, subtract {:?}, header {:?}, tail {:?}, quantizers {quantizers:?}",
        integers.len(),
        value.group,
        value.signs,
        value.shift,
        value.unit,
        value.scale,
        value.add,
        value.subtract,
        format.row_header,
        format.tensor_tail,
    )
}

fn of_kernel(kernel: &Kernel) -> String {
    let mut text =
        format!("formats {:?}, input {:?}, output {:?}", kernel.formats, kernel.input, kernel.output);
    for v in &kernel.cpu {
        let _ = write!(
            text,
            "; {} {:?} `{}` formats {:?} packing {:?} tile {}x{} bits {:?} default {}",
            v.isa, v.requires, v.label, v.formats, v.packing, v.rows, v.tokens, v.code_bits, v.by_default
        );
    }
    for v in &kernel.cuda {
        let _ = write!(
            text,
            "; {} cc {:?} `{}` formats {:?} packing {:?} {:?} tile {}x{}",
            v.algorithm, v.min_cc, v.label, v.formats, v.packing, v.activations, v.tokens, v.threads
        );
    }
    text
}

/// What is said of a file beside others; of what is accepted, what `describe` says.
fn said(file: SourceFile, beside: &[SourceFile], describe: impl Fn(&SpecSet) -> String) -> String {
    let mut sources = beside.to_vec();
    sources.push(file);
    let report = check(&sources);
    let mut text = String::new();
    if let Some(set) = &report.set {
        let _ = writeln!(text, "  accepted: {}", describe(set));
    }
    for diagnostic in &report.diagnostics {
        let _ = writeln!(text, "  {}", line(diagnostic, &sources));
    }
    text
}

/// Compares with `tests/boundaries/NAME.txt`, or writes it.
#[track_caller]
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/boundaries").join(format!("{name}.txt"));
    if std::env::var_os("BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, text).expect("tests/boundaries can be written");
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    for (want, now) in want.split("\n\n").zip(text.split("\n\n")) {
        assert_eq!(
            want,
            now,
            "another answer than in {}; if it is right, run\n\n    BLESS=1 cargo test -p gristmill-spec --test boundaries\n",
            path.display()
        );
    }
    assert_eq!(want, text, "{}", path.display());
}

/// Every case's name and what is said of it.
fn answers(
    path: &str,
    base: &str,
    cases: &[Case],
    beside: &[SourceFile],
    describe: impl Fn(&SpecSet) -> String,
) -> String {
    let mut text = String::new();
    for (name, edits) in cases {
        let said = said(source(path, edited(base, edits)), beside, &describe);
        let _ = write!(text, "{name}\n{said}\n");
    }
    text
}
