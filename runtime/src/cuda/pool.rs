//! A pool of memory on a device, and the counters of its buffers.

use super::context::relaxed;
use crate::device::Device;
use crate::observe::HeldMemory;
use cudarc::driver::result::mem_pool;
use cudarc::driver::sys::{
    CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPool_attribute,
    CUmemPoolProps, CUmemoryPool,
};
use cudarc::driver::{CudaContext, DriverError};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Counters of the buffers of a device's stream.
#[derive(Debug)]
pub(super) struct MemoryUse {
    /// The device.
    index: u32,
    pub(super) bytes: AtomicU64,
    pub(super) most: AtomicU64,
    pub(super) buffers: AtomicU64,
    pub(super) allocations: AtomicU64,
    /// Bytes that the pool had taken from the device when it was asked last.
    reserved: AtomicU64,
}

/// Those of all streams that are open.
static ALL: Mutex<Vec<Weak<MemoryUse>>> = Mutex::new(Vec::new());

/// The pool was not asked.
const UNKNOWN: u64 = u64::MAX;

/// What is held of each device's memory, by device.
pub(crate) fn held_memory() -> Vec<HeldMemory> {
    let mut held: Vec<HeldMemory> = Vec::new();
    // The list is whole whenever the lock is free.
    for used in ALL.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade) {
        let device = Device::cuda(used.index);
        let (bytes, reserved) = (used.bytes.load(Ordering::Relaxed), used.reserved.load(Ordering::Relaxed));
        let reserved = match used.allocations.load(Ordering::Relaxed) {
            0 => Some(0),
            _ => Some(reserved).filter(|reserved| *reserved != UNKNOWN),
        };
        match held.iter_mut().find(|known| known.device == device) {
            Some(known) => {
                known.bytes += bytes;
                known.reserved = known.reserved.zip(reserved).map(|(a, b)| a + b);
            }
            None => held.push(HeldMemory { device, bytes, reserved }),
        }
    }
    held.sort_by_key(|known| known.device.index);
    held
}

impl MemoryUse {
    /// Of a stream of this device, where nothing is held yet.
    pub(super) fn of(index: u32) -> Arc<MemoryUse> {
        let [bytes, most, buffers, allocations] = [0; 4].map(AtomicU64::new);
        let used = MemoryUse { index, bytes, most, buffers, allocations, reserved: AtomicU64::new(UNKNOWN) };
        let used = Arc::new(used);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&used));
        used
    }

    /// The pool has taken so much from the device.
    pub(super) fn reserve(&self, bytes: u64) {
        self.reserved.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn taken(&self, bytes: u64) {
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(now, Ordering::Relaxed);
        self.buffers.fetch_add(1, Ordering::Relaxed);
        self.allocations.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn freed(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.buffers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A pool of memory on a device, for allocations in the order of a stream.
#[derive(Debug)]
pub(super) struct MemoryPool(pub(super) CUmemoryPool);

// SAFETY: the driver's pools may be used by several threads at once.
unsafe impl Send for MemoryPool {}

// SAFETY: as above.
unsafe impl Sync for MemoryPool {}

impl MemoryPool {
    /// One that keeps all that it ever took; none where the device has no pools. Not the device's default pool, which every
    /// library of the process takes from: what it keeps is not ours to say.
    pub(super) fn new(context: &CudaContext) -> Result<Option<MemoryPool>, DriverError> {
        if !context.has_async_alloc() {
            return Ok(None);
        }
        let properties = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: context.cu_device(),
            },
            win32SecurityAttributes: null_mut(),
            reserved: [0; 64],
        };
        // SAFETY: the properties are whole, and live until the call returns.
        let pool = MemoryPool(relaxed(|| unsafe { mem_pool::create(&raw const properties) })?);
        pool.keep(u64::MAX)?;
        Ok(Some(pool))
    }

    pub(super) fn keep(&self, mut bytes: u64) -> Result<(), DriverError> {
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the attribute is a u64.
        relaxed(|| unsafe { mem_pool::set_attribute(self.0, attribute, (&raw mut bytes).cast::<c_void>()) })
    }

    /// A number that the driver counts.
    pub(super) fn number(&self, which: CUmemPool_attribute) -> Result<u64, DriverError> {
        let mut number = 0u64;
        // SAFETY: the attributes that are asked for are u64.
        relaxed(|| unsafe { mem_pool::get_attribute(self.0, which, (&raw mut number).cast::<c_void>()) })?;
        Ok(number)
    }
}

impl Drop for MemoryPool {
    fn drop(&mut self) {
        // SAFETY: nothing allocates from it any more. What is still to be freed keeps what it needs of it; an error of work
        // that was enqueued before was told to whoever waited.
        let _ = relaxed(|| unsafe { mem_pool::destroy(self.0) });
    }
}
