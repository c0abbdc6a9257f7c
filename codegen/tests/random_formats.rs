//! Thousands of random formats through the checker and the compiler, without rustc: what the reference allows is
//! accepted and compiled, what is refused carries a code. That their kernels are right is for `tests/random_formats`.

#[path = "../../tests/choice/mod.rs"]
#[allow(dead_code, reason = "other tests are left out whole")]
mod choice;
#[path = "../../tests/random_formats/drawn/mod.rs"]
mod drawn;
#[path = "../../oracle/src/random.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod random;

use choice::everything;
use drawn::{Drawn, broken};
use gristmill_codegen::{Error, Options, compile, cuda, refusals};
use gristmill_spec::model::SpecSet;
use gristmill_spec::{CODES, Severity, SourceFile, check, render, shipped};
use random::Random;
use std::collections::BTreeMap;

/// Formats that are checked and compiled in one go.
const BATCH: usize = 20;

/// Of so many batches one is written as Rust and CUDA.
const WRITTEN: usize = 10;

/// The shipped kernels, packings and activation formats, without the shipped formats.
fn surroundings() -> Vec<SourceFile> {
    let folders = ["/packings/", "/activations/", "/kernels/", "/cuda.toml"];
    let mut sources = shipped().expect("the shipped specs are readable");
    sources.retain(|source| folders.iter().any(|folder| source.path.contains(folder)));
    sources
}

fn files(drawn: &Drawn) -> Vec<SourceFile> {
    let file = |(path, bytes)| SourceFile { path: format!("random/{path}"), bytes };
    drawn.files().into_iter().map(file).collect()
}

/// The codes that a format alone is refused with; none where it is accepted.
fn refusal(around: &[SourceFile], files: &[SourceFile]) -> (Vec<&'static str>, String) {
    let sources = [around, files].concat();
    let report = check(&sources);
    let errors = report.diagnostics.iter().filter(|d| d.severity == Severity::Error);
    let codes: Vec<&'static str> = errors.map(|d| d.code).collect();
    assert_eq!(report.set.is_none(), !codes.is_empty(), "a set or an error");
    (codes, render(&sources, &report.diagnostics, false))
}

fn text(drawn: &Drawn) -> String {
    String::from_utf8_lossy(&drawn.files()[0].1).into_owned()
}

fn said(errors: &[Error]) -> String {
    errors.iter().map(|error| format!("{error}\n")).collect()
}

/// Writes the kernels of accepted formats.
fn written(set: &SpecSet, accepted: &[Drawn]) -> Result<(), String> {
    let options = Options { package: "random".into(), compiler: "none".into(), ..Options::default() };
    let out = compile(set, &[], &options).map_err(|errors| said(&errors))?;
    let units = cuda::emit(set).map_err(|errors| said(&errors))?;
    for drawn in accepted {
        let has = |op: &str| out.kernels.iter().any(|k| k.name.starts_with(&format!("{op}.{}.", drawn.name)));
        let of_format = |listed: &cuda::CudaListed| set.formats[listed.format].name == drawn.name;
        if !has("dequantize") || !has("matmul") || !units.listed.iter().any(of_format) {
            return Err(format!("{}: kernels are missing", drawn.name));
        }
    }
    Ok(())
}

#[test]
fn what_the_reference_allows_is_accepted_and_compiled() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let seed = number("GRISTMILL_RANDOM_SEED").unwrap_or(14);
    let count = number("GRISTMILL_RANDOM_COUNT").unwrap_or(if everything() { 2000 } else { 100 }) as usize;
    let around = surroundings();
    let mut refused: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let (mut planned_right, mut compiled, mut wrong) = (0, 0, Vec::new());
    for first in (0..count).step_by(BATCH) {
        let mut accepted = Vec::new();
        for index in first..count.min(first + BATCH) {
            let drawn = Drawn::new(seed, index);
            let (codes, report) = refusal(&around, &files(&drawn));
            for code in &codes {
                assert!(CODES.iter().any(|(known, _)| known == code), "`{code}` is no code:\n{report}");
                let Some(doubt) = drawn.doubt else {
                    wrong.push(format!(
                        "format {index}: refused, though the reference allows it\n{report}\n{}",
                        text(&drawn)
                    ));
                    continue;
                };
                *refused.entry((doubt, code)).or_default() += 1;
            }
            if codes.is_empty() {
                accepted.push(drawn);
            }
        }
        let all: Vec<SourceFile> = around.iter().cloned().chain(accepted.iter().flat_map(files)).collect();
        let set = check(&all).set.expect("what is accepted alone is accepted beside others");
        // Every kernel is planned; those of some formats are also written, which takes longer.
        let planned = refusals(&set);
        if !planned.is_empty() {
            wrong.push(format!("accepted by the checker, refused by the compiler\n{}", said(&planned)));
        } else if (first / BATCH).is_multiple_of(WRITTEN) {
            match written(&set, &accepted) {
                Ok(()) => compiled += accepted.len(),
                Err(errors) => wrong.push(errors),
            }
        }
        planned_right += accepted.len();
    }
    println!(
        "seed {seed:#x}: {count} formats, {planned_right} accepted, the kernels of {compiled} of them written"
    );
    for ((doubt, code), times) in &refused {
        println!("{times:6} x {code}: {doubt}");
    }
    assert!(wrong.is_empty(), "seed {seed:#x}: {} finds\n{}", wrong.len(), wrong.join("\n----\n"));
    assert!(planned_right * 10 > count * 9, "only {planned_right} of {count} formats were accepted");
    assert!(compiled > 0, "nothing was written");
}

#[test]
fn a_mistake_is_refused_with_its_code() {
    let around = surroundings();
    let random = &mut Random::new(15, "mistakes");
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for index in 0..1500 {
        let drawn = Drawn::new(15, index);
        if drawn.doubt.is_some() {
            continue;
        }
        let Some(wrong) = broken(&drawn, random) else { continue };
        let mut files = files(&drawn);
        files[0].bytes = wrong.text.clone().into_bytes();
        let (codes, report) = refusal(&around, &files);
        assert!(codes.contains(&wrong.code), "format {index}: no `{}`\n{report}\n{}", wrong.code, wrong.text);
        *seen.entry(wrong.code).or_default() += 1;
    }
    println!("{seen:?}");
    assert_eq!(seen.len(), 16, "every kind of mistake was made");
}
