//! Kernels that are not to be used any more.
//!
//! A [`Quarantine`] is a list in memory, or one that a folder keeps from one start of a program to the next. With a folder a kernel that ends
//! the program, by an instruction that the processor refuses, is found at the next start: see [`Quarantine::mark_first_runs`].

mod first_runs;
mod folder;
mod listed;

pub(crate) use first_runs::first_run;
pub use listed::Quarantined;

use crate::error::Error;
use crate::parallel::fork::OfProcess;
use crate::registry::{KernelId, Registry};
use folder::Folder;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Names the folder of [`Quarantine::from_env`].
const VARIABLE: &str = "GRISTMILL_QUARANTINE";

/// Kernels that are not to be used any more, by id, each with why. Clones share what they hold, so that what one layer finds out
/// all of them obey; an engine adds what it knows from elsewhere (a test at its start).
///
/// One that is made by [`new`](Quarantine::new) lasts as long as the program, one that is [kept in a folder](Quarantine::kept_in) until somebody
/// removes its files. To forbid a kernel by name: [`Restrict::disabled`](crate::Restrict::disabled), or `GRISTMILL_DISABLE` in the environment.
#[derive(Clone, Debug, Default)]
pub struct Quarantine(Arc<Held>);

#[derive(Debug, Default)]
struct Held {
    /// How many there are: layers compare it in each run.
    count: AtomicU64,
    kernels: Mutex<Vec<Quarantined>>,
    folder: Option<Folder>,
    /// Why a kernel that was added is not in the folder.
    not_kept: Mutex<Option<Error>>,
}

impl Quarantine {
    /// An empty one, in memory.
    pub fn new() -> Quarantine {
        Quarantine::default()
    }

    /// One that `folder` keeps, which is made if it is not there: a file `ID.PROCESSOR.kernel` for each kernel, which says what was
    /// seen, and on which processor. Kernels of another processor stay there and do not count. To let a kernel out, remove its file and start again.
    ///
    /// What programs left there that ended in the [first run](Quarantine::mark_first_runs) of a kernel is taken in: their kernels are in
    /// quarantine from now on. Several programs of one machine may have one folder.
    ///
    /// # Errors
    /// [`Error::Quarantine`] where the folder or a file can't be made, read or written.
    pub fn kept_in(folder: &Path) -> Result<Quarantine, Error> {
        let folder = Folder::open(folder)?;
        folder.take_in(None)?;
        let quarantine = Quarantine(Arc::new(Held { folder: Some(folder), ..Held::default() }));
        quarantine.read_again()?;
        Ok(quarantine)
    }

