//! The one stream of a device. All threads enqueue on it, and one of them may capture what it enqueues; so whether something
//! may be enqueued is asked and done under one lock, which a capture takes to begin and to end.

use super::context::{Found, Restoring};
use super::device::Gpu;
use crate::error::Error;
use cudarc::driver::sys::{CUevent_flags, CUstream};
use cudarc::driver::{CudaEvent, DriverError, result};
use std::ffi::c_void;
use std::thread;
use std::time::Duration;

/// An event behind what was enqueued, and one in front of it where its time is wanted.
#[derive(Debug)]
pub(super) struct Behind {
    begin: Option<Restoring<CudaEvent>>,
    end: Restoring<CudaEvent>,
}

/// How something is enqueued with an event behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// Whether its time is wanted.
    pub(super) timed: bool,
    /// Whether what is in front of it is waited for first, without the stream's lock.
    pub(super) alone: bool,
}

impl How {
    /// Enqueued and left, without a time.
    const LATER: How = How { timed: false, alone: false };
}

impl Behind {
    /// The driver's handle of the event behind it.
    pub(super) fn handle(&self) -> *mut c_void {
        self.end.cu_event().cast()
    }

    /// Waits for what was enqueued.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        let _found = Found::in_front_of(self.end.context().cu_ctx());
        // SAFETY: the event is one of the driver's, which is there until it is dropped.
        unsafe { result::event::synchronize(self.end.cu_event()) }
    }

    /// How long it took by the device's clock, once it has been waited for.
    pub(super) fn time(&self) -> Option<Duration> {
        let _found = Found::now();
        let milliseconds = self.begin.as_ref()?.elapsed_ms(&self.end).ok()?;
        Some(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Gpu {
    /// Enqueues what a graph can hold: into a capture of this thread, or on the stream; not into another thread's capture.
    /// `act` calls the driver and nothing of this package: the stream is locked.
    pub(super) fn enqueue<R>(&self, act: impl FnOnce(CUstream) -> R) -> Result<R, Error> {
        let state = self.capture.state();
        if state.as_ref().is_some_and(|state| state.owner != thread::current().id()) {
            return Err(self.capturing("enqueued by another thread"));
        }
        let _bound = self.bind()?;
        let done = act(self.stream().cu_stream());
        drop(state);
        Ok(done)
    }

    /// Does with the stream what no graph can hold, where nobody captures; `what` would be done, for the error. `act` as for
    /// [`enqueue`](Gpu::enqueue).
    pub(super) fn outside_capture<R>(
        &self,
        what: &'static str,
        act: impl FnOnce(CUstream) -> R,
    ) -> Result<R, Error> {
        let state = self.capture.state();
        if state.is_some() {
            return Err(self.capturing(what));
        }
        let _bound = self.bind()?;
        if self.engine_captures()? {
            return Err(self.capturing(what));
        }
        let done = act(self.stream().cu_stream());
        drop(state);
        Ok(done)
    }

    /// As [`outside_capture`](Gpu::outside_capture), and waits until the device has done what was enqueued, and everything
    /// in front of it. The stream is not locked meanwhile. Errors belong to `kernel`, and to what was being done.
    pub(super) fn and_wait(
        &self,
        what: &'static str,
        kernel: Option<&'static str>,
        doing: &'static str,
        act: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<(), Error> {
        super::kept::give_back();
        let (behind, enqueued) = self.with_event(what, kernel, doing, How::LATER, act)?;
        // Waited for also where not all of it was enqueued.
        let waited = behind.synchronize();
        self.check(kernel, doing, enqueued.and(waited))
    }

    /// As [`outside_capture`](Gpu::outside_capture), with an event behind what was enqueued, which waits for it whatever becomes of the
    /// stream; and whether that went well. Where there is no event nothing was enqueued, or it has been waited for. With a time there is
    /// an event in front of it too, unless the driver gives none.
    pub(super) fn with_event(
        &self,
        what: &'static str,
        kernel: Option<&'static str>,
        doing: &'static str,
        How { timed, alone }: How,
        act: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<(Behind, Result<(), DriverError>), Error> {
        let flags = timed.then_some(CUevent_flags::CU_EVENT_DEFAULT);
        let _found = Found::now();
        // Made first: without it there is nothing to wait for what is enqueued with.
        let end = Restoring::new(self.check(kernel, doing, self.context().new_event(flags))?);
        let begin = flags.and_then(|flags| self.context().new_event(Some(flags)).ok().map(Restoring::new));
        if alone {
            // SAFETY: the event and the stream are of the context that is current.
            let record = |stream| unsafe { result::event::record(end.cu_event(), stream) };
            let recorded = self.outside_capture(what, record)?;
            // SAFETY: the event is there, and its context is current.
            let waited = recorded.and_then(|()| unsafe { result::event::synchronize(end.cu_event()) });
            self.check(kernel, doing, waited)?;
        }
        let enqueued = self.outside_capture(what, |stream| {
            if let Some(begin) = &begin {
                // Where that fails there is no time.
                // SAFETY: the event and the stream are of the context that is current.
                let _ = unsafe { result::event::record(begin.cu_event(), stream) };
            }
            let done = act(stream);
            // SAFETY: the event and the stream are of the context that is current.
            let recorded = unsafe { result::event::record(end.cu_event(), stream) };
            if recorded.is_err() {
                // Under the lock, since a capture must not begin before what was enqueued has been waited for.
                // SAFETY: the stream is this device's.
                let _ = unsafe { result::stream::synchronize(stream) };
            }
            done.and(recorded)
        })?;
        Ok((Behind { begin, end }, enqueued))
    }
}
