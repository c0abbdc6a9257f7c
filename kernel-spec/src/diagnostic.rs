//! What is said about a spec: errors and warnings that point into TOML, and their rendering.

use crate::read::SourceFile;
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::ops::Range;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The specs can't be compiled.
    Error,
    /// The specs can be compiled, but something in them is probably not what was meant.
    Warning,
}

/// Every [`Diagnostic::code`] and what it means, sorted.
pub const CODES: &[(&str, &str)] = &[
    (
        "activations-mismatch",
        "an activation block and the weights that share a scale do not go into each other",
    ),
    ("bad-name", "a name that can't become an identifier"),
    ("bits-uncovered", "bits of the block that belong to no field"),
    ("body-compiler", "a body whose C or C++ compiler, or an option of it, is missing"),
    ("body-missing", "a hand-written kernel that is not where it is said to be"),
    ("body-refused", "a body that its C or C++ compiler refuses"),
    ("clamp-unrepresentable", "a quantizer can round to an integer that no code stands for"),
    ("codebook-corrupt", "a codebook's table does not agree with its description"),
    ("codebook-missing", "a codebook without its table"),
    ("conflicting-keys", "keys that do not go together"),
    ("count-mismatch", "a field's values and the block's elements do not go into each other"),
    ("coverage-hole", "no kernel for what `coverage.toml` requires"),
    ("digits-disagree", "digits of bytes that are described twice, or not at all"),
    ("duplicate-gguf", "two formats claim one GGUF type id"),
    ("duplicate-name", "two things of one kind with the same name, in specs or in generated code"),
    ("empty-file", "a spec file without content"),
    ("empty-shape-rule", "a shape rule that nothing obeys"),
    ("feature-arch", "a CPU feature that the ISA's architecture does not have"),
    ("field-beyond-block", "a field that reaches beyond the block"),
    ("field-overlap", "two fields, or two values of one, that share a bit"),
    ("file-too-large", "a file beyond 1 MiB"),
    ("import-not-bijective", "two values at one place of an import layout's tile, or a value outside it"),
    ("lookup-range", "weights whose sums a table lookup has no bytes for"),
    ("missing-doc", "a spec that does not say what it is (warning)"),
    ("missing-key", "a required key is missing"),
    ("no-prologue", "an activation format that states no prologue, where one is asked for"),
    ("no-quantizer", "quantize is asked for a format that states no quantizer"),
    ("no-scalar-variant", "an op without its reference"),
    ("no-tile", "a packing without room for a format's codes"),
    ("not-for-this-op", "a key or type that the op has no use for"),
    ("not-utf8", "a file that is not text"),
    ("out-of-range", "a value outside its bounds"),
    ("outer-factors", "row and tensor numbers that a product can't multiply in once, at its end"),
    ("packing-missing", "a tile without a packing"),
    ("packing-not-bijective", "two codes at one place of a tile, or a code outside it"),
    ("packing-order", "a packing in an order that a strategy or an algorithm can't read"),
    ("packing-size", "a tile's bytes do not agree with rows, k and bits"),
    ("parts-disagree", "parts of a field that do not make up its type"),
    ("quantizer-impossible", "a quantizer for a format that rounding alone can't make"),
    ("redundant-feature", "`requires` names what the ISA has anyway (warning)"),
    ("reference-shape", "a scalar variant with shape rules or a packing"),
    ("search-mismatch", "an algorithm for a format of another structure"),
    ("shape-mismatch", "`shape` and its companions differ in length"),
    ("shared-memory", "a tile that needs more shared memory than a CUDA block has"),
    ("sign-width", "a sign field that does not have one bit for each element"),
    ("sum-overflow", "integer sums that could leave 32 bits"),
    ("syntax", "not TOML"),
    ("threshold-without-sign", "a threshold where values are rounded by nearness"),
    ("tied-variants", "two variants that nothing decides between"),
    ("tile-rows", "a tile that does not go with its packing, with vectors or with warps"),
    ("too-many-levels", "more levels or entries than codes"),
    ("unit-not-power-of-two", "a unit that would round"),
    ("unknown-key", "a key that does not exist"),
    ("unknown-name", "a name or word that does not exist"),
    ("unquantized-gguf", "a format that claims the GGUF type id of a type without blocks"),
    ("unreachable-variant", "a variant that an earlier one always wins against"),
    ("unused-body", "a file of CUDA, C or C++ that no kernel names (warning)"),
    ("unused-field", "a field that nothing reads (warning)"),
    ("value-range", "integers beyond 16 bits, or weights' integers more than 255 apart"),
    ("wrong-field-type", "a field of a type that can't serve here"),
    ("wrong-type", "a value of the wrong TOML type"),
];

/// A second place that belongs to a diagnostic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// File, as in [`SourceFile::path`].
    pub path: String,
    /// Bytes of the file.
    pub span: Range<usize>,
    /// What is there.
    pub text: String,
}

