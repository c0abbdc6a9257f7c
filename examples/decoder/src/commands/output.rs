//! Where the command prints, and files that it writes besides.

use crate::error::Error;
use gristmill::replace::{Replacement, is_same_file};
use std::io::{IsTerminal, StdoutLock, Write};
use std::path::{Path, PathBuf};

/// Where a command prints.
pub trait Out: Write {
    /// Whether a terminal reads it, which obeys control characters.
    fn is_terminal(&self) -> bool;
}

impl Out for StdoutLock<'_> {
    fn is_terminal(&self) -> bool {
        IsTerminal::is_terminal(self)
    }
}

/// A text file that is written when the work is done. It is begun before, so that a place that can't be written to is told
/// before the work and not behind it; what stands there stays until the new file is whole.
pub(super) struct TextFile {
    path: PathBuf,
    file: Replacement,
}

impl TextFile {
    /// Begins the file that `option` asks for.
    ///
    /// # Errors
    /// It is one of `inputs`; nothing can be written there.
    pub(super) fn begin(option: &str, path: &Path, inputs: &[&Path]) -> Result<TextFile, Error> {
        if inputs.iter().any(|input| is_same_file(input, path)) {
            return Err(Error::Asked(format!(
                "{option} {}: this is a file that is read, and would be overwritten\n  help: another name",
                path.display()
            )));
        }
        Ok(TextFile { path: path.to_owned(), file: Replacement::begin(path)? })
    }

    /// Writes all of it and puts it in its place.
    ///
    /// # Errors
    /// The disk is full, or the like; what stood there is untouched.
    pub(super) fn finish(mut self, text: &str) -> Result<(), Error> {
        let written = self.file.file().write_all(text.as_bytes());
        written.map_err(|source| Error::Io { action: "write", path: self.path, source })?;
        Ok(self.file.finish()?)
    }
}
