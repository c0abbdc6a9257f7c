//! Files in the making.

use std::io;
use std::path::Path;
use tempfile::NamedTempFile;

/// A new file in the folder of `path`, which takes its place once it is whole. Dropped before, it leaves nothing behind.
pub(crate) fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".gristmill-").suffix(".part");
    // A temporary file is private by default; the finished one is a file like any other.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}