/// One error or warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// A stable name of the kind of mistake, for example `unknown-key`; one of [`CODES`].
    pub code: &'static str,
    /// What is wrong, in one line.
    pub message: String,
    /// File, as in [`SourceFile::path`].
    pub path: String,
    /// Bytes of the file that the message is about.
    pub span: Range<usize>,
    /// A few words to stand under the span; may be empty.
    pub label: String,
    /// Further places.
    pub labels: Vec<Label>,
    /// What would make it right.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error about some bytes of a file.
    pub fn error(
        code: &'static str,
        path: impl Into<String>,
        span: impl Into<Range<usize>>,
        message: impl Into<String>,
    ) -> Diagnostic {
        debug_assert!(CODES.iter().any(|(known, _)| *known == code), "`{code}` is missing from CODES");
        Diagnostic {
            severity: Severity::Error,
            code,
            message: message.into(),
            path: path.into(),
            span: span.into(),
            label: String::new(),
            labels: Vec::new(),
            help: None,
        }
    }

    /// The same as a warning.
    pub fn warning(mut self) -> Diagnostic {
        self.severity = Severity::Warning;
        self
    }

    /// Sets the words under the span.
    pub fn label(mut self, label: impl Into<String>) -> Diagnostic {
        self.label = label.into();
        self
    }

    /// Adds a further place.
    pub fn also(
        mut self,
        path: impl Into<String>,
        span: impl Into<Range<usize>>,
        text: impl Into<String>,
    ) -> Diagnostic {
        self.labels.push(Label { path: path.into(), span: span.into(), text: text.into() });
        self
    }

    /// Sets the help line.
    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }

    /// 1-based line and column (in characters) where the span starts; (1, 1) if `sources` lacks the file
    /// or it is not text.
    pub fn line_column(&self, sources: &[SourceFile]) -> (usize, usize) {
        let text =
            sources.iter().find(|s| s.path == self.path).and_then(|s| std::str::from_utf8(&s.bytes).ok());
        text.map_or((1, 1), |text| line_column(text, self.span.start))
    }
}

/// 1-based line and column (in characters) of a byte offset; an offset beyond the end counts as the end.
pub fn line_column(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..floor_char(text, offset)];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

fn floor_char(text: &str, offset: usize) -> usize {
    let mut at = offset.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Collects diagnostics behind a shared reference, so that a walk over many files needs no plumbing.
#[derive(Debug, Default)]
pub(crate) struct Sink(RefCell<Vec<Diagnostic>>);

impl Sink {
    pub(crate) fn push(&self, diagnostic: Diagnostic) {
        self.0.borrow_mut().push(diagnostic);
    }

    /// Number of errors so far, to see whether a step reported any.
    pub(crate) fn errors(&self) -> usize {
        self.0.borrow().iter().filter(|d| d.severity == Severity::Error).count()
    }

    pub(crate) fn into_inner(self) -> Vec<Diagnostic> {
        self.0.into_inner()
    }
}

/// Diagnostics that are shown of many: each costs a walk through its file, and nobody reads more at once.
const MOST_SHOWN: usize = 100;

/// The diagnostics as text, in the manner of rustc, with a last line such as `found 3 errors`: the first hundred, and how many more there are.
/// Empty if there is nothing to say.
pub fn render(sources: &[SourceFile], diagnostics: &[Diagnostic], color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let mut out = String::new();
    for diagnostic in diagnostics.iter().take(MOST_SHOWN) {
        out.push_str(&renderer.render(&[group(sources, diagnostic)]));
        out.push_str("\n\n");
    }
    if diagnostics.len() > MOST_SHOWN {
        let _ = writeln!(out, "{} more are not shown", diagnostics.len() - MOST_SHOWN);
    }
    if !diagnostics.is_empty() {
        out.push_str(&summary(diagnostics));
        out.push('\n');
    }
    out
}

fn summary(diagnostics: &[Diagnostic]) -> String {
    let errors = diagnostics.iter().filter(|d| d.severity == Severity::Error).count();
    let warnings = diagnostics.len() - errors;
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    match (errors, warnings) {
        (_, 0) => format!("found {}", count(errors, "error")),
        (0, _) => format!("found {}", count(warnings, "warning")),
        _ => format!("found {} and {}", count(errors, "error"), count(warnings, "warning")),
    }
}

fn group<'a>(sources: &'a [SourceFile], diagnostic: &'a Diagnostic) -> Group<'a> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut group = Group::with_title(level.primary_title(&diagnostic.message).id(diagnostic.code));
    let mut paths = vec![&diagnostic.path];
    for label in &diagnostic.labels {
        if !paths.contains(&&label.path) {
            paths.push(&label.path);
        }
    }
    for path in paths {
        let source = sources.iter().find(|s| s.path == *path && !s.path.ends_with(".bin"));
        let Some(text) = source.and_then(|s| std::str::from_utf8(&s.bytes).ok()) else {
            group = group.element(Origin::path(path.as_str()));
            continue;
        };
        let mut snippet = Snippet::source(text).path(path.as_str());
        if diagnostic.path == *path {
            let mark = AnnotationKind::Primary.span(fit(text, &diagnostic.span));
            snippet = snippet.annotation(if diagnostic.label.is_empty() {
                mark
            } else {
                mark.label(&diagnostic.label)
            });
        }
        for label in diagnostic.labels.iter().filter(|l| l.path == *path) {
            snippet =
                snippet.annotation(AnnotationKind::Context.span(fit(text, &label.span)).label(&label.text));
        }
        group = group.element(snippet);
    }
    match &diagnostic.help {
        Some(help) => group.element(Level::HELP.message(help)),
        None => group,
    }
}

/// A span inside `text` that stays on one line: a whole table would bury the point in its lines.
fn fit(text: &str, span: &Range<usize>) -> Range<usize> {
    let start = floor_char(text, span.start);
    let mut end = floor_char(text, span.end.max(start));
    if let Some(line) = text[start..end].find('\n') {
        end = start + line;
    }
    start..end
}

/// Quotes names for a sentence: `` `a`, `b` ``.
pub(crate) fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
}

/// A name as it may stand in a message: cut if it is very long.
pub(crate) fn shown(name: &str) -> String {
    const LIMIT: usize = 60;
    match name.char_indices().nth(LIMIT) {
        Some((at, _)) => format!("{}...", name[..at].escape_debug()),
        None => name.escape_debug().to_string(),
    }
}
