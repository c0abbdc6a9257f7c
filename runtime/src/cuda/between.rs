//! Copies between devices, and of rows that lie apart: what a layer that is divided over devices gathers its outputs by.

use super::buffer::{DeviceBuffer, Number};
use super::context::relaxed;
use super::device::Gpu;
use super::stream::{Behind, How};
use super::transfer::{Watched, of_one, of_two, words};
use crate::device::Device;
use crate::error::Error;
use crate::observe::{Cache, Transfer, TransferKind, looked_up};
use cudarc::driver::sys::{
    self, CUDA_MEMCPY2D, CUDA_MEMCPY3D_PEER, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation,
    CUmemLocationType, CUmemorytype, CUresult, CUstream,
};
use cudarc::driver::{DriverError, result};
use std::marker::PhantomData;
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Arc, PoisonError, Weak};

/// `count` rows of `width` values in a larger matrix whose rows are `stride` values apart: their first value is number `first` of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    pub(crate) count: usize,
    pub(crate) width: usize,
    pub(crate) first: usize,
    pub(crate) stride: usize,
}

impl Columns {
    /// All of a matrix, row after row.
    pub(crate) fn dense(count: usize, width: usize) -> Columns {
        Columns { count, width, first: 0, stride: width }
    }

    fn is_empty(self) -> bool {
        self.count == 0 || self.width == 0
    }

    /// Refuses columns that are not in a matrix of `len` values.
    fn check(self, what: &'static str, len: usize) -> Result<(), Error> {
        let too_large = Error::TooLarge { what };
        let before = self.count.saturating_sub(1).checked_mul(self.stride).ok_or(too_large.clone())?;
        let end = before.checked_add(self.first).and_then(|end| end.checked_add(self.width));
        let expected = end.ok_or(too_large)?;
        if self.stride < self.width || expected > len {
            return Err(Error::ShapeMismatch { what, unit: "values", expected, found: len });
        }
        Ok(())
    }

    fn values(self) -> usize {
        self.count.saturating_mul(self.width)
    }

    /// Bytes of its values.
    fn bytes<T>(self) -> usize {
        self.values().saturating_mul(size_of::<T>())
    }

    fn pitch<T>(self) -> usize {
        self.stride * size_of::<T>()
    }

    fn offset<T>(self) -> u64 {
        (self.first * size_of::<T>()) as u64
    }
}

/// A copy on its way. Who drops it waits for it, whatever becomes of the stream that it is on: another thread's capture, say, which no
/// other wait may come into.
#[derive(Debug)]
#[must_use = "dropped, it is waited for"]
pub(crate) struct UnderWay {
    behind: Behind,
    /// Who is told its time, until that was done.
    watched: Option<Watched>,
    gpu: Arc<Gpu>,
    /// The other device, or the same.
    beside: Arc<Gpu>,
    doing: &'static str,
}

impl UnderWay {
    /// The driver's event behind it.
    pub(super) fn handle(&self) -> *mut std::ffi::c_void {
        self.behind.handle()
    }

    /// Waits until it is done.
    pub(crate) fn wait(mut self) -> Result<(), Error> {
        let waited = self.waited();
        self.gpu.check_beside(&self.beside, self.doing, waited)
    }

    fn waited(&mut self) -> Result<(), DriverError> {
        self.behind.synchronize()?;
        if let Some(watched) = self.watched.take() {
            watched.done(&self.behind);
        }
        Ok(())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // Where that fails the device is lost, and copies nothing any more.
        let _ = self.waited();
    }
}

const DEVICE: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_DEVICE;
const HOST: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_HOST;

/// A copy of rows in memory of one device, or from or to the processor's. What it does not say is 0.
fn rows_copy<T>(width: usize, count: usize) -> CUDA_MEMCPY2D {
    CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: DEVICE,
        srcHost: null(),
        srcDevice: 0,
        srcArray: null_mut(),
        srcPitch: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: DEVICE,
        dstHost: null_mut(),
        dstDevice: 0,
        dstArray: null_mut(),
        dstPitch: 0,
        WidthInBytes: width * size_of::<T>(),
        Height: count,
    }
}

