//! Every generated CUDA kernel in the emulator.
#![cfg(feature = "cli")]

#[path = "cuda/support/mod.rs"]
mod support;

use gristmill::REGISTRY;
use gristmill_codegen::cuda::{DEVICE_HEADER, Emitted, emit};
use gristmill_spec::{SourceFile, check};
use support::{build, can_run};

/// What the compiler emits from the specs of this build.
fn emitted() -> Emitted {
    let sources: Vec<SourceFile> = REGISTRY
        .sources
        .iter()
        .map(|source| SourceFile { path: source.path.to_owned(), bytes: source.bytes.to_vec() })
        .collect();
    let set = check(&sources).set.expect("the specs of this build check");
    emit(&set).unwrap_or_else(|errors| panic!("{errors:?}"))
}

#[test]
fn every_unit_compiles_for_the_emulator() {
    if !can_run("compiling all units") {
        return;
    }
    let mut failed = Vec::new();
    let emitted = emitted();
    for unit in &emitted.units {
        let text = unit.text.replace(DEVICE_HEADER, "");
        if let Err(said) = build(&unit.name, &text) {
            failed.push(format!("{}: {said}", unit.name));
        }
    }
    assert!(failed.is_empty(), "{} of {} units:\n{}", failed.len(), emitted.units.len(), failed.join("\n"));
}
