//! The files of the workspace that name something: what its next kind costs.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Packages whose code may.
const PACKAGES: [&str; 7] = ["codegen", "kernel-spec", "kernels", "macros", "oracle", "runtime", "."];

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

fn root() -> Result<&'static Path, &'static str> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the package stands in its workspace")
}

/// The files, those apart for which `own` is true, with a line of code, no comment, that names it.
pub fn files_that_name(
    own: fn(&str) -> bool,
    names_it: fn(&str) -> bool,
) -> Result<Vec<String>, Box<dyn Error>> {
    let root = root()?;
    let mut files = Vec::new();
    for package in PACKAGES {
        rust_files(&root.join(package).join("src"), &mut files)?;
    }
    assert!(files.len() > 300, "only {} files were found", files.len());
    let mut named = Vec::new();
    for file in files {
        let path = file.strip_prefix(root)?;
        let path = path.strip_prefix(".").unwrap_or(path).to_string_lossy().replace('\\', "/");
        let text = fs::read_to_string(&file)?;
        let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        if !own(&path) && code.any(names_it) {
            named.push(path);
        }
    }
    named.sort();
    Ok(named)
}

/// Fails unless CONTRIBUTING.md, which walks through them, names each of the files.
pub fn are_in_the_walk(files: &[String]) -> Result<(), Box<dyn Error>> {
    let walk = fs::read_to_string(root()?.join("CONTRIBUTING.md"))?;
    for file in files {
        assert!(walk.contains(&format!("`{file}`")), "CONTRIBUTING.md does not name {file}");
    }
    Ok(())
}
