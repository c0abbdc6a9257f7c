//! What the compiler refuses though the checks have passed: every file (or folder of files) in `tests/refusals` is compiled
//! with the shipped formats, activation formats, packings and codebooks, and the report must read as in the `.stderr` beside
//! it.
//!
//! `BLESS=1 cargo test -p gristmill-codegen --test refusals` rewrites the `.stderr` files.

use gristmill_codegen::builder::BuildError;
use gristmill_codegen::{Builder, Error, Options, compile, refusals};
use gristmill_spec::{CODES, SourceFile, check, render, shipped};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/refusals"))
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a folder of tests/refusals");
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
    let shown = path.strip_prefix(folder()).expect("below tests/refusals").to_str().expect("UTF-8");
    let path_shown = format!("refusals/{}", shown.replace('\\', "/"));
    into.push(SourceFile { path: path_shown, bytes: std::fs::read(path).expect("readable") });
}

fn cases() -> Vec<(PathBuf, Vec<SourceFile>)> {
    let known = |path: &str| !path.contains("/kernels/") && !path.ends_with("coverage.toml");
    let base: Vec<SourceFile> = shipped().expect("readable").into_iter().filter(|s| known(&s.path)).collect();
    let paths = entries(&folder()).into_iter().filter(|path| path.extension().is_none_or(|e| e != "stderr"));
    let case = |path: PathBuf| {
        let mut sources = base.clone();
        collect(&path, &mut sources);
        (path, sources)
    };
    paths.map(case).collect()
}

fn set(sources: &[SourceFile]) -> gristmill_spec::model::SpecSet {
    let report = check(sources);
    report.set.unwrap_or_else(|| panic!("the checks pass\n{}", render(sources, &report.diagnostics, false)))
}

fn rendered(sources: &[SourceFile], errors: Vec<Error>) -> String {
    match BuildError::refused(sources, errors) {
        BuildError::Specs(report) => report,
        defect => panic!("{defect}"),
    }
}

#[test]
fn reports_read_as_blessed() {
    let bless = std::env::var_os("BLESS").is_some_and(|value| value == "1");
    let mut wrong = Vec::new();
    for (path, sources) in cases() {
        let errors = refusals(&set(&sources));
        assert!(!errors.is_empty(), "{} is in tests/refusals but is compiled", path.display());
        let text = rendered(&sources, errors);
        let golden = path.with_extension("stderr");
        if bless {
            std::fs::write(&golden, &text).expect("tests/refusals can be written");
            continue;
        }
        let want = std::fs::read_to_string(&golden).unwrap_or_default().replace("\r\n", "\n");
        if want != text {
            wrong.push(format!("--- {}\n{want}\n+++ now\n{text}", golden.display()));
        }
    }
    assert!(wrong.is_empty(), "{}\n{} reports changed", wrong.join("\n"), wrong.len());
}

/// What is refused without code is what stops the code from being written, and the other way round.
#[test]
fn plans_alone_find_what_compiling_finds() {
    for (path, sources) in cases() {
        let set = set(&sources);
        let mut found = compile(&set, &sources, &Options::default()).err().unwrap_or_default();
        found.extend(gristmill_codegen::cuda::emit(&set).err().unwrap_or_default());
        found.dedup();
        assert_eq!(refusals(&set), found, "{}", path.display());
    }
    let all = shipped().expect("readable");
    assert_eq!(refusals(&set(&all)), [], "everything that is shipped can be compiled");
}

/// Each code of the compiler has a case, and each error a place in a file of the case.
#[test]
fn every_refusal_has_a_code_and_a_place() {
    let mut codes = BTreeSet::new();
    for (path, sources) in cases() {
        for error in refusals(&set(&sources)) {
            let Error::Spec(diagnostic) = error else { panic!("{}: {error}", path.display()) };
            codes.insert(diagnostic.code);
            assert!(CODES.iter().any(|(code, _)| *code == diagnostic.code));
            let source = sources.iter().find(|source| source.path == diagnostic.path).expect("a file");
            assert!(source.path.starts_with("refusals/"), "{diagnostic:?}");
            let place = &source.bytes[diagnostic.span.clone()];
            assert!(place.starts_with(b"[[cpu]]") || place.starts_with(b"[[cuda]]"), "{diagnostic:?}");
            assert!(diagnostic.help.is_some(), "{diagnostic:?}");
        }
    }
    let all = ["lookup-range", "no-tile", "packing-order", "shared-memory", "sum-overflow", "tile-rows"];
    assert_eq!(codes.into_iter().collect::<Vec<_>>(), all);
}

/// The shipped kernels with one format, which has an f16 scale and codes at its place.
fn with_format(elements: u32, bytes: u32, ty: &str, rest: &str) -> Vec<SourceFile> {
    let left_out = ["/formats/", "/imports/", "coverage.toml"];
    let mut sources = shipped().expect("readable");
    sources.retain(|source| !left_out.iter().any(|part| source.path.contains(part)));
    let (head, value) = rest.split_once("[value]").expect("a value");
    let width = &ty[1..];
    let text = format!(
        "doc = \"d\"\nblock = {{ elements = {elements}, bytes = {bytes} }}\n{head}\n[[field]]\nname = \"d\"\ntype = \"f16\"\n\n\
         [[field]]\nname = \"q\"\ntype = \"{ty}\"\nlayout = {{ shape = [{elements}], stride = [{width}], offset = 16 }}\n\n\
         [value]\ncode = \"q\"\nscale = \"d\"\n{value}"
    );
    sources.push(SourceFile { path: "mine/formats/mine.toml".to_owned(), bytes: text.into_bytes() });
    sources
}

