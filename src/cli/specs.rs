//! Specs from disk, together with those in the binary that they may refer to.

use super::error::CliError;
use gristmill::REGISTRY;
use gristmill_spec::{FOLDERS, SourceFile, read_path};
use std::path::Path;

/// Folder and file name of a path, as far as they tell two specs apart.
fn place(path: &str) -> (Option<&str>, &str) {
    let mut parts = path.rsplit(['/', '\\']);
    let name = parts.next().unwrap_or(path);
    (parts.next().filter(|folder| FOLDERS.contains(folder)), name)
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
/// spec takes the place of one of the same kind and name in the binary.
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
    let replaced = |source: &SourceFile| {
        let (folder, name) = place(&source.path);
        read.iter().map(|read| place(&read.path)).any(|(f, n)| n == name && (f.is_none() || f == folder))
    };
    let mut sources = built_in();
    sources.retain(|source| !replaced(source));
    let count = read.len();
    sources.append(&mut read);
    Ok((sources, count))
}
