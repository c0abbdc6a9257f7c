//! What a crate that names some shipped formats gets compiled: those, the quantization of activations, and nothing of other formats.

use gristmill_codegen::{Builder, Compiled};
use gristmill_spec::model::SpecSet;
use gristmill_spec::{check, shipped};
use std::collections::BTreeSet;
use std::path::Path;

const NAMED: [&str; 3] = ["i2_s", "q4_0", "q4_k"];

fn compiled(builder: &Builder) -> (Compiled, SpecSet) {
    let built = builder.compile(Path::new(""), "test".into(), "test".into());
    let (compiled, set, _) = built.unwrap_or_else(|error| panic!("{error}"));
    (compiled, set)
}

#[test]
fn a_crate_that_names_three_formats_compiles_these() {
    let sources = shipped().expect("readable");
    let all = check(&sources).set.expect("the shipped specs have no mistakes");
    let (compiled, set) = compiled(&Builder::from_memory(sources).with_shipped(NAMED));
    assert_eq!(set.formats.iter().map(|format| format.name.as_str()).collect::<Vec<_>>(), NAMED);
    assert!(set.imports.is_empty());
    // Each kernel is of one of them, or quantizes activations that one of them multiplies with.
    let used: BTreeSet<&str> =
        set.formats.iter().map(|format| all.activations[format.activations].name.as_str()).collect();
    for kernel in &compiled.kernels {
        let of = kernel.name.split('.').nth(1).unwrap_or_default();
        assert!(NAMED.contains(&of) || used.contains(of), "{}", kernel.name);
    }
    for named in NAMED {
        let scalar = format!("matmul.{named}.scalar");
        assert!(compiled.kernels.iter().any(|kernel| kernel.name == scalar), "{scalar}");
    }
    // Nothing of the others is in the text, neither functions nor tables.
    let words: BTreeSet<&str> =
        compiled.code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    let names = all.formats.iter().map(|format| format.name.as_str());
    let others: Vec<&str> = names.filter(|name| !NAMED.contains(name) && !used.contains(name)).collect();
    assert!(others.len() > 20, "{others:?}");
    for other in others {
        assert!(!words.contains(other), "{other} is in the code");
    }
}
