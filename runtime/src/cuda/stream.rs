//! The one stream of a device. All threads enqueue on it, and one of them may capture what it enqueues; so whether something
//! may be enqueued is asked and done under one lock, which a capture takes to begin and to end.

use super::device::Gpu;
use crate::error::Error;
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaEvent, DriverError, result};
use std::thread;

impl Gpu {
    /// Enqueues what a graph can hold: into a capture of this thread, or on the stream; not into another thread's capture.
    /// `act` calls the driver and nothing of this package: the stream is locked.
    pub(super) fn enqueue<R>(&self, act: impl FnOnce(CUstream) -> R) -> Result<R, Error> {
        let state = self.capture.state();
        if state.as_ref().is_some_and(|state| state.owner != thread::current().id()) {
            return Err(self.capturing("enqueued by another thread"));
        }
        self.bind()?;
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
        self.bind()?;
        if self.engine_captures()? {
            return Err(self.capturing(what));
        }
        self.free_what_waits();
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
        let (event, enqueued) = self.with_event(what, kernel, doing, act)?;
        // Waited for also where not all of it was enqueued.
        // SAFETY: the event is one of the driver's, which is there until it is dropped.
        let waited = unsafe { result::event::synchronize(event.cu_event()) };
        self.check(kernel, doing, enqueued.and(waited))
    }

    /// As [`outside_capture`](Gpu::outside_capture), with an event behind what was enqueued, which waits for it whatever becomes of the
    /// stream; and whether that went well. Where there is no event nothing was enqueued, or it has been waited for.
    pub(super) fn with_event(
        &self,
        what: &'static str,
        kernel: Option<&'static str>,
        doing: &'static str,
        act: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<(CudaEvent, Result<(), DriverError>), Error> {
        // Made first: without it there is nothing to wait for what is enqueued with.
        let event = self.check(kernel, doing, self.context().new_event(None))?;
        let enqueued = self.outside_capture(what, |stream| {
            let done = act(stream);
            // SAFETY: the event and the stream are of the context that is current.
            let recorded = unsafe { result::event::record(event.cu_event(), stream) };
            if recorded.is_err() {
                // Under the lock, since a capture must not begin before what was enqueued has been waited for.
                // SAFETY: the stream is this device's.
                let _ = unsafe { result::stream::synchronize(stream) };
            }
            done.and(recorded)
        })?;
        Ok((event, enqueued))
    }
}
