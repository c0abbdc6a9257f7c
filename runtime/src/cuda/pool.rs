//! A pool of memory on a device, and the counters of its buffers.

use cudarc::driver::result::mem_pool;
use cudarc::driver::sys::{
    CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPool_attribute,
    CUmemPoolProps, CUmemoryPool,
};
use cudarc::driver::{CudaContext, DriverError};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a device's buffers.
#[derive(Debug, Default)]
pub(super) struct MemoryUse {
    pub(super) bytes: AtomicU64,
    pub(super) most: AtomicU64,
    pub(super) buffers: AtomicU64,
    pub(super) allocations: AtomicU64,
}

impl MemoryUse {
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
        let pool = MemoryPool(unsafe { mem_pool::create(&raw const properties) }?);
        pool.keep(u64::MAX)?;
        Ok(Some(pool))
    }

    pub(super) fn keep(&self, mut bytes: u64) -> Result<(), DriverError> {
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the attribute is a u64.
        unsafe { mem_pool::set_attribute(self.0, attribute, (&raw mut bytes).cast::<c_void>()) }
    }

    /// A number that the driver counts.
    pub(super) fn number(&self, which: CUmemPool_attribute) -> Result<u64, DriverError> {
        let mut number = 0u64;
        // SAFETY: the attributes that are asked for are u64.
        unsafe { mem_pool::get_attribute(self.0, which, (&raw mut number).cast::<c_void>()) }?;
        Ok(number)
    }
}

impl Drop for MemoryPool {
    fn drop(&mut self) {
        // SAFETY: nothing allocates from it any more. What is still to be freed keeps what it needs of it; an error of work
        // that was enqueued before was told to whoever waited.
        let _ = unsafe { mem_pool::destroy(self.0) };
    }
}
