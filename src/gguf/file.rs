//! The bytes behind a checked file: a slice in memory, or a file that is read where somebody asks.

use super::error::{GgufError, NoDataReason, Problem};
use std::borrow::Cow;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Longest header that is read into memory, in bytes: many times what the largest vocabularies take, and little enough that a
/// damaged file can't fill the memory.
pub(super) const MAX_HEADER: u64 = 1 << 30;

/// What new memory is cleared with before bytes are read into it, piece by piece: so much is still in the processor's cache when it is written
/// the second time.
static CLEAR: [u8; 1 << 16] = [0; 1 << 16];

/// What holds the bytes of a file: everything that lends a slice, and [`FileBytes`].
pub trait Store: sealed::Sealed {
    /// Where the bytes are.
    #[doc(hidden)]
    fn contents(&self) -> Contents<'_>;
}

mod sealed {
    pub trait Sealed {}
    impl<B: AsRef<[u8]>> Sealed for B {}
    impl Sealed for super::FileBytes {}
}

impl<B: AsRef<[u8]>> Store for B {
    fn contents(&self) -> Contents<'_> {
        Contents::Memory(self.as_ref())
    }
}

impl Store for FileBytes {
    fn contents(&self) -> Contents<'_> {
        match &self.0 {
            Kind::Read(file) => Contents::File(file),
            Kind::Mapped(map) => Contents::Memory(map),
        }
    }
}

/// The bytes of a file on the disk: read where they are asked for, or mapped into memory.
pub struct FileBytes(Kind);

enum Kind {
    Read(Partly),
    Mapped(memmap2::Mmap),
}

/// An open file of which the beginning was read.
///
/// Every read says where it begins. The position of the handle is neither used nor kept: processes that a fork made have it in common, and no
/// lock of theirs covers another's reads.
pub struct Partly {
    file: File,
    /// Bytes of the file when it was opened.
    length: u64,
    head: Vec<u8>,
}

impl std::fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = match &self.0 {
            Kind::Read(_) => "read",
            Kind::Mapped(_) => "mapped",
        };
        write!(f, "FileBytes({} bytes, {how})", self.length())
    }
}

impl std::fmt::Debug for Partly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Partly({} of {} bytes)", self.head.len(), self.length)
    }
}

/// See [`Store::contents`].
#[derive(Clone, Copy, Debug)]
pub enum Contents<'a> {
    /// All of them.
    Memory(&'a [u8]),
    /// The beginning in memory, the rest on the disk.
    File(&'a Partly),
}

impl FileBytes {
    /// Opens a file of which nothing is read yet.
    pub(crate) fn open(path: &Path) -> Result<FileBytes, GgufError> {
        let (file, length) = opened(path)?;
        Ok(FileBytes(Kind::Read(Partly { file, length, head: Vec::new() })))
    }

    /// Maps a file.
    ///
    /// # Safety
    ///
    /// For as long as the value lives, nobody changes the file or makes it shorter, in this process or another: its bytes are
    /// lent as `&[u8]`, and reading behind the new end of a file ends the process.
    pub(crate) unsafe fn map(path: &Path) -> Result<FileBytes, GgufError> {
        let (file, _) = opened(path)?;
        // SAFETY: that nobody changes the file is what this function asks of its caller.
        let map = unsafe { memmap2::Mmap::map(&file) };
        let map = map.map_err(|source| GgufError::Io { path: path.to_owned(), action: "map", source })?;
        Ok(FileBytes(Kind::Mapped(map)))
    }

    /// Bytes of the whole file.
    pub(crate) fn length(&self) -> u64 {
        match &self.0 {
            Kind::Read(file) => file.length,
            Kind::Mapped(map) => map.len() as u64,
        }
    }

    /// What is in memory, from the beginning of the file on.
    pub(crate) fn head(&self) -> &[u8] {
        self.contents().head()
    }

    /// Reads on until `end` bytes from the beginning are in memory, or all that there are.
    pub(crate) fn read_head(&mut self, path: &Path, end: u64) -> Result<(), GgufError> {
        let Kind::Read(Partly { file, length, head }) = &mut self.0 else { return Ok(()) };
        let (end, start) = (end.min(*length), head.len() as u64);
        if end <= start {
            return Ok(());
        }
        if end > MAX_HEADER {
            return Err(GgufError::at(start, Problem::HeaderLength { most: MAX_HEADER }).in_file(path));
        }
        let no_memory = || GgufError::Memory { path: path.to_owned(), bytes: end };
        let more = usize::try_from(end - start).map_err(|_| no_memory())?;
        head.try_reserve_exact(more).map_err(|_| no_memory())?;
        let read = append(file, start, more, head);
        read.map_err(|source| GgufError::Io { path: path.to_owned(), action: "read", source })?;
        match head.len() as u64 {
            found if found < end => {
                Err(GgufError::Changed { path: path.to_owned(), expected: *length, found })
            }
            _ => Ok(()),
        }
    }

    /// Gives back the memory of what was read behind the first `end` bytes.
    pub(crate) fn keep_head(&mut self, end: u64) {
        if let Kind::Read(file) = &mut self.0 {
            file.head.truncate(usize::try_from(end).unwrap_or(usize::MAX));
            file.head.shrink_to_fit();
        }
    }
}

impl<'a> Contents<'a> {
    /// What is in memory, from the beginning of the file on.
    pub(crate) fn head(self) -> &'a [u8] {
        match self {
            Contents::Memory(bytes) => bytes,
            Contents::File(file) => &file.head,
        }
    }

    /// `length` bytes from byte `at` of the file on: lent where they are in memory, else read into memory of their own.
    pub(crate) fn get(self, at: u64, length: u64) -> Result<Cow<'a, [u8]>, NoDataReason> {
        match self {
            Contents::Memory(bytes) => {
                let range = || {
                    let rest = bytes.get(usize::try_from(at).ok()?..)?;
                    rest.get(..usize::try_from(length).ok()?)
                };
                // Checked when the file was read, so this fails only for bytes that became fewer since.
                range().map(Cow::Borrowed).ok_or(NoDataReason::Changed)
            }
            Contents::File(file) => file.read(at, length).map(Cow::Owned),
        }
    }

    /// Fills `out` with the bytes from byte `at` of the file on.
    pub(crate) fn fill(self, at: u64, out: &mut [u8]) -> Result<(), NoDataReason> {
        match self {
            Contents::Memory(_) => {
                out.copy_from_slice(&self.get(at, out.len() as u64)?);
                Ok(())
            }
            Contents::File(file) => file.fill(at, out),
        }
    }
}

