//! Memory of a device as a whole: what buffers hold, and what the driver's pool keeps for the next ones.

use super::device::Gpu;
use crate::error::Error;
use cudarc::driver::result::{device, mem_pool};
use cudarc::driver::sys::{CUmemPool_attribute, CUmemoryPool};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a device's buffers.
#[derive(Debug, Default)]
pub(super) struct MemoryUse {
    bytes: AtomicU64,
    most: AtomicU64,
    buffers: AtomicU64,
    allocations: AtomicU64,
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

/// What this process holds of a device's memory through gristmill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes in buffers that exist, those that only graphs still hold included. Without buffers and graphs it is 0:
    /// anything else is a leak.
    pub bytes: u64,
    /// The most that this ever was.
    pub most_bytes: u64,
    /// Buffers that exist.
    pub buffers: u64,
    /// Allocations since the device was opened. It stands still where every step uses the memory of the one before.
    pub allocations: u64,
    /// The driver's pool, where the device has one.
    pub pool: Option<Pool>,
}

/// The driver's pool of a device, as the driver counts it: everything of this process that is allocated in stream order, by
/// gristmill or by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Bytes taken from the device.
    pub reserved: u64,
    /// The most that this ever was.
    pub most_reserved: u64,
    /// Bytes of it in use.
    pub used: u64,
    /// The most that this ever was.
    pub most_used: u64,
}

impl Gpu {
    /// What is held of the device's memory.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn memory_held(&self) -> Result<DeviceMemory, Error> {
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let pool = match self.pool()? {
            None => None,
            Some(pool) => Some(Pool {
                reserved: self
                    .pool_number(pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
                most_reserved: self
                    .pool_number(pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
                used: self.pool_number(pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
                most_used: self.pool_number(pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
            }),
        };
        let used = &self.memory_use;
        Ok(DeviceMemory {
            bytes: count(&used.bytes),
            most_bytes: count(&used.most),
            buffers: count(&used.buffers),
            allocations: count(&used.allocations),
            pool,
        })
    }

    /// Sets how many bytes the driver's pool keeps when nothing uses them. An opened device keeps all, so that steps that
    /// allocate and free the same again never wait for the system; where a device is shared, less may be better.
    /// Without a pool nothing is kept.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn keep_memory(&self, bytes: u64) -> Result<(), Error> {
        let Some(pool) = self.pool()? else { return Ok(()) };
        let mut bytes = bytes;
        // SAFETY: the attribute is a u64, and the pool the device's own.
        let set = unsafe {
            mem_pool::set_attribute(
                pool,
                CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut bytes).cast::<c_void>(),
            )
        };
        self.check(None, "setting what the memory pool keeps", set)
    }

    /// Takes `bytes` from the device for buffers to come, so that the first of them is as fast as the others.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`], [`Error::Gpu`].
    pub fn reserve_memory(self: &Arc<Gpu>, bytes: usize) -> Result<(), Error> {
        drop(super::DeviceBuffer::<u8>::uninitialized(self, bytes)?);
        self.synchronize()
    }

    /// Gives memory that nothing uses back to the device, all but `keep` bytes of it.
    ///
    /// # Errors
    /// [`Error::Gpu`], also of a kernel that was launched before: freed memory is free once that has run.
    pub fn trim_memory(&self, keep: usize) -> Result<(), Error> {
        self.synchronize()?;
        let Some(pool) = self.pool()? else { return Ok(()) };
        // SAFETY: the pool is the device's own.
        let trimmed = unsafe { mem_pool::trim_to(pool, keep) };
        self.check(None, "giving memory back", trimmed)
    }

    /// The pool that stream-ordered allocations come from.
    fn pool(&self) -> Result<Option<CUmemoryPool>, Error> {
        if !self.context().has_async_alloc() {
            return Ok(None);
        }
        // SAFETY: the device is that of the open context.
        let pool = unsafe { device::get_mem_pool(self.context().cu_device()) };
        self.check(None, "asking for the memory pool", pool).map(Some)
    }

    fn pool_number(&self, pool: CUmemoryPool, which: CUmemPool_attribute) -> Result<u64, Error> {
        let mut number = 0u64;
        // SAFETY: the attributes that are asked for are u64, and the pool is the device's own.
        let asked = unsafe { mem_pool::get_attribute(pool, which, (&raw mut number).cast::<c_void>()) };
        self.check(None, "asking for the memory pool", asked).map(|()| number)
    }
}