impl<T: Number> DeviceBuffer<T> {
    /// Copies rows that lie here one behind the other to `columns` of `to`, after everything that was enqueued before, and waits for it.
    pub(crate) fn read_columns(&self, to: &mut [T], columns: Columns) -> Result<(), Error> {
        let Columns { count, width, first, .. } = columns;
        columns.check("the output", to.len())?;
        Columns::dense(count, width).check("a buffer of a device", self.len())?;
        if columns.is_empty() {
            return Ok(());
        }
        let copy = CUDA_MEMCPY2D {
            srcDevice: self.input(),
            srcPitch: Columns::dense(count, width).pitch::<T>(),
            dstMemoryType: HOST,
            dstHost: to[first..].as_mut_ptr().cast(),
            dstPitch: columns.pitch::<T>(),
            ..rows_copy::<T>(width, count)
        };
        let transfer = of_one(self.gpu(), TransferKind::FromDevice, columns.bytes::<T>());
        self.gpu().copy_and_wait(transfer, |stream| {
            // SAFETY: both sides have the rows, as was compared; the copy is waited for.
            unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream) }.result()
        })
    }

    /// Copies rows of the processor's memory, one behind the other, to `columns` here, and waits for it.
    pub(crate) fn write_columns(&mut self, from: &[T], columns: Columns) -> Result<(), Error> {
        let Columns { count, width, .. } = columns;
        columns.check("a buffer of a device", self.len())?;
        Columns::dense(count, width).check("rows of the output", from.len())?;
        if columns.is_empty() {
            return Ok(());
        }
        let copy = CUDA_MEMCPY2D {
            srcMemoryType: HOST,
            srcHost: from.as_ptr().cast(),
            srcPitch: Columns::dense(count, width).pitch::<T>(),
            dstDevice: self.output() + columns.offset::<T>(),
            dstPitch: columns.pitch::<T>(),
            ..rows_copy::<T>(width, count)
        };
        let transfer = of_one(self.gpu(), TransferKind::ToDevice, columns.bytes::<T>());
        self.gpu().copy_and_wait(transfer, |stream| {
            // SAFETY: both sides have the rows, as was compared; the copy is waited for.
            unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream) }.result()
        })
    }

    /// Enqueues on `by`'s stream, which is that of one of the two devices, a copy of rows of `from` to as many here. They reach each other
    /// ([`Gpu::reaches`]), or are one device.
    ///
    /// # Safety
    /// Both buffers live until the copy is done, and what is enqueued on the other device's stream does not touch the rows until then.
    pub(crate) unsafe fn pull_columns(
        &mut self,
        by: &Arc<Gpu>,
        to: Columns,
        from: (&DeviceBuffer<T>, Columns),
    ) -> Result<UnderWay, Error> {
        let (source, columns) = from;
        to.check("a buffer of a device", self.len())?;
        columns.check("a buffer of another device", source.len())?;
        if (to.count, to.width) != (columns.count, columns.width) {
            let (what, unit) = ("rows of a buffer of another device", "values");
            return Err(Error::ShapeMismatch { what, unit, expected: to.values(), found: columns.values() });
        }
        let (target, contexts) = (self.output() + to.offset::<T>(), [source.gpu(), self.gpu()]);
        let [source_context, target_context] = contexts.map(|gpu| gpu.context.cu_ctx());
        let origin = source.input() + columns.offset::<T>();
        let copy = CUDA_MEMCPY3D_PEER {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: DEVICE,
            srcHost: null(),
            srcDevice: origin,
            srcArray: null_mut(),
            srcContext: source_context,
            srcPitch: columns.pitch::<T>(),
            srcHeight: to.count,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: DEVICE,
            dstHost: null_mut(),
            dstDevice: target,
            dstArray: null_mut(),
            dstContext: target_context,
            dstPitch: to.pitch::<T>(),
            dstHeight: to.count,
            WidthInBytes: to.width * size_of::<T>(),
            Height: to.count,
            Depth: 1,
        };
        let enqueue = |stream: CUstream| -> Result<(), DriverError> {
            if to.is_empty() {
                return Ok(());
            }
            if to.count == 1 {
                let bytes = to.width * size_of::<T>();
                // One row may be longer than the pitch of several may be.
                // SAFETY: as below.
                return unsafe {
                    sys::cuMemcpyPeerAsync(target, target_context, origin, source_context, bytes, stream)
                }
                .result();
            }
            // SAFETY: both sides have the rows, as was compared; the rest is the caller's.
            unsafe { sys::cuMemcpy3DPeerAsync(&raw const copy, stream) }.result()
        };
        let beside = if Arc::ptr_eq(by, self.gpu()) { source.gpu() } else { self.gpu() };
        on_its_way((by, beside), of_two(self.gpu(), source.gpu(), to.bytes::<T>()), enqueue)
    }
}

