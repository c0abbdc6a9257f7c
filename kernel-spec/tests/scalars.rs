//! What a scalar type costs: the files that name one, by the example of `ue4m3-half`.

use std::fs;
use std::path::{Path, PathBuf};

/// Packages whose code knows of scalar types.
const PACKAGES: [&str; 7] = ["codegen", "kernel-spec", "kernels", "macros", "oracle", "runtime", "."];

/// What every type needs, as `CONTRIBUTING.md` says in "Adding a scalar type".
const NEEDED: [&str; 5] = [
    "codegen/src/lower/stored.rs",
    "kernel-spec/src/model/format.rs",
    "oracle/src/layout.rs",
    "src/cli/verify/inputs.rs",
    "src/cli/verify/scales.rs",
];

/// What it needs for more than being read: to lie in packings as stored, to be searched for, to share a super-block.
const MORE: [&str; 7] = [
    "codegen/src/emit/search.rs",
    "codegen/src/emit/terms.rs",
    "codegen/src/plan/superblock.rs",
    "codegen/src/plan/terms.rs",
    "kernel-spec/src/check/search.rs",
    "oracle/src/product.rs",
    "runtime/src/search/levels.rs",
];

/// Where the primitives of ISAs are: a module each.
const PRIMITIVES: &str = "runtime/src/simd/";

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

/// Whether a line of code names the type, as a variant or as a part of an identifier.
fn names_it(line: &str) -> bool {
    let code = line.trim_start();
    !code.starts_with("//") && (code.contains("Ue4m3Half") || code.contains("ue4m3"))
}

#[test]
fn a_scalar_type_is_named_in_few_files() -> Result<(), Box<dyn std::error::Error>> {
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
        if !path.starts_with(PRIMITIVES) && fs::read_to_string(&file)?.lines().any(names_it) {
            named.push(path);
        }
    }
    named.sort();
    let mut expected = [NEEDED.as_slice(), &MORE].concat();
    expected.sort_unstable();
    assert_eq!(named, expected, "files that name `ue4m3-half`");
    let walk = fs::read_to_string(root.join("CONTRIBUTING.md"))?;
    for file in expected {
        assert!(walk.contains(&format!("`{file}`")), "CONTRIBUTING.md does not name {file}");
    }
    Ok(())
}