    /// The one in the folder that `GRISTMILL_QUARANTINE` names, with [first runs](Quarantine::mark_first_runs) marked; `None` where it is
    /// unset or empty. It is opened once in a program, however often it is asked for.
    ///
    /// # Errors
    /// As for [`kept_in`](Quarantine::kept_in) and [`mark_first_runs`](Quarantine::mark_first_runs).
    pub fn from_env() -> Result<Option<Quarantine>, Error> {
        static OPENED: OfProcess<Option<(PathBuf, Quarantine)>> = OfProcess::new(None);
        let Some(folder) = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) else {
            return Ok(None);
        };
        let folder = PathBuf::from(folder);
        // It is replaced as a whole. Children of a fork in the middle of this mark nothing.
        let Some(mut opened) = OPENED.lock() else { return Quarantine::kept_in(&folder).map(Some) };
        if let Some((_, quarantine)) = opened.as_ref().filter(|(known, _)| *known == folder) {
            return Ok(Some(quarantine.clone()));
        }
        let quarantine = Quarantine::kept_in(&folder)?;
        quarantine.mark_first_runs()?;
        *opened = Some((folder, quarantine.clone()));
        Ok(Some(quarantine))
    }

    /// From now on, and in the whole program, the first run of each kernel of the processor in each class of shapes is marked in the folder
    /// while it lasts. If the program ends within one, by an instruction that the processor refuses (`SIGILL`), by memory that it may not touch
    /// (`SIGSEGV`) or by a panic that is not unwound, the mark is left, and whoever opens the folder next
    /// ([`kept_in`](Quarantine::kept_in), [`from_env`](Quarantine::from_env)) finds the kernel in quarantine. A program that is killed from
    /// outside just then leaves a mark too, since the system tells nobody by what a program ended but its parent.
    ///
    /// It costs two small writes for each kernel and class of shapes, and in later runs the reading of a number. Forked children mark nothing.
    ///
    /// # Errors
    /// [`Error::Quarantine`] where no folder keeps this quarantine, its file can't be made or the disk is full, or the program marks in another
    /// folder already. Where the disk is full later, [`not_kept`](Quarantine::not_kept) says so.
    pub fn mark_first_runs(&self) -> Result<(), Error> {
        match &self.0.folder {
            Some(folder) => first_runs::begin_in(folder),
            None => Err(Error::Quarantine {
                path: String::from("no folder"),
                doing: "mark first runs",
                why: String::from(
                    "this quarantine is in memory only; `Quarantine::kept_in` makes one with a folder",
                ),
            }),
        }
    }

    /// Takes in what a program left that ended since the folder was opened, and says which kernels came so. `how` is what its parent knows of
    /// its end (`SIGILL`); `None`: nothing.
    ///
    /// # Errors
    /// As for [`kept_in`](Quarantine::kept_in).
    pub fn take_in(&self, how: Option<&str>) -> Result<Vec<Quarantined>, Error> {
        let Some(folder) = &self.0.folder else { return Ok(Vec::new()) };
        let came = folder.take_in(how)?;
        self.read_again()?;
        Ok(came)
    }

    /// Removes what a program left that its parent knows to have been ended from outside (`SIGKILL`, `SIGTERM`), so that no kernel is blamed.
    ///
    /// # Errors
    /// As for [`kept_in`](Quarantine::kept_in).
    pub fn forgive(&self) -> Result<(), Error> {
        let Some(folder) = &self.0.folder else { return Ok(()) };
        folder.left(|_, _| Ok(()))
    }

    /// Kernels of this processor in the folder that are not in the list yet.
    fn read_again(&self) -> Result<(), Error> {
        let Some(folder) = &self.0.folder else { return Ok(()) };
        let found = folder.kernels()?;
        let mut kernels = self.0.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        for kernel in found {
            if !kernels.iter().any(|known| known.id == kernel.id) {
                kernels.push(kernel);
            }
        }
        self.0.count.store(kernels.len() as u64, Ordering::Release);
        Ok(())
    }

    /// Forbids a kernel from the next run of each guarded layer on, and where a folder keeps it from the next start of all; whether it was not
    /// forbidden before. What was said first stays. Where the folder could not be written, [`not_kept`](Quarantine::not_kept) says so.
    pub fn add(&self, id: KernelId, why: impl Into<String>) -> bool {
        self.add_kernel(Quarantined { id, kernel: None, why: why.into() })
    }

    /// The same by the name of a kernel of a registry.
    ///
    /// # Errors
    /// [`Error::UnknownKernel`].
    pub fn add_by_name(
        &self,
        registry: &'static Registry,
        name: &str,
        why: impl Into<String>,
    ) -> Result<bool, Error> {
        let entry = registry.entry(name)?.entry;
        Ok(self.add_kernel(Quarantined { id: entry.id, kernel: Some(name.to_owned()), why: why.into() }))
    }

    /// The same with the kernel's name.
    pub(crate) fn add_kernel(&self, kernel: Quarantined) -> bool {
        // The list is whole whenever the lock is free, even after a panic elsewhere.
        let mut kernels = self.0.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if kernels.iter().any(|known| known.id == kernel.id) {
            return false;
        }
        if let Some(Err(error)) = self.0.folder.as_ref().map(|folder| folder.keep(&kernel)) {
            *self.0.not_kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
        kernels.push(kernel);
        self.0.count.store(kernels.len() as u64, Ordering::Release);
        true
    }

    /// The kernels, in the order in which they came.
    pub fn kernels(&self) -> Vec<Quarantined> {
        self.0.kernels.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The folder that keeps it, if one does.
    pub fn folder(&self) -> Option<&Path> {
        self.0.folder.as_ref().map(Folder::path)
    }

    /// Why the last kernel that was added and could not be written to the folder is not there, or else the last
    /// [first run](Quarantine::mark_first_runs) of this program that could not be marked, as on a full disk; `None` where all are.
    pub fn not_kept(&self) -> Option<Error> {
        let not_added = self.0.not_kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        not_added.or_else(|| first_runs::not_marked(self.folder()?))
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.count.load(Ordering::Acquire)
    }
}
