//! Opening a device.

use super::capture::Capture;
use super::context::{Found, Restoring};
use super::device::{Gpu, OPEN};
use super::failure::{GpuFailure, OPENING};
use super::pool::{MemoryPool, MemoryUse};
use super::probe;
use super::seen;
use super::waiting::Later;
use crate::error::Error;
use cudarc::driver::CudaContext;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

impl Gpu {
    /// The device `cuda:index`, opened if it is not yet.
    ///
    /// # Errors
    /// [`Error::NoGpu`] with the reason; [`Error::Gpu`], also where the device's primary context was lost earlier and another
    /// library of the process still holds it.
    pub fn open(index: u32) -> Result<Arc<Gpu>, Error> {
        super::kept::give_back();
        let profile = probe::detect(index).map_err(|why| Error::NoGpu { index, why })?;
        // The list is whole whenever the lock is free, even after a panic elsewhere.
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = open.get(&index).and_then(Weak::upgrade) {
            return Ok(gpu);
        }
        let failed = |error| Error::Gpu(Box::new(GpuFailure::new(index, None, OPENING, error)));
        let _found = Found::now().unless_none();
        let context = CudaContext::new(index as usize).map_err(failed)?;
        // SAFETY: everything is enqueued on one stream, whose order is all that there is to keep.
        unsafe { context.disable_event_tracking() };
        // One of its own: the default stream can't be captured, and waits for those of others.
        let stream = context.new_stream().map_err(failed)?;
        // A context that others hold may have been lost long ago.
        stream.synchronize().map_err(failed)?;
        let gpu = Arc::new(Gpu {
            profile,
            stream: Restoring::new(stream),
            pool: MemoryPool::new(&context).map_err(failed)?,
            context: Restoring::new(context),
            lent: false,
            in_engine: false,
            modules: Arc::default(),
            lost: OnceLock::new(),
            memory_use: MemoryUse::of(index),
            capture: Capture::default(),
            later: Later::default(),
            reached_by: Mutex::default(),
        });
        open.insert(index, Arc::downgrade(&gpu));
        seen::opened(index);
        Ok(gpu)
    }
}
