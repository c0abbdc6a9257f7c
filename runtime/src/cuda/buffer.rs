//! Memory of a device, freed when it goes out of scope.

use super::device::Gpu;
use crate::error::Error;
use cudarc::driver::{DeviceRepr, result};
use std::any::Any;
use std::marker::PhantomData;
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
///
/// What copies from or to the processor's memory has done so when it returns. So it takes slices of any memory: ordinary,
/// page-locked or managed, to be written, read or freed right afterwards.
#[derive(Debug)]
pub struct DeviceBuffer<T: Number> {
    storage: Arc<Storage>,
    len: usize,
    values: PhantomData<T>,
}

/// Memory, with the device that it belongs to.
#[derive(Debug)]
struct Storage {
    bytes: u64,
    address: u64,
    gpu: Arc<Gpu>,
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.gpu.memory_use.freed(self.bytes);
        self.gpu.free(self.address);
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
        let address = gpu.allocate(required)?;
        let bytes = required as u64;
        gpu.memory_use.taken(bytes);
        let storage = Storage { bytes, address, gpu: Arc::clone(gpu) };
        Ok(DeviceBuffer { storage: Arc::new(storage), len, values: PhantomData })
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

    /// Copies `values` to the start of the buffer, after everything that was enqueued before, and waits for it.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if they are more than it holds; [`Error::Gpu`], also of a kernel that was launched
    /// before; [`Error::Capturing`].
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
        let Storage { address, gpu, .. } = &*self.storage;
        gpu.and_wait("copied to the device", None, "copying to the device", |stream| {
            // SAFETY: the buffer has room for the values; the stream is its device's. The copy is waited for: of
            // page-locked memory the driver has taken nothing when this returns, and of other memory not on every system.
            unsafe { result::memcpy_htod_async(*address, values, stream) }
        })
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
        let Storage { address, gpu, .. } = &*self.storage;
        let from = address + (start * size_of::<T>()) as u64;
        gpu.and_wait("copied from the device", None, "copying from the device", |stream| {
            // SAFETY: so many values lie there, and every bit pattern is one; the copy is waited for.
            unsafe { result::memcpy_dtoh_async(values, from, stream) }
        })
    }

    /// As [`read`](DeviceBuffer::read), and sets every byte behind it: nothing that is enqueued comes between.
    ///
    /// # Errors
    /// As there.
    pub(super) fn read_and_fill(&mut self, values: &mut [T], byte: u8) -> Result<(), Error> {
        if values.len() > self.len {
            let (what, unit) = ("a buffer of a device", "values");
            return Err(Error::ShapeMismatch { what, unit, expected: values.len(), found: self.len });
        }
        let Storage { address, gpu, bytes } = &*self.storage;
        gpu.and_wait("copied from the device", None, "copying from the device", |stream| {
            // SAFETY: so many values and bytes lie there, and every bit pattern is a value; both are waited for.
            unsafe {
                result::memcpy_dtoh_async(values, *address, stream)?;
                result::memset_d8_async(*address, byte, *bytes as usize, stream)
            }
        })
    }

    /// Enqueues a copy of all of `other`, which is on the same device, to the start of the buffer.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if it is more than there is room for, or elsewhere; [`Error::Gpu`]; [`Error::Capturing`]
    /// while another thread captures.
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
        // SAFETY: both buffers have the bytes of `other`, on the stream's device.
        let copy = |stream| unsafe { result::memcpy_dtod_async(to, from, other.bytes(), stream) };
        gpu.check(None, "copying on the device", gpu.enqueue(copy)?)
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
        // SAFETY: the buffer has as many bytes; the stream is its device's.
        let fill = |stream| unsafe { result::memset_d8_async(pointer, byte, bytes, stream) };
        gpu.check(None, "filling memory", gpu.enqueue(fill)?)
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