/// Enqueues a copy on the first device's stream; the second one has the other memory, or is the same.
pub(super) fn on_its_way(
    (by, beside): (&Arc<Gpu>, &Arc<Gpu>),
    transfer: Transfer,
    enqueue: impl FnOnce(CUstream) -> Result<(), DriverError>,
) -> Result<UnderWay, Error> {
    let (what, doing) = words(transfer.kind);
    let watched = Watched::of(transfer);
    let how = How { timed: Watched::is_timed(watched.as_ref()), alone: false };
    let (behind, enqueued) = by.with_event(what, None, doing, how, enqueue)?;
    // Dropped where it failed.
    let [gpu, other] = [by, beside].map(Arc::clone);
    let mut under_way = UnderWay { behind, watched: None, gpu, beside: other, doing };
    by.check_beside(beside, doing, enqueued)?;
    under_way.watched = watched.inspect(Watched::taken);
    Ok(under_way)
}

impl Gpu {
    /// As [`check`](Gpu::check), of a call that names another device's context too. It fails where that one is lost, which is no loss
    /// of this one.
    fn check_beside<T>(
        &self,
        other: &Gpu,
        doing: &'static str,
        outcome: Result<T, DriverError>,
    ) -> Result<T, Error> {
        if outcome.is_err() && !std::ptr::eq(self, other) {
            match other.synchronize() {
                Err(Error::Gpu(failure)) if failure.is_lost() => return Err(Error::Gpu(failure)),
                // It answers, or says something that the call was not stopped by.
                Ok(()) | Err(_) => {}
            }
        }
        self.check(None, doing, outcome)
    }

    /// Whether this device reaches memory of another one, and may now: access is given where the driver says that it can be.
    pub(crate) fn reaches(self: &Arc<Gpu>, other: &Arc<Gpu>) -> Result<bool, Error> {
        if self.profile.index == other.profile.index {
            return Ok(true);
        }
        // The list is whole whenever the lock is free. It is held while access is given, so that this is done once.
        let mut known = other.reached_by.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(gpu, _)| gpu.strong_count() > 0);
        if let Some((_, reaches)) = known.iter().find(|(gpu, _)| Weak::as_ptr(gpu) == Arc::as_ptr(self)) {
            return Ok(*reaches);
        }
        let [this, peer] = [self, other].map(|gpu| gpu.context.cu_device());
        let mut can = 0;
        // SAFETY: the devices are the driver's own, and the pointer is to an int.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, this, peer) }.result();
        self.check_beside(other, "asking for peer access", asked)?;
        if can != 0 {
            let _bound = self.bind()?;
            // SAFETY: both contexts are kept by their devices.
            let enabled = unsafe { sys::cuCtxEnablePeerAccess(other.context.cu_ctx(), 0) };
            match enabled {
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
                // Such devices copy through the processor's memory, as those do that the driver says it of before.
                CUresult::CUDA_ERROR_TOO_MANY_PEERS | CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => can = 0,
                other_outcome => {
                    self.check_beside(other, "enabling peer access", other_outcome.result())?;
                }
            }
            // Memory of pools is not given with that of the context.
            if let Some(pool) = other.pool.as_ref().filter(|_| can != 0) {
                let access = CUmemAccessDesc {
                    location: CUmemLocation {
                        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                        id: this,
                    },
                    flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                };
                // SAFETY: the pool is the device's own, and the one description lives until the call returns.
                let given = unsafe { sys::cuMemPoolSetAccess(pool.0, &raw const access, 1) }.result();
                self.check_beside(other, "giving access to a memory pool", given)?;
            }
        }
        known.push((Arc::downgrade(self), can != 0));
        Ok(can != 0)
    }
}

/// Page-locked memory, which devices that do not reach each other copy through.
#[derive(Debug)]
pub(crate) struct Pinned<T: Number> {
    memory: NonNull<T>,
    len: usize,
    gpu: Arc<Gpu>,
    values: PhantomData<T>,
}

// SAFETY: memory of numbers, of which this is the only owner.
unsafe impl<T: Number> Send for Pinned<T> {}

// SAFETY: shared references to it read nothing.
unsafe impl<T: Number> Sync for Pinned<T> {}

