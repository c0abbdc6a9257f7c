//! What the driver keeps of the calling thread: its current context, and what it may call while somebody captures. A call leaves it as it found it: an engine on the same thread allocates and frees in
//! whatever context is current, and cudarc makes a context current to use or drop something in it, and leaves it there.

use cudarc::driver::result::ctx;
use cudarc::driver::sys::{CUcontext, CUstreamCaptureMode, cuThreadExchangeStreamCaptureMode};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::null_mut;

/// What was current, to be so again when this is dropped. Not to be sent to another thread, as the pointer in it says.
#[must_use = "dropped, it makes current again what it found"]
#[derive(Debug)]
pub(super) struct Found {
    /// Null where nothing was; `None` to leave alone what is current then.
    back: Option<CUcontext>,
}

impl Found {
    /// What is current now.
    pub(super) fn now() -> Found {
        // A driver that can't say it has no context to give back either.
        Found { back: ctx::get_current().ok().map(|found| found.unwrap_or(null_mut())) }
    }

    /// Makes `context` current, which lives for as long as what is returned.
    pub(super) fn in_front_of(context: CUcontext) -> Found {
        let found = Found::now();
        if found.is(context) {
            return found.left();
        }
        // Where that fails, so does the call that it is for.
        // SAFETY: the context is there.
        let _ = unsafe { ctx::set_current(context) };
        found
    }

    /// Whether it is this one.
    pub(super) fn is(&self, context: CUcontext) -> bool {
        self.back == Some(context)
    }

    /// Gives back a context, but not that there was none.
    pub(super) fn unless_none(mut self) -> Found {
        self.back = self.back.filter(|found| !found.is_null());
        self
    }

    /// Gives nothing back.
    pub(super) fn left(mut self) -> Found {
        self.back = None;
        self
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        let Some(back) = self.back else { return };
        if ctx::get_current().is_ok_and(|current| current.unwrap_or(null_mut()) != back) {
            // Where that fails, somebody has destroyed it meanwhile, and there is nothing to give back.
            // SAFETY: the driver looks at the handle, which is one that it gave, or none.
            let _ = unsafe { ctx::set_current(back) };
        }
    }
}

/// What cudarc makes a context current for when it is dropped.
#[derive(Clone, Debug)]
pub(super) struct Restoring<T>(ManuallyDrop<T>);

impl<T> Restoring<T> {
    pub(super) fn new(inner: T) -> Restoring<T> {
        Restoring(ManuallyDrop::new(inner))
    }
}

impl<T> Deref for Restoring<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for Restoring<T> {
    fn drop(&mut self) {
        let _found = Found::now();
        // SAFETY: nothing uses it after this.
        relaxed(|| unsafe { ManuallyDrop::drop(&mut self.0) });
    }
}

/// Calls the driver for what no graph holds and no capture is broken by, though a driver thinks that it may be: allocating, loading, asking
/// for an event. A thread that captures, in any mode but the relaxed one, is refused it otherwise (580.159 does), and so is every thread
/// while another one captures in the global mode, whose capture that ends.
pub(super) fn relaxed<R>(call: impl FnOnce() -> R) -> R {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the mode is this thread's own, and what it was comes back before anything else is called.
    let exchanged = unsafe { cuThreadExchangeStreamCaptureMode(&raw mut mode) }.result();
    // Also where the mode is as it was: then the call says what is wrong.
    let result = call();
    if exchanged.is_ok() {
        // SAFETY: as above.
        let _ = unsafe { cuThreadExchangeStreamCaptureMode(&raw mut mode) }.result();
    }
    result
}
