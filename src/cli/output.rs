//! Files that commands write: never over an input, and never half.

use super::error::CliError;
use gristmill::replace::{Replacement, is_same_file};
use std::io::Write;
use std::path::Path;

/// Refuses an output that is one of the inputs, by whatever name.
///
/// # Errors
/// [`CliError::Usage`] with both names.
pub fn spares(output: &Path, inputs: &[&Path]) -> Result<(), CliError> {
    match inputs.iter().find(|input| is_same_file(output, input)) {
        None => Ok(()),
        Some(input) => Err(CliError::usage(
            format!("the output `{}` and the input `{}` are one file", output.display(), input.display()),
            "name another file for the output; nothing was written",
        )),
    }
}

/// Writes a file as a whole, or leaves what was there.
///
/// # Errors
/// [`CliError::File`], [`CliError::Replace`].
pub fn write(output: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let mut new = Replacement::begin(output)?;
    new.file().write_all(bytes).map_err(CliError::file("write", output))?;
    Ok(new.finish()?)
}