impl<T: Number> Pinned<T> {
    /// Room for `len` numbers, of whatever value, which all devices know as page-locked.
    pub(super) fn new(gpu: &Arc<Gpu>, len: usize) -> Result<Pinned<T>, Error> {
        let count = len.max(1);
        let bytes =
            count.checked_mul(size_of::<T>()).ok_or(Error::TooLarge { what: "page-locked memory" })?;
        let _bound = gpu.bind()?;
        // SAFETY: the device's context is current; nothing is read before a device has written it.
        let memory = relaxed(|| unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) });
        let memory = gpu.check(None, "allocating page-locked memory", memory)?;
        let memory = NonNull::new(memory.cast()).ok_or(Error::OutOfMemory { required: bytes })?;
        Ok(Pinned { memory, len: count, gpu: Arc::clone(gpu), values: PhantomData })
    }

    /// Where it begins.
    pub(super) fn pointer(&self) -> *mut T {
        self.memory.as_ptr()
    }

    /// Memory for `len` numbers: `place`'s, made or made larger if need be. Nothing is enqueued that uses it.
    pub(crate) fn room<'p>(
        place: &'p mut Option<Pinned<T>>,
        gpu: &Arc<Gpu>,
        len: usize,
    ) -> Result<&'p mut Pinned<T>, Error> {
        let fits = place.as_ref().is_some_and(|pinned| pinned.len >= len);
        looked_up(Cache::Workspace, Device::cuda(gpu.profile().index), fits);
        if !fits {
            *place = None;
            *place = Some(Pinned::new(gpu, len)?);
        }
        place.as_mut().ok_or(Error::TooLarge { what: "page-locked memory" })
    }

    /// Copies rows of `from` to here, one behind the other, behind what was enqueued on their device's stream, and waits for it.
    pub(crate) fn fill(&mut self, from: &DeviceBuffer<T>, columns: Columns) -> Result<(), Error> {
        let dense = Columns::dense(columns.count, columns.width);
        dense.check("page-locked memory", self.len)?;
        columns.check("a buffer of a device", from.len())?;
        let copy = CUDA_MEMCPY2D {
            srcDevice: from.input() + columns.offset::<T>(),
            srcPitch: columns.pitch::<T>(),
            dstMemoryType: HOST,
            dstHost: self.memory.as_ptr().cast(),
            dstPitch: dense.pitch::<T>(),
            ..rows_copy::<T>(columns.width, columns.count)
        };
        let transfer = of_one(from.gpu(), TransferKind::ThroughHost, columns.bytes::<T>());
        from.gpu().copy_and_wait(transfer, |stream| {
            // SAFETY: both sides have the rows, as was compared; the copy is waited for.
            unsafe { locked_copy(&copy, stream) }
        })
    }

    /// Enqueues a copy of what is here to rows of `to`, on their device's stream.
    ///
    /// # Safety
    /// This and `to` live until it is done, and nothing else uses the memory until then.
    pub(crate) unsafe fn empty(&self, to: &mut DeviceBuffer<T>, columns: Columns) -> Result<UnderWay, Error> {
        let dense = Columns::dense(columns.count, columns.width);
        dense.check("page-locked memory", self.len)?;
        columns.check("a buffer of a device", to.len())?;
        let copy = CUDA_MEMCPY2D {
            srcMemoryType: HOST,
            srcHost: self.memory.as_ptr().cast(),
            srcPitch: dense.pitch::<T>(),
            dstDevice: to.output() + columns.offset::<T>(),
            dstPitch: columns.pitch::<T>(),
            ..rows_copy::<T>(columns.width, columns.count)
        };
        let enqueue = |stream: CUstream| {
            // SAFETY: both sides have the rows, as was compared; the rest is the caller's.
            unsafe { locked_copy(&copy, stream) }
        };
        let transfer = of_one(to.gpu(), TransferKind::ThroughHost, columns.bytes::<T>());
        on_its_way((to.gpu(), to.gpu()), transfer, enqueue)
    }
}

/// Enqueues a copy of rows between page-locked memory and a device.
///
/// # Safety
/// `copy` names memory that has the rows, and lives until it is done; the stream is the device's, whose context is current.
unsafe fn locked_copy(copy: &CUDA_MEMCPY2D, stream: CUstream) -> Result<(), DriverError> {
    let CUDA_MEMCPY2D { WidthInBytes: width, Height: height, .. } = *copy;
    if width == 0 || height == 0 {
        return Ok(());
    }
    // One row may be longer than the pitch of several may be.
    // SAFETY: the caller's; the description is copied by the call.
    let done = unsafe {
        match (height, copy.dstMemoryType == HOST) {
            (1, true) => sys::cuMemcpyDtoHAsync_v2(copy.dstHost, copy.srcDevice, width, stream),
            (1, false) => sys::cuMemcpyHtoDAsync_v2(copy.dstDevice, copy.srcHost, width, stream),
            _ => sys::cuMemcpy2DAsync_v2(copy, stream),
        }
    };
    done.result()
}

impl<T: Number> Drop for Pinned<T> {
    fn drop(&mut self) {
        // It waits for what uses it; a device that is lost uses nothing any more.
        let _bound = self.gpu.bind();
        // SAFETY: it came from there, and nobody has it any more.
        let _ = relaxed(|| unsafe { result::free_host(self.memory.as_ptr().cast()) });
    }
}
