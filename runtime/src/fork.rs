//! Whether this process is still the one in which something was made. A child has a copy of all memory and, of all threads, only
//! the one that forked.

use std::sync::atomic::{AtomicU64, Ordering};

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
