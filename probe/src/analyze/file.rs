//! Reading a whole file, and telling one state of it from another.

use crate::error::Error;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;
use std::time::SystemTime;

/// No file of more bytes is read. CUDA's largest libraries have about 1 GiB.
pub const MOST_BYTES: u64 = 4 << 30;

/// What tells one state of a file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Device and file number, where the system has them.
    number: Option<(u64, u64)>,
    bytes: u64,
    modified: Option<SystemTime>,
    /// When anything about the file was changed, its name and its times included, where the system keeps that:
    /// unlike the time of modification it can't be set back.
    changed: Option<(i64, i64)>,
}

impl Identity {
    /// The state of the file behind a path.
    pub(crate) fn of(path: &Path) -> Result<Identity, Error> {
        std::fs::metadata(path).map(|metadata| Identity::from(&metadata)).map_err(Error::file("read", path))
    }

    /// Whether both are the same file, whatever it holds. Where the system has no file numbers, whether its size and
    /// time are the same.
    pub(crate) fn is_same_file(&self, other: &Identity) -> bool {
        match (self.number, other.number) {
            (Some(one), Some(two)) => one == two,
            _ => self == other,
        }
    }

    /// Its size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Identity {
        let (number, changed) = numbers(metadata);
        Identity { number, bytes: metadata.len(), modified: metadata.modified().ok(), changed }
    }
}

/// The device and the number of a file on it, where the system has them.
type Number = Option<(u64, u64)>;

/// When a file's metadata last changed, in seconds and nanoseconds, where the system says it.
type Change = Option<(i64, i64)>;

#[cfg(unix)]
fn numbers(metadata: &Metadata) -> (Number, Change) {
    use std::os::unix::fs::MetadataExt;
    (Some((metadata.dev(), metadata.ino())), Some((metadata.ctime(), metadata.ctime_nsec())))
}

#[cfg(not(unix))]
fn numbers(_: &Metadata) -> (Number, Change) {
    (None, None)
}

/// The bytes of a file, and the state it was in both before and after it was read.
///
/// # Errors
/// [`Error::NotALibrary`] for folders, devices and pipes, which may have no end; [`Error::TooLarge`];
/// [`Error::Changed`] for a file that was written meanwhile; or what the system says.
pub(crate) fn read(path: &Path, most: u64) -> Result<(Vec<u8>, Identity), Error> {
    let not = |what: &str| Error::NotALibrary { path: path.to_owned(), what: what.to_owned() };
    let refuse = |metadata: &Metadata| {
        if metadata.is_dir() {
            Err(not("a folder"))
        } else if !metadata.is_file() {
            Err(not("a device, a pipe or a socket"))
        } else if metadata.len() > most {
            Err(Error::TooLarge { path: path.to_owned(), found: metadata.len(), most })
        } else {
            Ok(())
        }
    };
    // Opening a pipe would wait for somebody who writes.
    refuse(&std::fs::metadata(path).map_err(Error::file("read", path))?)?;
    let mut file = File::open(path).map_err(Error::file("read", path))?;
    let before = file.metadata().map_err(Error::file("read", path))?;
    refuse(&before)?;
    let mut data = Vec::new();
    (&mut file).take(most.saturating_add(1)).read_to_end(&mut data).map_err(Error::file("read", path))?;
    let after = file.metadata().map_err(Error::file("read", path))?;
    let identity = Identity::from(&before);
    if identity != Identity::from(&after) || data.len() as u64 != identity.bytes {
        return Err(Error::Changed { path: path.to_owned() });
    }
    Ok((data, identity))
}
