//! From bytes to raw specs: which kind of spec a file is, its keys, types, ranges and words.
//!
//! What needs a second look (does it overlap? does the name exist?) is left to [`crate::check`].

pub(crate) mod activations;
pub(crate) mod body;
pub(crate) mod codebook;
pub(crate) mod coverage;
pub(crate) mod cuda;
pub(crate) mod format;
pub(crate) mod import;
pub(crate) mod kernel;
pub(crate) mod name;
pub(crate) mod packing;
mod search;
pub(crate) mod value;

use crate::diagnostic::{Diagnostic, Sink};
use crate::read::{MAX_FILE_BYTES, SourceFile};
use crate::toml_walk::{File, Span};
use name::{is_name, stem};
use toml::de::DeTable;

/// Everything that was read, raw. Specs that could not be read at all are in `broken`.
#[derive(Debug, Default)]
pub(crate) struct Raw<'a> {
    pub formats: Vec<format::RawFormat<'a>>,
    pub activations: Vec<activations::RawActivations<'a>>,
    pub packings: Vec<packing::RawPacking<'a>>,
    pub kernels: Vec<kernel::RawKernel<'a>>,
    pub imports: Vec<import::RawImport<'a>>,
    pub codebooks: Vec<codebook::RawCodebook<'a>>,
    pub coverage: Vec<coverage::RawCoverage<'a>>,
    /// `cuda.toml` files; `None` where one has mistakes. The last one counts.
    pub cuda: Vec<Option<crate::model::CudaTargets>>,
    /// Codebook data files.
    pub data: Vec<codebook::Data<'a>>,
    /// Hand-written bodies, and what they include.
    pub bodies: Vec<body::Body<'a>>,
    /// Names of files that could not be read, so that a reference to them is not a second error.
    pub broken: Vec<&'a str>,
}

/// What a file describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Format,
    Activations,
    Packing,
    Import,
    Kernel,
    Codebook,
    Coverage,
    Cuda,
}

/// The sources sorted by what they are made of.
#[derive(Debug, Default)]
pub(crate) struct Sorted<'a> {
    pub files: Vec<File<'a>>,
    pub data: Vec<codebook::Data<'a>>,
    pub bodies: Vec<body::Body<'a>>,
    /// Names of text files that are not text.
    pub broken: Vec<&'a str>,
}

/// Tells text from codebook data; whatever should be text and isn't is reported.
pub(crate) fn sort<'a>(sources: &'a [SourceFile], sink: &'a Sink) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    for source in sources {
        if source.path.ends_with(".bin") {
            sorted.data.push(codebook::Data { path: &source.path, bytes: &source.bytes });
            continue;
        }
        if body::is_body(&source.path) {
            sorted.bodies.extend(text(source, sink).map(|text| body::Body { path: &source.path, text }));
            continue;
        }
        match text(source, sink).filter(|text| has_words(text, source, sink)) {
            Some(text) => sorted.files.push(File::new(&source.path, text, sink)),
            None => sorted.broken.push(stem(&source.path)),
        }
    }
    sorted
}

/// The text of a file; `None` after it has been reported.
fn text<'a>(source: &'a SourceFile, sink: &Sink) -> Option<&'a str> {
    let refuse = |code, message: String, help: &str| {
        sink.push(Diagnostic::error(code, &source.path, Span::default(), message).help(help));
        None
    };
    if source.bytes.len() as u64 > MAX_FILE_BYTES {
        let message =
            format!("the file has {} bytes; a spec may have at most {MAX_FILE_BYTES}", source.bytes.len());
        return refuse("file-too-large", message, "is this a spec? large tables belong into codebooks");
    }
    let text = match std::str::from_utf8(&source.bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = error.valid_up_to();
            let line = source.bytes[..at].iter().filter(|b| **b == b'\n').count() + 1;
            let message = format!("the file is not UTF-8: byte {at} (line {line}) is not text");
            return refuse("not-utf8", message, "TOML is UTF-8; save the file in that encoding");
        }
    };
    Some(text)
}

/// Whether a spec says anything; reported if not.
fn has_words(text: &str, source: &SourceFile, sink: &Sink) -> bool {
    let empty = text.trim().is_empty();
    if empty {
        let help = "a format needs `block`, `[[field]]` and `[value]`; see docs/spec-reference.md for the other kinds";
        let error = Diagnostic::error("empty-file", &source.path, Span::default(), "the file is empty");
        sink.push(error.help(help));
    }
    !empty
}

