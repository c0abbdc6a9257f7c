//! What a library file holds, read from its tables. Nothing of it is loaded or run.

mod analysis;
mod archive;
mod at;
mod budget;
mod builder;
mod facts;
mod file;
mod image;
mod kind;
mod linked;
mod read;
mod single;
mod trie;

pub use analysis::Analysis;
pub use facts::{CpuVariant, Facts};
pub(crate) use file::Identity;
pub use file::MOST_BYTES;
pub use image::{Image, Needed, Symbol};
pub use kind::{Arch, Container, Kind};

use crate::error::Error;
use std::path::Path;

/// Reads what a file holds.
///
/// The whole file is read into memory first, so that what is analysed can't change meanwhile. Time and memory are
/// bounded by a multiple of its size, whatever it holds.
///
/// # Errors
/// A file that can't be read, is larger than [`MOST_BYTES`], is damaged, truncated, stripped of all symbols, or no
/// library.
pub fn analyze(path: impl AsRef<Path>) -> Result<Analysis, Error> {
    analyze_at_most(path.as_ref(), MOST_BYTES).map(|(analysis, _)| analysis)
}

/// The same with another limit of its size in bytes, and the state that the file was in.
pub(crate) fn analyze_at_most(path: &Path, most: u64) -> Result<(Analysis, Identity), Error> {
    let (data, identity) = file::read(path, most)?;
    Ok((analyze_bytes(path, &data)?, identity))
}

/// Reads what the bytes of a file hold; `path` is what errors and the result call it.
///
/// # Errors
/// Like [`analyze`], but for reading.
pub fn analyze_bytes(path: &Path, data: &[u8]) -> Result<Analysis, Error> {
    read::file(path, data)
}
