//! Memory of a device, freed when it goes out of scope.

use super::device::Gpu;
use crate::error::Error;
use cudarc::driver::{CudaSlice, DevicePtr as _, DeviceRepr, result};
use std::any::Any;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A number that memory of a device can hold.
pub trait Number: DeviceRepr + Copy + Default + private::Sealed + 'static {}

mod private {
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl private::Sealed for $number {}
        impl Number for $number {}
    )*};
}
numbers!(u8 i8 u16 i32 u32 f32 u64);

/// `len` numbers in a device's memory. Dropping it frees the memory, after everything that was enqueued before; a
/// [`Graph`](super::Graph) that uses it keeps the memory for as long as it lives.
#[derive(Debug)]
pub struct DeviceBuffer<T: Number> {
    storage: Arc<Storage<T>>,
    len: usize,
}

/// Memory, with the device that it belongs to.
#[derive(Debug)]
struct Storage<T: Number> {
    /// Taken when it is freed.
    slice: ManuallyDrop<CudaSlice<T>>,
    bytes: u64,
    address: u64,
    gpu: Arc<Gpu>,
}

impl<T: Number> Drop for Storage<T> {
    fn drop(&mut self) {
        // SAFETY: nothing uses it after this.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        self.gpu.memory_use.freed(self.bytes);
        // Freeing is an operation of the stream: in a capture it would become a part of the graph.
        self.gpu.after_capture(slice);
    }
}

impl<T: Number> DeviceBuffer<T> {
    /// Memory with all bits zero.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`], [`Error::Gpu`].
    pub fn zeroed(gpu: &Arc<Gpu>, len: usize) -> Result<DeviceBuffer<T>, Error> {
        let mut buffer = DeviceBuffer::uninitialized(gpu, len)?;
        buffer.fill_bytes(0)?;
        Ok(buffer)
    }

    /// A copy of `values`.
    ///
    /// # Errors
    /// As for [`DeviceBuffer::zeroed`].
    pub fn of(gpu: &Arc<Gpu>, values: &[T]) -> Result<DeviceBuffer<T>, Error> {
        let mut buffer = DeviceBuffer::uninitialized(gpu, values.len())?;
        buffer.write(values)?;
        Ok(buffer)
    }

    /// Memory whose contents mean nothing, and which is written before it is read.
    pub(crate) fn uninitialized(gpu: &Arc<Gpu>, len: usize) -> Result<DeviceBuffer<T>, Error> {
        // The driver has no empty allocations.
        let count = len.max(1);
        let required =
            count.checked_mul(size_of::<T>()).ok_or(Error::TooLarge { what: "a buffer of a device" })?;
        gpu.outside_capture("allocated")?;
        // SAFETY: every bit pattern is a number of a sealed type; nothing reads it before it is written.
        let slice = unsafe { gpu.stream().alloc::<T>(count) };
        let slice = slice.map_err(|error| gpu.out_of_memory(required, error))?;
        let address = slice.device_ptr(gpu.stream()).0;
        gpu.memory_use.taken(required as u64);
        let (slice, bytes) = (ManuallyDrop::new(slice), required as u64);
        Ok(DeviceBuffer { storage: Arc::new(Storage { slice, bytes, address, gpu: Arc::clone(gpu) }), len })
    }

    /// How many numbers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Its device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.storage.gpu
    }

    /// Copies `values` to the start of the buffer.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if they are more than it holds; [`Error::Gpu`].
    pub fn write(&mut self, values: &[T]) -> Result<(), Error> {
        if values.len() > self.len {
            return Err(Error::ShapeMismatch {
                what: "a buffer of a device",
                unit: "values",
                expected: values.len(),
                found: self.len,
            });
        }
        if values.is_empty() {
            return Ok(());
        }
        let gpu = &self.storage.gpu;
        gpu.outside_capture("copied to the device")?;
        gpu.bind()?;
        // SAFETY: the buffer has room for the values; the stream is its device's. The driver has taken ordinary memory
        // when it returns.
        let done =
            unsafe { result::memcpy_htod_async(self.storage.address, values, gpu.stream().cu_stream()) };
        gpu.check(None, "copying to the device", done)
    }

    /// Copies the start of the buffer to `values`, after everything that was enqueued before, and waits for it.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if they are more than it holds; [`Error::Gpu`], also of a kernel that was launched
    /// before.
    pub fn read(&self, values: &mut [T]) -> Result<(), Error> {
        self.read_from(0, values)
    }

    /// As [`read`](DeviceBuffer::read), from number `start` on.
    ///
    /// # Errors
    /// As there.
    pub fn read_from(&self, start: usize, values: &mut [T]) -> Result<(), Error> {
        let end = start.saturating_add(values.len());
        if end > self.len {
            return Err(Error::ShapeMismatch {
                what: "a buffer of a device",
                unit: "values",
                expected: end,
                found: self.len,
            });
        }
        if values.is_empty() {
            return Ok(());
        }
        let gpu = &self.storage.gpu;
        gpu.outside_capture("copied from the device")?;
        gpu.bind()?;
        let from = self.storage.address + (start * size_of::<T>()) as u64;
        // SAFETY: so many values lie there, and every bit pattern is one; the copy is waited for.
        let done = unsafe { result::memcpy_dtoh_async(values, from, gpu.stream().cu_stream()) };
        let done = gpu.check(None, "copying from the device", done);
        gpu.synchronize()?;
        done
    }

    /// Copies all of `other`, which is on the same device, to the start of the buffer.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if it is more than there is room for, or elsewhere; [`Error::Gpu`].
    pub fn copy(&mut self, other: &DeviceBuffer<T>) -> Result<(), Error> {
        if other.len > self.len || !Arc::ptr_eq(self.gpu(), other.gpu()) {
            let (what, unit) = ("a buffer of the same device", "values");
            return Err(Error::ShapeMismatch { what, unit, expected: other.len, found: self.len });
        }
        if other.is_empty() {
            return Ok(());
        }
        let (to, from) = (self.output(), other.input());
        let gpu = &self.storage.gpu;
        gpu.may_enqueue()?;
        gpu.bind()?;
        // SAFETY: both buffers have the bytes of `other`, on the stream's device.
        let done = unsafe { result::memcpy_dtod_async(to, from, other.bytes(), gpu.stream().cu_stream()) };
        gpu.check(None, "copying on the device", done)
    }

    /// All values.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        let mut values = vec![T::default(); self.len];
        self.read(&mut values)?;
        Ok(values)
    }

    /// Sets every byte.
    pub(crate) fn fill_bytes(&mut self, byte: u8) -> Result<(), Error> {
        let (pointer, bytes) = (self.output(), self.len.max(1) * size_of::<T>());
        let gpu = &self.storage.gpu;
        gpu.may_enqueue()?;
        gpu.bind()?;
        // SAFETY: the buffer has as many bytes; the stream is its device's.
        let done = unsafe { result::memset_d8_async(pointer, byte, bytes, gpu.stream().cu_stream()) };
        gpu.check(None, "filling memory", done)
    }

    /// The address for a kernel that reads it. A device has one stream, so that order is all that there is to keep.
    pub(crate) fn input(&self) -> u64 {
        self.storage.gpu.keep_for_graph(|| Arc::clone(&self.storage) as Arc<dyn Any + Send + Sync>);
        self.storage.address
    }

    /// The address for a kernel that writes it.
    pub(crate) fn output(&mut self) -> u64 {
        self.input()
    }
}
