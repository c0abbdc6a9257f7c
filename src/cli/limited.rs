//! Files that are read as a whole, as long as they are no longer than what they should hold can be: a device has no end.

use super::error::CliError;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The bytes of a file that holds `what` (with its article).
///
/// # Errors
/// [`CliError::File`]; [`CliError::Usage`] beyond `most` bytes.
pub fn read(path: &Path, most: u64, what: &str) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(CliError::file("read", path))?;
    // One byte more tells "too large" where the length is not known beforehand.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(CliError::file("read", path))?;
    match bytes.len() as u64 > most {
        false => Ok(bytes),
        true => Err(CliError::usage(
            format!("`{}` has more than {most} bytes, too many for {what}", path.display()),
            "was another file meant?",
        )),
    }
}

/// The same as text.
///
/// # Errors
/// As [`read`], and where it is not UTF-8.
pub fn read_text(path: &Path, most: u64, what: &str) -> Result<String, CliError> {
    String::from_utf8(read(path, most, what)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let what = format!("`{}` is not text: byte {at} is not UTF-8", path.display());
        CliError::usage(what, "was another file meant?")
    })
}