/// What the reference allows has products with the shipped kernels, up to its bounds.
#[test]
fn shipped_kernels_serve_formats_at_the_bounds() {
    for (what, sources) in [
        (
            "sums of 128 * 16001 * 1024",
            with_format(1024, 130, "u1", "activations = \"int8_row\"\n[value]zero = -16000\n"),
        ),
        ("blocks of 65536", with_format(65536, 16386, "u2", "[value]zero = 2\n")),
        ("three integers in codes of nine bits", with_format(32, 38, "u9", "[value]levels = [-1, 0, 1]\n")),
        (
            "far integers in codes of sixteen bits",
            with_format(32, 66, "u16", "[value]levels = [-90, 0, 110]\n"),
        ),
    ] {
        let errors = refusals(&set(&sources));
        assert!(errors.is_empty(), "{what}\n{}", rendered(&sources, errors));
    }
}

/// What is refused of a format is said once, with the format's place beside that of a shipped variant.
#[test]
fn refusals_of_a_format_point_at_it_once() {
    // A run so long that no lookup has tables for it.
    let mut lookups = with_format(65536, 8194, "u1", "activations = \"int8_row\"\n[value]zero = 1\n");
    let kernel = |label: &str, isa: &str, rows: u32| {
        format!(
            "[[cpu]]\nisa = \"{isa}\"\nname = \"{label}\"\ndefault = false\npacking = \"r64b8\"\nstrategy = \"lookup\"\n\
             tile = {{ rows = {rows}, tokens = 1 }}\n"
        )
    };
    let text = format!(
        "doc = \"l\"\nop = \"matmul\"\ninput = [\"f32\"]\n{}{}{}",
        kernel("one", "avx2", 64),
        kernel("two", "sse4.1", 16),
        kernel("three", "avx512", 64)
    );
    lookups.push(SourceFile { path: "mine/kernels/sums.toml".to_owned(), bytes: text.into_bytes() });
    let report = rendered(&lookups, refusals(&set(&lookups)));
    assert!(report.contains("^^^^^^^ this variant, and 2 more"), "{report}");
    assert!(report.contains("mine/formats/mine.toml:1:1"), "{report}");
    assert!(report.contains("the format"), "{report}");
    assert!(report.ends_with("found 1 error\n"), "{report}");
}

/// Rows of a product that quantizes are whole blocks of activations, also where those are longer than the weights' blocks.
#[test]
fn fused_products_take_whole_blocks_of_activations() {
    let sources = with_format(32, 18, "u4", "activations = \"q8_k\"\n[value]zero = 8\n");
    let emitted = gristmill_codegen::cuda::emit(&set(&sources)).expect("plans");
    let fused: Vec<u64> = emitted
        .listed
        .iter()
        .filter(|listed| listed.fused)
        .map(|listed| listed.shape.k.multiple_of)
        .collect();
    assert!(!fused.is_empty() && fused.iter().all(|k| *k == 256), "{fused:?}");
}

/// A build script shows refusals as it shows mistakes, and warnings with their place and code.
#[test]
fn builds_show_the_place_and_the_code() {
    let builder = |texts: &[(&str, &str)]| {
        let source = |(path, text): &(&str, &str)| SourceFile {
            path: (*path).to_owned(),
            bytes: text.as_bytes().to_vec(),
        };
        Builder::from_memory(shipped().expect("readable")).with_sources(texts.iter().map(source))
    };
    // Beside the shipped kernels, which have the reference.
    let kernel = "doc = \"k\"\nop = \"matmul\"\nformats = [\"mine\"]\ninput = [\"f32\"]\n\n[[cpu]]\nisa = \"avx512\"\n\
        default = false\npacking = \"r16k4\"\ntile = { rows = 8, tokens = 1 }\n";
    let format = "doc = \"m\"\nblock = { elements = 32, bytes = 18 }\n\n\
        [[field]]\nname = \"d\"\ntype = \"f16\"\n\n\
        [[field]]\nname = \"q\"\ntype = \"u4\"\nlayout = { shape = [32], stride = [4], offset = 16 }\n\n\
        [value]\ncode = \"q\"\nzero = 8\n";
    let scaled = format!("{format}scale = \"d\"\n");
    let wrong = builder(&[("mine/formats/mine.toml", &scaled), ("mine/kernels/narrow.toml", kernel)]);
    let error = wrong.compile(Path::new(""), "test".into(), "test".into()).expect_err("refused").to_string();
    assert!(error.starts_with("error[tile-rows]: 8 rows at once"), "{error}");
    assert!(error.contains("--> mine/kernels/narrow.toml:"), "{error}");
    assert!(error.contains("^^^^^^^ this variant"), "{error}");
    let built =
        builder(&[("mine/formats/mine.toml", format)]).compile(Path::new(""), "test".into(), "test".into());
    let (_, _, warnings) = built.expect("an unused field is no error");
    assert_eq!(
        warnings,
        [
            "mine/formats/mine.toml:5:8: [unused-field] field `d` is never used; use it in `[value]`, or declare its bits `unused`"
        ]
    );
}
