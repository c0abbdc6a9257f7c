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
}

impl Running {
    /// Writes the marks in place of those that the file has. A mark that can't be written is none: the run goes on, as it would without.
    fn write(&mut self) -> std::io::Result<()> {
        let text = marks(&self.marks);
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(text.as_bytes())?;
        self.file.set_len(text.len() as u64)
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
    let running = Mutex::new(Running { file, marks: Vec::new() });
    // Nobody else sets it, since they wait above.
    let _ = MARKING.set(Marking { folder: folder.path().to_owned(), process, running });
    set_marking();
    Ok(())
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
    let _ = running.write();
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
        let _ = running.write();
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
