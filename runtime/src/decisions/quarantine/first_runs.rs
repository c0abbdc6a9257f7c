//! Marks of kernels in their first runs: which kernel ended a program is seen by its mark, which is left.

use super::folder::{Folder, Mark, marks};
use crate::error::Error;
use crate::observe::set_marking;
use crate::parallel::fork::Process;
use crate::registry::{Entry, KernelId};
use crate::request::Shape;
use crate::tuning::ShapeClass;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Where this program marks its first runs: in one folder, for good.
static MARKING: OnceLock<Marking> = OnceLock::new();

#[derive(Debug)]
struct Marking {
    folder: PathBuf,
    /// A child has its parent's file, and another thread of the parent may have held the lock when it was forked.
    process: Process,
    running: Mutex<Running>,
}

#[derive(Debug)]
struct Running {
    file: File,
    marks: Vec<Mark>,
    /// Why the last mark that could not be written is not there.
    not_marked: Option<Error>,
}

/// Bytes that there must be room for when marking begins: more marks than there are threads of a common machine.
const ROOM: usize = 4096;

impl Running {
    /// Whether the file can grow at all, found out before the first mark.
    fn has_room(&mut self) -> std::io::Result<()> {
        // Blank lines are no marks, should the program end now.
        self.file.write_all(&[b'\n'; ROOM])?;
        self.file.sync_data()?;
        self.file.set_len(0)
    }

    /// Writes the marks in place of those that the file has.
    fn write(&mut self) -> std::io::Result<()> {
        let text = marks(&self.marks);
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(text.as_bytes())?;
        self.file.set_len(text.len() as u64)
    }

    /// The same as a run of a kernel begins or ends, which goes on where that fails: whoever asks is told.
    fn write_for(&mut self, entry: &Entry, folder: &Path) {
        if let Err(why) = self.write() {
            self.not_marked = Some(Error::Quarantine {
                path: folder.display().to_string(),
                doing: "mark the first run of a kernel",
                why: format!("{}: {why}", entry.name),
            });
        }
    }
}

impl Marking {
    // The list is whole whenever the lock is free, even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks from now on in `folder`.
pub(super) fn begin_in(folder: &Folder) -> Result<(), Error> {
    static BEGINNING: Mutex<()> = Mutex::new(());
    let _one = BEGINNING.lock().unwrap_or_else(PoisonError::into_inner);
    let refused = |path: &Path, why| Error::Quarantine {
        path: path.display().to_string(),
        doing: "mark first runs",
        why,
    };
    if let Some(marking) = MARKING.get() {
        return match marking.folder == folder.path() {
            true => Ok(()),
            false => {
                let why = format!("this program marks in `{}` already", marking.folder.display());
                Err(refused(folder.path(), why))
            }
        };
    }
    let process = Process::this().map_err(|why| refused(folder.path(), why))?;
    let (file, _) = folder.marked_by_this()?;
    let mut running = Running { file, marks: Vec::new(), not_marked: None };
    running.has_room().map_err(|why| refused(folder.path(), why.to_string()))?;
    let running = Mutex::new(running);
    // Nobody else sets it, since they wait above.
    let _ = MARKING.set(Marking { folder: folder.path().to_owned(), process, running });
    set_marking();
    Ok(())
}

/// Why the last first run that could not be marked in `folder` was not; `None` where all were.
pub(super) fn not_marked(folder: &Path) -> Option<Error> {
    let marking = MARKING.get().filter(|marking| marking.folder == folder && marking.process.is_this())?;
    marking.lock().not_marked.clone()
}

/// A kernel's first run in a class of shapes, marked until this is dropped.
#[derive(Debug)]
pub(crate) struct FirstRun {
    marking: &'static Marking,
    entry: &'static Entry,
    shape: [usize; 3],
    class: u32,
}

/// Marks a run that begins now, if it is the kernel's first one in its class of shapes.
#[inline]
pub(crate) fn first_run(entry: &'static Entry, shape: Shape) -> Option<FirstRun> {
    let class = 1 << ShapeClass::of(shape).index();
    let tried = entry.counters.tried.load(Ordering::Relaxed) & class != 0;
    if tried { None } else { mark(entry, shape, class) }
}

/// A class is a bit of a number.
const _: () = assert!(ShapeClass::COUNT <= u32::BITS as usize);

#[cold]
fn mark(entry: &'static Entry, Shape { m, n, k }: Shape, class: u32) -> Option<FirstRun> {
    let marking = MARKING.get().filter(|marking| marking.process.is_this())?;
    let mark = Mark { id: entry.id, kernel: entry.name.to_owned(), shape: [m, n, k] };
    let mut running = marking.lock();
    running.marks.push(mark);
    running.write_for(entry, &marking.folder);
    Some(FirstRun { marking, entry, shape: [m, n, k], class })
}

impl Drop for FirstRun {
    fn drop(&mut self) {
        if !self.marking.process.is_this() {
            return;
        }
        let mut running = self.marking.lock();
        let of_this = |mark: &Mark| (mark.id, mark.shape) == (self.id(), self.shape);
        if let Some(at) = running.marks.iter().position(of_this) {
            running.marks.swap_remove(at);
        }
        running.write_for(self.entry, &self.marking.folder);
        // What panicked is marked again.
        if !std::thread::panicking() {
            self.entry.counters.tried.fetch_or(self.class, Ordering::Relaxed);
        }
    }
}

impl FirstRun {
    fn id(&self) -> KernelId {
        self.entry.id
    }
}
