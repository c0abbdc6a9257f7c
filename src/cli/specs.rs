//! Specs from disk, together with those in the binary that they may refer to.

use super::error::CliError;
use gristmill::REGISTRY;
use gristmill_spec::{SourceFile, read_path};
use std::path::{Path, PathBuf};

/// Whether a file that was read is the one that a spec of the binary was compiled from: `kernel-spec/formats/q4_0.toml` of a checkout,
/// or what the build was given by `GRISTMILL_EXTRA_SPECS`. A file of the same name elsewhere is another spec, which no build takes
/// beside it.
fn is_source_of(read: &str, built_in: &str) -> bool {
    let real = |path: &str| Path::new(path).canonicalize().unwrap_or_else(|_| PathBuf::from(path));
    let read = real(read);
    read.ends_with(built_in) || read == real(built_in)
}

/// The specs in this binary.
pub fn built_in() -> Vec<SourceFile> {
    let source = |source: &gristmill::registry::Source| SourceFile {
        path: source.path.to_owned(),
        bytes: source.bytes.to_vec(),
    };
    REGISTRY.sources.iter().map(source).collect()
}

/// Reads files and folders. Returns all specs, those in the binary first, and how many are read ones; a read
/// spec takes the place of the one in the binary that was compiled from the same file.
///
/// # Errors
/// If a path can't be read.
pub fn with_built_in(paths: &[impl AsRef<Path>]) -> Result<(Vec<SourceFile>, usize), CliError> {
    let mut read: Vec<SourceFile> = Vec::new();
    for path in paths {
        for source in read_path(path.as_ref())? {
            if !read.iter().any(|known| known.path == source.path) {
                read.push(source);
            }
        }
    }
    let replaced = |source: &SourceFile| read.iter().any(|read| is_source_of(&read.path, &source.path));
    let mut sources = built_in();
    sources.retain(|source| !replaced(source));
    let count = read.len();
    sources.append(&mut read);
    Ok((sources, count))
}
