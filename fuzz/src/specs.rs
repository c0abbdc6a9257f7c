//! Spec files through the checker and, where it accepts them, through the compiler, up to Rust text that parses.
//!
//! An input is some files, each behind a line `#@ PATH`; without one it is a format. They join the shipped activations,
//! packings, codebooks and kernels, and take the place of those of the same path.

use crate::seeds::{Seed, files};
use gristmill_codegen::{Error, Options, compile};
use gristmill_spec::{SourceFile, check, render, shipped};
use std::sync::LazyLock;

const MARK: &str = "#@ ";

/// What every input is checked with.
static BASE: LazyLock<Vec<SourceFile>> = LazyLock::new(|| {
    let mut base = shipped().expect("the specs of the repository");
    base.retain(|file| {
        !["/formats/", "/imports/"].iter().any(|folder| file.path.contains(folder))
            && !file.path.ends_with("coverage.toml")
    });
    base
});

/// The files of an input.
fn parse(data: &[u8]) -> Vec<SourceFile> {
    let mut files: Vec<SourceFile> = Vec::new();
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        let path = line.strip_prefix(MARK.as_bytes()).and_then(|path| std::str::from_utf8(path).ok());
        match (path, files.last_mut()) {
            (Some(path), _) => files.push(SourceFile { path: path.trim().to_owned(), bytes: Vec::new() }),
            (None, Some(file)) => file.bytes.extend(line),
            (None, None) => {
                files.push(SourceFile { path: "formats/fuzz.toml".to_owned(), bytes: line.to_vec() });
            }
        }
    }
    files
}

/// Never panics, whatever the text; what is accepted compiles to Rust.
pub fn run(data: &[u8]) {
    let files = parse(data);
    let mut sources = BASE.clone();
    sources.retain(|known| files.iter().all(|file| file.path != known.path));
    for file in files {
        // Two files of one path can't be told apart by a report; the folder they are read from has one.
        if sources.iter().all(|known| known.path != file.path) {
            sources.push(file);
        }
    }
    let report = check(&sources);
    let text = render(&sources, &report.diagnostics, false);
    for diagnostic in &report.diagnostics {
        let source = sources.iter().find(|source| source.path == diagnostic.path);
        let source = source.expect("a report is about a file that was given");
        assert!(diagnostic.span.start <= diagnostic.span.end && diagnostic.span.end <= source.bytes.len());
    }
    let Some(set) = report.set else {
        return assert!(text.contains("error"), "nothing is accepted, and nothing is said: {text}");
    };
    if let Err(errors) = compile(&set, &sources, &Options::default()) {
        assert!(!errors.is_empty());
        for error in errors {
            assert!(!matches!(error, Error::Emitted { .. }), "{error}");
        }
    }
}

/// Shipped formats and kernels, the formats that tests invent, and every bad spec of the tests.
pub fn seeds() -> Vec<Seed> {
    let one = |path: String, bytes: &[u8]| [format!("{MARK}{path}\n").as_bytes(), bytes].concat();
    let mut seeds = Vec::new();
    for file in shipped().expect("the specs of the repository") {
        if file.path.ends_with(".toml") && !file.path.ends_with("coverage.toml") {
            seeds.push((file.path.clone(), one(file.path, &file.bytes)));
        }
    }
    for (folder, place) in [
        ("kernel-spec/tests/ui", "ui"),
        ("tests/invented/specs/formats", "formats"),
        ("tests/invented/specs/imports", "imports"),
        ("tests/invented/specs/kernels", "kernels"),
        ("examples/downstream/kernels/formats", "formats"),
    ] {
        for (name, bytes) in files(folder) {
            if name.ends_with(".toml") {
                seeds.push((format!("{folder}/{name}"), one(format!("{place}/{name}"), &bytes)));
            }
        }
    }
    seeds
}
