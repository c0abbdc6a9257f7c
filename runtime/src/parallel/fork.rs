//! Whether this process is still the one in which something was made. A child has a copy of all memory and, of all threads, only
//! the one that forked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Forks between the process that first asked and this one. Counted by a handler: to ask the system for the process's number at
/// each job would cost a call of it.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// A process, as long as it does not fork.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u64);

impl Process {
    /// This one.
    ///
    /// # Errors
    /// What the system said, if it would not tell of forks.
    pub(crate) fn this() -> Result<Process, String> {
        watch()?;
        Ok(Process(FORKS.load(Ordering::Relaxed)))
    }

    /// Whether it is this one, and not a parent of it.
    pub(crate) fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// What all threads of a process share. A child does not wait for it if a thread of its parent held it in the fork: that thread is not there,
/// and nobody lets go.
pub(crate) struct OfProcess<T> {
    shared: Mutex<T>,
    /// One more than the forks in front of the process that locked it last.
    holder: AtomicU64,
}

impl<T> OfProcess<T> {
    pub(crate) const fn new(shared: T) -> OfProcess<T> {
        OfProcess { shared: Mutex::new(shared), holder: AtomicU64::new(0) }
    }

    /// None in such a child, for as long as it lives, and where the system won't tell of forks. A panic while it was locked is no error: what is
    /// shared has to be whole whenever something can panic.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, T>> {
        let Process(forks) = Process::this().ok()?;
        let locked = match self.shared.try_lock() {
            Ok(locked) => locked,
            Err(TryLockError::Poisoned(locked)) => locked.into_inner(),
            // Of this process, whose threads let go. In one that is nobody's child none can be gone, also before `holder` says so.
            Err(TryLockError::WouldBlock)
                if forks == 0 || self.holder.load(Ordering::Relaxed) == forks + 1 =>
            {
                self.shared.lock().unwrap_or_else(PoisonError::into_inner)
            }
            Err(TryLockError::WouldBlock) => return None,
        };
        self.holder.store(forks + 1, Ordering::Relaxed);
        Some(locked)
    }
}

/// Lets forks be counted in their children.
#[cfg(all(unix, not(miri)))]
fn watch() -> Result<(), String> {
    use std::sync::OnceLock;

    unsafe extern "C" fn forked() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static WATCHED: OnceLock<libc::c_int> = OnceLock::new();
    // SAFETY: the handler adds to an atomic number, which it may do at any time and in any state of the process.
    match *WATCHED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(forked)) }) {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(error).to_string()),
    }
}

/// Processes here do not fork.
#[cfg(not(all(unix, not(miri))))]
fn watch() -> Result<(), String> {
    Ok(())
}

#[cfg(all(test, unix, not(miri)))]
mod tests {
    use super::OfProcess;

    #[test]
    fn a_child_does_not_wait_for_threads_of_its_parent() {
        static SHARED: OfProcess<u32> = OfProcess::new(0);
        let may_fork = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut locked = SHARED.lock().expect("free");
                *locked += 1;
                may_fork.wait();
                may_fork.wait();
            });
            may_fork.wait();
            // SAFETY: the child locks, which allocates nothing, and ends without coming back here.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: a signal ends the child if it waits; nothing of the parent's is run or flushed.
                unsafe {
                    libc::alarm(20);
                    libc::_exit(i32::from(SHARED.lock().is_some()));
                }
            }
            let mut status = 0;
            // SAFETY: the process is a child of this one, and `status` a place for its status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
            may_fork.wait();
        });
        assert_eq!(SHARED.lock().map(|locked| *locked), Some(1));
    }

    /// Who comes while the first is between the lock and the note that it has it.
    #[test]
    fn threads_that_come_first_at_once_all_get_it() {
        const THREADS: u32 = 4;
        for _ in 0..500 {
            let shared = OfProcess::new(0);
            let start = std::sync::Barrier::new(THREADS as usize);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        start.wait();
                        *shared.lock().expect("of this process") += 1;
                    });
                }
            });
            assert_eq!(shared.lock().map(|locked| *locked), Some(THREADS));
        }
    }
}
