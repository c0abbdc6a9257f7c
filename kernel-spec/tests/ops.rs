//! What an op costs: the files that name one beside its own, by the example of `embed`.

use std::fs;
use std::path::{Path, PathBuf};

/// Packages whose code knows of ops.
const PACKAGES: [&str; 7] = ["codegen", "kernel-spec", "kernels", "macros", "oracle", "runtime", "."];

/// What `CONTRIBUTING.md` names in "Adding an op": a line each, or a few.
const SHARED: [&str; 8] = [
    "codegen/src/cuda/emit/mod.rs",
    "codegen/src/emit/blockwise/mod.rs",
    "kernel-spec/src/vocab/abi.rs",
    "kernel-spec/src/vocab/op.rs",
    "runtime/src/kernel/mod.rs",
    "runtime/src/registry/vouched.rs",
    "src/cli/bench/blocks.rs",
    "src/cli/verify/mod.rs",
];

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// Whether a line of code has a word that is made of the op's name.
fn names_embed(line: &str) -> bool {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    !line.trim_start().starts_with("//") && { words }
        .any(|word| word == "embed" || word.starts_with("embed_") || word.contains("Embed"))
}

#[test]
fn an_op_is_named_in_few_files_beside_its_own() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the package stands in its workspace")?;
    let mut files = Vec::new();
    for package in PACKAGES {
        rust_files(&root.join(package).join("src"), &mut files)?;
    }
    assert!(files.len() > 300, "only {} files were found", files.len());
    let mut named = Vec::new();
    for file in files {
        let path = file.strip_prefix(root)?;
        let path = path.strip_prefix(".").unwrap_or(path).to_string_lossy().replace('\\', "/");
        let own = path.split('/').any(|part| part.trim_end_matches(".rs") == "embed");
        if !own && fs::read_to_string(&file)?.lines().any(names_embed) {
            named.push(path);
        }
    }
    named.sort();
    assert_eq!(named, SHARED, "files beside the op's own that name `embed`");
    let walk = fs::read_to_string(root.join("CONTRIBUTING.md"))?;
    for file in SHARED {
        assert!(walk.contains(&format!("`{file}`")), "CONTRIBUTING.md does not name {file}");
    }
    Ok(())
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
