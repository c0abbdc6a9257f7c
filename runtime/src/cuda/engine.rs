//! Work in an engine's context, on its stream.

use super::capture::Capture;
use super::context::{Found, Restoring};
use super::device::Gpu;
use super::failure::{GpuFailure, OPENING, words};
use super::lent::LentFault;
use super::pool::{MemoryPool, MemoryUse};
use super::probe;
use super::waiting::Later;
use crate::error::Error;
use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

/// `CU_STREAM_LEGACY`, the default stream by a name that is the same in code that is compiled for default streams per thread.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

impl Gpu {
    /// The device `cuda:index` as an engine uses it: what is enqueued here goes to the engine's stream, between what the engine
    /// enqueues itself, and in that order. Handles are made for it by [`Prepared::on_gpu`](crate::Prepared::on_gpu) and
    /// [`LinearOptions::on_gpu`](crate::LinearOptions::on_gpu).
    ///
    /// `context` is a `CUcontext`, the device's primary one (that of cudart, and of all that builds on it); it is kept alive until
    /// the last handle goes. `stream` is a `CUstream` or `cudaStream_t` of it; null and `CU_STREAM_LEGACY` are the legacy default stream. Neither is
    /// changed or destroyed, and the device's memory pools stay as they are: packed weights and workspaces come from a pool of
    /// gristmill's own.
    ///
    /// While the engine captures its stream, launches become a part of its graph; what no graph can hold is
    /// [`Error::Capturing`]. Receipts count such a launch when it is captured, and not what the engine then makes of its graph. The
    /// graph needs the layers, workspaces and buffers for as long as it is launched, and the engine
    /// keeps them.
    ///
    /// # Errors
    /// [`Error::NoGpu`]; [`Error::Lent`], which says what is wrong with the context or the stream; [`Error::Gpu`].
    ///
    /// # Safety
    /// `stream` is null or a stream that was not destroyed, and is not until everything that was made with this `Gpu` has been
    /// dropped: handles, buffers, workspaces and graphs. What of it is dropped while the stream is captured counts as dropped when
    /// [`give_back`](super::give_back) has been called behind the capture, and has left nothing. `context` may be any value: it is only
    /// compared.
    pub unsafe fn of_engine(
        index: u32,
        context: *mut c_void,
        stream: *mut c_void,
    ) -> Result<Arc<Gpu>, Error> {
        if context.is_null() {
            return Err(refused(index, "a context", LentFault::NullContext));
        }
        probe::detect(index).map_err(|why| Error::NoGpu { index, why })?;
        let failed = |error| Error::Gpu(Box::new(GpuFailure::new(index, None, OPENING, error)));
        let _found = Found::now();
        // Retains the primary context.
        let own = CudaContext::new(index as usize).map_err(failed)?;
        if own.cu_ctx().cast::<c_void>() != context {
            return Err(refused(index, "a context", LentFault::OtherContext));
        }
        // SAFETY: this object of cudarc's is gristmill's alone, and it tracks nothing by events.
        unsafe { own.disable_event_tracking() };
        // SAFETY: the caller keeps the stream; that it is one of this context is asked below, before anything is enqueued.
        let stream = unsafe { own.wrap_borrowed_stream(stream.cast()) };
        Gpu::on_stream(index, &stream)
    }

    /// The same for a stream of cudarc's, in whatever context it is.
    ///
    /// # Errors
    /// As for [`Gpu::of_engine`].
    #[cfg(feature = "cudarc")]
    pub fn of_cudarc(stream: &Arc<CudaStream>) -> Result<Arc<Gpu>, Error> {
        let index = u32::try_from(stream.context().ordinal()).unwrap_or(u32::MAX);
        Gpu::on_stream(index, stream)
    }

    /// Another stream in the same context: what is enqueued on one and on the other has no order, but for [`Gpu::record`] and
    /// [`Gpu::wait_for`]. Handles, buffers and workspaces belong to one stream each.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn another_stream(&self) -> Result<Arc<Gpu>, Error> {
        let _bound = self.bind()?;
        let stream = self.check(None, "making a stream", self.context().new_stream())?;
        let pool = self.check(None, "making a memory pool", MemoryPool::new(self.context()))?;
        Ok(Arc::new(Gpu {
            profile: self.profile.clone(),
            pool,
            context: Restoring::new(Arc::clone(self.context())),
            stream: Restoring::new(stream),
            lent: false,
            in_engine: self.in_engine,
            modules: Arc::clone(&self.modules),
            lost: OnceLock::new(),
            memory_use: MemoryUse::of(self.profile.index),
            capture: Capture::default(),
            later: Later::default(),
            reached_by: Mutex::default(),
        }))
    }

    /// The driver's handle of its stream (`CUstream`, which is `cudaStream_t` too). It lives as long as this does.
    pub fn stream_handle(&self) -> *mut c_void {
        self.stream().cu_stream().cast()
    }

    /// The driver's handle of its context (`CUcontext`).
    pub fn context_handle(&self) -> *mut c_void {
        self.context().cu_ctx().cast()
    }

    /// Whether the engine captures its stream.
    pub(crate) fn engine_captures(&self) -> Result<bool, Error> {
        let raw = self.stream().cu_stream();
        // The legacy default stream can't be captured, and asking is refused while a stream that waits for it is.
        if !self.lent || raw.is_null() || raw as usize == LEGACY {
            return Ok(false);
        }
        let _bound = self.bind()?;
        // SAFETY: the stream was not destroyed.
        let status = unsafe { result::stream::is_capturing(raw) };
        let status = self.check(None, "asking whether the stream is captured", status)?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// The index of the device that memory at an address belongs to, or what the driver says.
    pub(super) fn device_of(&self, address: u64) -> Result<Result<u32, String>, Error> {
        let _bound = self.bind()?;
        let mut ordinal = 0i32;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: the attribute is an int; the driver only looks the address up.
        let asked =
            unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast::<c_void>(), attribute, address) };
        Ok(asked.result().map(|()| u32::try_from(ordinal).unwrap_or(u32::MAX)).map_err(words))
    }

    fn on_stream(index: u32, stream: &Arc<CudaStream>) -> Result<Arc<Gpu>, Error> {
        super::kept::give_back();
        let profile = probe::detect(index).map_err(|why| Error::NoGpu { index, why })?;
        let failed = |error: DriverError| Error::Gpu(Box::new(GpuFailure::new(index, None, OPENING, error)));
        let (context, raw) = (stream.context(), stream.cu_stream());
        if raw as usize == PER_THREAD {
            return Err(refused(index, "a stream", LentFault::PerThreadStream));
        }
        let _found = Found::now();
        context.bind_to_thread().map_err(failed)?;
        let mut of = null_mut();
        // SAFETY: the stream was not destroyed; the other pointer is to a context.
        unsafe { sys::cuStreamGetCtx(raw, &raw mut of) }.result().map_err(failed)?;
        if of != context.cu_ctx() {
            return Err(refused(index, "a stream", LentFault::ForeignStream));
        }
        Ok(Arc::new(Gpu {
            profile,
            pool: MemoryPool::new(context).map_err(failed)?,
            context: Restoring::new(Arc::clone(context)),
            stream: Restoring::new(Arc::clone(stream)),
            lent: true,
            in_engine: true,
            modules: Arc::default(),
            lost: OnceLock::new(),
            memory_use: MemoryUse::of(index),
            capture: Capture::default(),
            later: Later::default(),
            reached_by: Mutex::default(),
        }))
    }
}

fn refused(index: u32, what: &'static str, why: LentFault) -> Error {
    Error::Lent { what, index, why: Box::new(why) }
}
