//! Whether an open file is still the one of its path.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Whether it is, and not one that was removed, in whose place there may be another.
pub fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(there) => {
            #[cfg(unix)]
            {
                use std::os::unix::fs::MetadataExt;
                let open = file.metadata()?;
                Ok((there.dev(), there.ino()) == (open.dev(), open.ino()))
            }
            // Elsewhere a file that is open can't be removed.
            #[cfg(not(unix))]
            {
                let _ = (file, there);
                Ok(true)
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
