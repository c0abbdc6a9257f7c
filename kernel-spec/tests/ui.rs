//! What people see: every file (or folder of files) in `tests/ui` is checked together with the shipped
//! formats, activations, packings and codebooks, and the report must read as in the `.stderr` beside it.
//!
//! `BLESS=1 cargo test -p gristmill-spec --test ui` rewrites the `.stderr` files.

use gristmill_spec::{CODES, SourceFile, check, render, shipped};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn ui() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ui"))
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a folder of tests/ui");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// All files below a path, shown relative to `tests/`.
fn collect(path: &Path, into: &mut Vec<SourceFile>) {
    if path.is_dir() {
        entries(path).iter().for_each(|path| collect(path, into));
        return;
    }
    let shown = path.strip_prefix(ui()).expect("below tests/ui").to_str().expect("UTF-8").replace('\\', "/");
    into.push(SourceFile { path: format!("ui/{shown}"), bytes: std::fs::read(path).expect("readable") });
}

fn cases() -> Vec<(PathBuf, Vec<SourceFile>)> {
    let known = |path: &str| !path.contains("/kernels/") && !path.ends_with("coverage.toml");
    let base: Vec<SourceFile> = shipped().expect("readable").into_iter().filter(|s| known(&s.path)).collect();
    let paths = entries(&ui()).into_iter().filter(|path| path.extension().is_none_or(|e| e != "stderr"));
    let case = |path: PathBuf| {
        let mut sources = base.clone();
        collect(&path, &mut sources);
        (path, sources)
    };
    paths.map(case).collect()
}

#[test]
fn reports_read_as_blessed() {
    let bless = std::env::var_os("BLESS").is_some_and(|value| value == "1");
    let mut wrong = Vec::new();
    for (path, sources) in cases() {
        let report = check(&sources);
        let text = render(&sources, &report.diagnostics, false);
        assert!(!text.is_empty(), "{} is in tests/ui but nothing is wrong with it", path.display());
        let golden = path.with_extension("stderr");
        if bless {
            std::fs::write(&golden, &text).expect("tests/ui can be written");
            continue;
        }
        let want = std::fs::read_to_string(&golden).unwrap_or_default().replace("\r\n", "\n");
        if want != text {
            wrong.push(format!("--- {}\n{want}\n+++ now\n{text}", golden.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "{}\n{} reports changed; if they are better now, run\n\n    BLESS=1 cargo test -p gristmill-spec --test ui\n",
        wrong.join("\n"),
        wrong.len()
    );
}

/// A set exists exactly if there are no errors, and every span lies in its file.
#[test]
fn reports_are_consistent() {
    let mut codes = BTreeSet::new();
    for (path, sources) in cases() {
        let report = check(&sources);
        let errors = report.diagnostics.iter().any(|d| d.severity == gristmill_spec::Severity::Error);
        assert_eq!(report.set.is_none(), errors, "{}", path.display());
        for diagnostic in &report.diagnostics {
            codes.insert(diagnostic.code);
            let spans = std::iter::once((&diagnostic.path, &diagnostic.span));
            for (path, span) in spans.chain(diagnostic.labels.iter().map(|l| (&l.path, &l.span))) {
                let source = sources.iter().find(|s| s.path == *path).expect("a file of the set");
                assert!(span.start <= span.end && span.end <= source.bytes.len(), "{diagnostic:?}");
            }
        }
    }
    // A check that no case trips is a check that nobody has seen work.
    assert!(CODES.is_sorted());
    let untested: Vec<&str> =
        CODES.iter().map(|(code, _)| *code).filter(|code| !codes.contains(code)).collect();
    let elsewhere = [
        // codegen/tests/bodies.rs
        "body-compiler",
        "body-refused",
        // tests/read.rs
        "file-too-large",
        // The compiler's: codegen/tests/refusals.rs.
        "lookup-range",
        "not-utf8",
        "packing-order",
        "shared-memory",
    ];
    assert_eq!(untested, elsewhere);
}

/// The reference lists every code with its meaning.
#[test]
fn the_reference_lists_every_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/spec-reference.md");
    let text = std::fs::read_to_string(path).expect("docs/spec-reference.md");
    for (code, meaning) in CODES {
        assert!(
            text.contains(&format!("| `{code}` | {meaning} |")),
            "the reference lacks `{code}`: {meaning}"
        );
    }
}