/// Words that Rust keeps for itself, in any edition so far.
const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop",
    "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static",
    "struct", "super", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual",
    "where", "while", "yield",
];

/// Crates that generated code and macros name.
const CRATES: [&str; 3] = ["gristmill", "gristmill_kernels", "gristmill_runtime"];

/// Tables that a spec has several of.
const LISTED: [&str; 6] = ["field", "quantize", "tile", "cpu", "cuda", "require"];

/// Parses one file into `raw`.
pub(crate) fn file<'a>(file: &'a File<'a>, raw: &mut Raw<'a>) {
    let (document, errors) = DeTable::parse_recoverable(file.text);
    let table = document.get_ref();
    if !errors.is_empty() {
        // What recovery makes of a broken file would only produce further errors that aren't there.
        for error in errors.iter().take(20) {
            let span = error.span().unwrap_or(0..0);
            let written = file.text.get(span.clone()).unwrap_or_default();
            let report = file.error("syntax", span.into(), format!("not TOML: {}", error.message().trim()));
            if LISTED.contains(&written) {
                // The others follow from it.
                let help = format!("several tables of one name are written `[[{written}]]`, each of them");
                file.report(report.help(help));
                break;
            }
            file.report(report);
        }
        raw.broken.push(stem(file.path));
        return;
    }
    let name = stem(file.path);
    let kind = kind(file.path, table);
    if !is_name(name) && kind != Kind::Coverage && kind != Kind::Cuda {
        let help = "a spec's name is its file's stem: a lower-case letter, then lower-case letters, digits and `_`, at most 40";
        let start = Span { start: 0, end: 0 };
        file.report(
            file.error("bad-name", start, format!("`{}` is no name for a spec", name.escape_debug()))
                .help(help),
        );
    }
    if kind == Kind::Format && KEYWORDS.contains(&name) {
        let start = Span { start: 0, end: 0 };
        let message = format!("`{name}` is a word of Rust, so no module can have this name");
        let error = file.error("bad-name", start, message);
        file.report(
            error.help("a format's code is a module of its name; rename the file, for example with a number"),
        );
    }
    if kind == Kind::Format && CRATES.contains(&name) {
        let start = Span { start: 0, end: 0 };
        let message = format!(
            "`{name}` is the name of a crate that generated code calls, so no module beside it can have it"
        );
        let error = file.error("bad-name", start, message);
        file.report(error.help("a format's code is a module of its name; rename the file"));
    }
    match kind {
        Kind::Format => raw.formats.push(format::parse(file, name, table)),
        Kind::Activations => raw.activations.push(activations::parse(file, name, table)),
        Kind::Packing => raw.packings.push(packing::parse(file, name, table)),
        Kind::Import => raw.imports.push(import::parse(file, name, table)),
        Kind::Kernel => raw.kernels.push(kernel::parse(file, name, table)),
        Kind::Codebook => raw.codebooks.push(codebook::parse(file, name, table)),
        Kind::Coverage => raw.coverage.push(coverage::parse(file, table)),
        Kind::Cuda => raw.cuda.push(cuda::parse(file, table)),
    }
}

/// The folder's name decides; a file that lies elsewhere is known by its keys.
fn kind(path: &str, table: &DeTable<'_>) -> Kind {
    let mut parts = path.rsplit(['/', '\\']);
    let name = parts.next();
    if name == Some("coverage.toml") {
        return Kind::Coverage;
    }
    let has = |key: &str| table.contains_key(key);
    match parts.next() {
        Some("formats") => Kind::Format,
        Some("packings") => Kind::Packing,
        Some("imports") => Kind::Import,
        Some("kernels") => Kind::Kernel,
        Some("activations") => Kind::Activations,
        Some("codebooks") => Kind::Codebook,
        _ if name == Some("cuda.toml") => Kind::Cuda,
        _ if has("format") => Kind::Import,
        _ if has("value") || has("field") => Kind::Format,
        _ if has("op") || has("cpu") || has("cuda") => Kind::Kernel,
        _ if has("tile") => Kind::Packing,
        _ if has("require") => Kind::Coverage,
        _ if has("entries") => Kind::Codebook,
        _ => Kind::Activations,
    }
}
