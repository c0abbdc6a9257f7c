//! Which files are opened at all.

use std::fs::Metadata;
use std::io;
use std::path::Path;

/// What is said of a path that names no regular file.
pub(crate) const NOT_REGULAR: &str = "it is no regular file";

/// What the system says of a regular file, which is not opened: a pipe that nobody writes to would be waited for. `None` of anything else.
///
/// # Errors
/// What the system says where there is nothing.
pub(crate) fn metadata(path: &Path) -> io::Result<Option<Metadata>> {
    Ok(Some(std::fs::metadata(path)?).filter(Metadata::is_file))
}
