//! Memory of a device as a whole: what buffers hold, and what the driver's pool keeps for the next ones.

use super::context::relaxed;
use super::device::Gpu;
use super::pool::MemoryPool;
use crate::device::Device;
use crate::error::Error;
use crate::observe::{Allocation, observer};
use cudarc::driver::DriverError;
use cudarc::driver::result::{free_async, free_sync, malloc_sync, mem_pool};
use cudarc::driver::sys::CUmemPool_attribute;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// The pool that they come from, where the device has pools.
    pub pool: Option<Pool>,
}

/// An opened device's pool of memory, as the driver counts it. It is gristmill's own: what other libraries of the process
/// allocate is elsewhere.
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
    /// Memory of so many bytes, more than none, whose contents mean nothing: its address.
    pub(super) fn allocate(&self, bytes: usize) -> Result<u64, Error> {
        super::kept::give_back();
        let observer = observer();
        let allocate = |stream| {
            // Asked for under the lock of the stream, whose pool it is: nobody else allocates in between.
            let reserved = || observer.and_then(|_| self.reserved());
            let before = reserved();
            // SAFETY: pool and stream are the device's own, and its context is current.
            let address = unsafe {
                match &self.pool {
                    Some(pool) => mem_pool::alloc_async(pool.0, bytes, stream),
                    None => relaxed(|| malloc_sync(bytes)),
                }
            }?;
            Ok::<_, DriverError>((address, before.zip(reserved())))
        };
        let allocated = self.outside_capture("allocated", allocate)?;
        let (address, reserved) = allocated.map_err(|error| self.out_of_memory(bytes, error))?;
        if let Some(observer) = observer {
            let grown = reserved.map(|(before, now)| {
                self.memory_use.reserve(now);
                now.saturating_sub(before)
            });
            let device = Device::cuda(self.profile.index);
            observer.allocated(&Allocation { device, bytes: bytes as u64, grown });
        }
        Ok(address)
    }

    /// Bytes that the pool has taken from the device. The context is current.
    fn reserved(&self) -> Option<u64> {
        self.pool.as_ref()?.number(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT).ok()
    }

    /// Frees memory that [`allocate`](Gpu::allocate) gave, behind what was enqueued. The stream is locked, and not captured.
    pub(super) fn free_now(&self, address: u64) {
        let free = || {
            let _bound = self.bind()?;
            // SAFETY: the caller gives it up; the stream is the device's own, and its context is current. Without pools,
            // freeing is not in the order of the stream, so that is waited for.
            let freed = unsafe {
                match self.pool {
                    Some(_) => free_async(address, self.stream().cu_stream()),
                    None => self.stream().synchronize().and_then(|()| relaxed(|| free_sync(address))),
                }
            };
            self.check(None, "freeing memory", freed)
        };
        // Whoever drops memory can't be told; a lost device is remembered, and the next call says so.
        let _: Result<(), Error> = free();
    }

    /// What is held of the device's memory.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn memory_held(&self) -> Result<DeviceMemory, Error> {
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let _bound = self.bind()?;
        let counted = |pool: &MemoryPool| {
            let number = |which| self.check(None, "asking for the memory pool", pool.number(which));
            Ok::<_, Error>(Pool {
                reserved: number(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
                most_reserved: number(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
                used: number(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
                most_used: number(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
            })
        };
        let pool = self.pool.as_ref().map(counted).transpose()?;
        let used = &self.memory_use;
        Ok(DeviceMemory {
            bytes: count(&used.bytes),
            most_bytes: count(&used.most),
            buffers: count(&used.buffers),
            allocations: count(&used.allocations),
            pool,
        })
    }

    /// Sets how many bytes the device's pool keeps when nothing uses them. An opened device keeps all, so that steps that
    /// allocate and free the same again never wait for the system; where a device is shared with other processes, or with
    /// other libraries of this one, less may be better. The pool is gristmill's own: what other libraries keep stays as it
    /// is. Without a pool nothing is kept.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn keep_memory(&self, bytes: u64) -> Result<(), Error> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let _bound = self.bind()?;
        self.check(None, "setting what the memory pool keeps", pool.keep(bytes))
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
        let Some(pool) = &self.pool else { return Ok(()) };
        let _bound = self.bind()?;
        // SAFETY: the pool is the device's own.
        let trimmed = relaxed(|| unsafe { mem_pool::trim_to(pool.0, keep) });
        self.check(None, "giving memory back", trimmed)?;
        if let Some(reserved) = observer().and_then(|_| self.reserved()) {
            self.memory_use.reserve(reserved);
        }
        Ok(())
    }
}
