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
    /// What the process that asked last knows: four times the forks in front of it, and [`ASKING`], [`FREE`] or [`GONE`].
    known: AtomicU64,
}

/// The thread that came first in a process looks whether it is free.
const ASKING: u64 = 1;
/// It was, so that only threads of this process hold it.
const FREE: u64 = 2;
/// Who holds it is not in this process.
const GONE: u64 = 3;

impl<T> OfProcess<T> {
    pub(crate) const fn new(shared: T) -> OfProcess<T> {
        OfProcess { shared: Mutex::new(shared), known: AtomicU64::new(0) }
    }

    /// None in such a child, for as long as it lives, and where the system won't tell of forks. A panic while it was locked is no error: what is
    /// shared has to be whole whenever something can panic.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, T>> {
        let Process(forks) = Process::this().ok()?;
        let [asking, free, gone] = [ASKING, FREE, GONE].map(|known| 4 * forks + known);
        loop {
            let known = self.known.load(Ordering::Acquire);
            if known == free {
                return Some(self.shared.lock().unwrap_or_else(PoisonError::into_inner));
            }
            if known == gone {
                return None;
            }
            if known == asking {
                // It waits for nobody.
                std::thread::yield_now();
                continue;
            }
            if self.known.compare_exchange(known, asking, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            // No other thread of this process goes on before it is known whose it is.
            let locked = match self.shared.try_lock() {
                Ok(locked) => Some(locked),
                Err(TryLockError::Poisoned(locked)) => Some(locked.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            self.known.store(if locked.is_some() { free } else { gone }, Ordering::Release);
            return locked;
        }
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// What a forked child finds; `None` if it ends otherwise.
    fn in_a_child(finds: impl FnOnce() -> bool) -> Option<bool> {
        // SAFETY: the child ends without coming back here. What it allocates is the C library's, which lets a child go on.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a signal ends the child if it waits; nothing of the parent's is run or flushed.
            unsafe {
                libc::alarm(20);
                libc::_exit(i32::from(finds()));
            }
        }
        let mut status = 0;
        // SAFETY: the process is a child of this one, and `status` a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) == 1)
    }

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
            assert_eq!(in_a_child(|| SHARED.lock().is_some()), Some(false));
            may_fork.wait();
        });
        assert_eq!(SHARED.lock().map(|locked| *locked), Some(1));
    }

    const THREADS: usize = 4;

    /// Whether all threads get each of them that come first, at once: also who comes while the first is between the lock and the note that
    /// it has it.
    fn all_get(shared: &[OfProcess<usize>]) -> bool {
        let came = AtomicUsize::new(0);
        // Threads that sleep are woken one by one, so these don't.
        let wait_for = |all: usize| {
            came.fetch_add(1, Ordering::AcqRel);
            for looks in 0.. {
                match came.load(Ordering::Acquire) < all {
                    true if looks < 1000 => std::hint::spin_loop(),
                    true => std::thread::yield_now(),
                    false => break,
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for (round, shared) in (1..).zip(shared) {
                        wait_for(round * THREADS);
                        if let Some(mut locked) = shared.lock() {
                            *locked += 1;
                        }
                    }
                });
            }
        });
        shared.iter().all(|shared| shared.lock().map(|locked| *locked) == Some(THREADS))
    }

    fn some() -> Vec<OfProcess<usize>> {
        std::iter::repeat_with(|| OfProcess::new(0)).take(3000).collect()
    }

    #[test]
    fn threads_that_come_first_at_once_all_get_it() {
        assert!(all_get(&some()));
    }

    #[test]
    fn threads_of_a_child_that_come_first_at_once_all_get_it() {
        let shared = some();
        assert!(shared.iter().all(|shared| shared.lock().is_some()), "of the parent");
        assert_eq!(in_a_child(|| all_get(&shared)), Some(true));
    }
}
