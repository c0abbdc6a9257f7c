//! Threads and workspaces: what a product needs beside its operands.

use crate::error::{Failure, attempt, gm_status};
use crate::raw;
use gristmill::{Threads, Workspace};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Threads that products are divided among. May be shared by all threads of a program; a child of fork() works alone with them.
#[derive(Debug)]
pub struct gm_threads(Threads);

/// Memory that products need besides their operands; it grows as they need it. One call at a time may use it.
#[derive(Debug)]
pub struct gm_workspace(Mutex<Workspace>);

/// The calling thread alone.
static SINGLE: Threads = Threads::single();

/// # Safety
/// As for [`raw::handle`]; null is the calling thread alone.
pub(crate) unsafe fn threads<'a>(threads: *const gm_threads) -> &'a Threads {
    // SAFETY: passed on to the caller.
    unsafe { threads.as_ref() }.map_or(&SINGLE, |threads| &threads.0)
}

impl gm_workspace {
    pub(crate) fn take(&self) -> Result<MutexGuard<'_, Workspace>, Failure> {
        match self.0.try_lock() {
            Ok(workspace) => Ok(workspace),
            // Every run writes what it reads of a workspace.
            Err(TryLockError::Poisoned(poisoned)) => Ok(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => Err(Failure::new(
                gm_status::GM_BUSY,
                "the workspace is in use by another call\n  help: make one for each thread that calls",
            )),
        }
    }
}

/// Starts threads: `count` of them work on a product, the calling one included.
///
/// # Safety
/// `threads` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_threads_new(count: usize, threads: *mut *mut gm_threads) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { raw::made(threads, "threads") }?;
        if count == 0 {
            return Err(Failure::argument(
                "count is 0\n  help: the calling thread is one of them, so 1 at least",
            ));
        }
        *place = Box::into_raw(Box::new(gm_threads(Threads::new(count)?)));
        Ok(())
    })
}

/// Ends the threads. NULL is left alone.
///
/// # Safety
/// A handle of `gm_threads_new` that no other call uses, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_threads_free(threads: *mut gm_threads) {
    // SAFETY: the caller's promise.
    unsafe { raw::free(threads) }
}

/// An empty workspace.
///
/// # Safety
/// `workspace` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_workspace_new(workspace: *mut *mut gm_workspace) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { raw::made(workspace, "workspace") }?;
        *place = Box::into_raw(Box::new(gm_workspace(Mutex::new(Workspace::new()))));
        Ok(())
    })
}

/// Frees a workspace. NULL is left alone.
///
/// # Safety
/// A handle of `gm_workspace_new` that no other call uses, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_workspace_free(workspace: *mut gm_workspace) {
    // SAFETY: the caller's promise.
    unsafe { raw::free(workspace) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_serves_one_call_at_a_time() {
        let workspace = gm_workspace(Mutex::new(Workspace::new()));
        let held = workspace.take();
        assert!(held.is_ok());
        assert!(workspace.take().is_err_and(|failure| failure.status == gm_status::GM_BUSY));
        drop(held);
        assert!(workspace.take().is_ok());
    }
}
