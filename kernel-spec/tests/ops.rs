//! What an op costs: the files that name one beside its own, by the example of `embed`.

use places::{are_in_the_walk, files_that_name};

mod places;

/// What `CONTRIBUTING.md` names in "Adding an op": a line each, or a few.
const SHARED: [&str; 8] = [
    "codegen/src/cuda/emit/mod.rs",
    "codegen/src/emit/blockwise/mod.rs",
    "kernel-spec/src/vocab/abi.rs",
    "kernel-spec/src/vocab/op.rs",
    "runtime/src/descriptions/registry/vouched.rs",
    "runtime/src/run/kernel/mod.rs",
    "src/cli/bench/blocks.rs",
    "src/cli/verify/mod.rs",
];

/// Whether a line of code has a word that is made of the op's name.
fn names_embed(line: &str) -> bool {
    let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.any(|word| word == "embed" || word.starts_with("embed_") || word.contains("Embed"))
}

#[test]
fn an_op_is_named_in_few_files_beside_its_own() -> Result<(), Box<dyn std::error::Error>> {
    let own = |path: &str| path.split('/').any(|part| part.trim_end_matches(".rs") == "embed");
    let named = files_that_name(own, names_embed)?;
    assert_eq!(named, SHARED, "files beside the op's own that name `embed`");
    are_in_the_walk(&named)
}

#[test]
fn letters_of_ops_differ() {
    use gristmill_spec::vocab::Op;
    let mut letters: Vec<char> = Op::ALL.iter().map(|op| op.info().letter).collect();
    letters.sort_unstable();
    letters.dedup();
    assert_eq!(letters.len(), Op::ALL.len());
    assert!(Op::ALL.iter().all(|op| !op.info().doc.is_empty() && !op.info().abi.alias.is_empty()));
}
