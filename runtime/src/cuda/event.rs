//! Points in the order of a stream, for another stream to wait for.

use super::context::{Found, Restoring};
use super::device::Gpu;
use crate::error::Error;
use cudarc::driver::sys::{CUevent, CUevent_wait_flags};
use cudarc::driver::{CudaEvent, result};
use std::ffi::c_void;
use std::sync::Arc;

/// A point in the order of a stream: it is reached when everything that was enqueued in front of it is done.
#[derive(Debug)]
pub struct Event {
    event: Restoring<CudaEvent>,
    gpu: Arc<Gpu>,
}

impl Event {
    /// Waits until it is reached.
    ///
    /// # Errors
    /// [`Error::Gpu`], also of a kernel in front of it.
    pub fn synchronize(&self) -> Result<(), Error> {
        let _bound = self.gpu.bind()?;
        self.gpu.check(None, "waiting for an event", self.event.synchronize())
    }

    /// The driver's handle (`CUevent`, which is `cudaEvent_t` too), for the engine to wait for. It lives as long as this does.
    pub fn handle(&self) -> *mut c_void {
        self.event.cu_event().cast()
    }
}

impl Gpu {
    /// An event behind everything that is enqueued by now.
    ///
    /// # Errors
    /// [`Error::Gpu`], [`Error::Capturing`].
    pub fn record(self: &Arc<Gpu>) -> Result<Event, Error> {
        let _found = Found::now();
        let event = Restoring::new(self.check(None, "making an event", self.context().new_event(None))?);
        let recorded = self.outside_capture("recorded as an event", |stream| {
            // SAFETY: the event and the stream are of the context that is current.
            unsafe { result::event::record(event.cu_event(), stream) }
        })?;
        self.check(None, "recording an event", recorded)?;
        Ok(Event { event, gpu: Arc::clone(self) })
    }

    /// Lets what is enqueued from now on wait for an event, of this stream or another one, also of another device. Does not
    /// wait itself.
    ///
    /// # Errors
    /// [`Error::Gpu`], [`Error::Capturing`].
    pub fn wait_for(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: the event lives until the call returns, and the driver keeps what it needs of it.
        unsafe { self.wait_for_handle(event.handle()) }
    }

    /// The same for an event of the engine's.
    ///
    /// # Errors
    /// [`Error::Gpu`], [`Error::Capturing`].
    ///
    /// # Safety
    /// `event` is a `CUevent` (or `cudaEvent_t`) of this process that was not destroyed.
    pub unsafe fn wait_for_handle(&self, event: *mut c_void) -> Result<(), Error> {
        let waits = self.outside_capture("made to wait for an event", |stream| {
            let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            // SAFETY: the stream is this device's; the event is the caller's.
            unsafe { result::stream::wait_event(stream, event as CUevent, flags) }
        })?;
        self.check(None, "waiting for an event", waits)
    }
}