impl Partly {
    /// Nothing is read twice: what comes is from one moment, though a file that somebody writes to may have changed before.
    fn read(&self, at: u64, length: u64) -> Result<Vec<u8>, NoDataReason> {
        // Before there is memory for it: what a damaged table says may be more than any file has.
        if at.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(NoDataReason::Changed);
        }
        let mut bytes = Vec::new();
        let count = usize::try_from(length).map_err(|_| NoDataReason::Memory(length))?;
        bytes.try_reserve_exact(count).map_err(|_| NoDataReason::Memory(length))?;
        match append(&self.file, at, count, &mut bytes) {
            Ok(()) if bytes.len() == count => Ok(bytes),
            Ok(()) => Err(NoDataReason::Changed),
            Err(error) => Err(NoDataReason::Read(error.to_string())),
        }
    }

    fn fill(&self, at: u64, out: &mut [u8]) -> Result<(), NoDataReason> {
        match read_from(&self.file, at, out) {
            Ok(read) if read == out.len() => Ok(()),
            Ok(_) => Err(NoDataReason::Changed),
            Err(error) => Err(NoDataReason::Read(error.to_string())),
        }
    }
}

/// The file at `path`, and how long it is.
fn opened(path: &Path) -> Result<(File, u64), GgufError> {
    let failed = |action| move |source| GgufError::Io { path: path.to_owned(), action, source };
    let length_of = |found: Metadata| {
        // A folder is told by the system, when it is read.
        if found.is_file() || found.is_dir() {
            return Ok(found.len());
        }
        let why = "it is a pipe or a device; tensors are read where they are asked for, so give a file";
        Err(failed("read")(io::Error::new(ErrorKind::InvalidInput, why)))
    };
    // Before it is opened, too: to open a pipe is to wait for somebody who writes.
    length_of(std::fs::metadata(path).map_err(failed("open"))?)?;
    let file = File::open(path).map_err(failed("open"))?;
    let length = length_of(file.metadata().map_err(failed("ask for the length of"))?)?;
    Ok((file, length))
}

/// Appends `count` bytes from byte `at` of the file on to `bytes`, which has room for them, or as many as there are.
fn append(file: &File, at: u64, count: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
    let start = bytes.len();
    let end = start.saturating_add(count);
    while bytes.len() < end {
        let begin = bytes.len();
        bytes.extend_from_slice(&CLEAR[..CLEAR.len().min(end - begin)]);
        let read = read_from(file, at.saturating_add((begin - start) as u64), &mut bytes[begin..]);
        bytes.truncate(begin + read.as_ref().unwrap_or(&0));
        if read? == 0 {
            break;
        }
    }
    Ok(())
}

/// Fills `out` with the bytes from byte `at` of the file on, and says how many there were: fewer only where the file ends.
fn read_from(file: &File, at: u64, out: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < out.len() {
        match read_some(file, at.saturating_add(done as u64), &mut out[done..]) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(unix)]
fn read_some(file: &File, at: u64, out: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, out, at)
}

/// It moves the position of the handle, which nothing here uses.
#[cfg(windows)]
fn read_some(file: &File, at: u64, out: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, out, at)
}
