//! Memory of a device, freed when it goes out of scope.

use super::device::Gpu;
use super::lent::LentFault;
use super::transfer::of_one;
use crate::device::Device;
use crate::error::Error;
use crate::observe::{Cache, TransferKind, looked_up};
use crate::room::zeros;
use cudarc::driver::{DeviceRepr, result};
use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
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
    /// Where it begins, in the storage.
    address: u64,
    len: usize,
    values: PhantomData<T>,
}

/// Memory, with the device that it belongs to.
#[derive(Debug)]
struct Storage {
    /// What is freed; `None` for memory that is lent.
    own: Option<Own>,
    gpu: Arc<Gpu>,
}

/// Memory that goes back to the device.
#[derive(Debug)]
struct Own {
    bytes: u64,
    address: u64,
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Some(Own { bytes, address }) = self.own {
            self.gpu.memory_use.freed(bytes);
            self.gpu.free(address);
        }
    }
}

/// What addresses of buffers are multiples of, in bytes.
const ALIGNMENT: u64 = 16;

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

    /// A copy of weights.
    pub(super) fn of_weights(gpu: &Arc<Gpu>, values: &[T]) -> Result<DeviceBuffer<T>, Error> {
        let mut buffer = DeviceBuffer::uninitialized(gpu, values.len())?;
        buffer.write_as(TransferKind::Weights, values)?;
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
        let storage = Storage { own: Some(Own { bytes, address }), gpu: Arc::clone(gpu) };
        Ok(DeviceBuffer { storage: Arc::new(storage), address, len, values: PhantomData })
    }

    /// `len` numbers of an engine's at a device address (`CUdeviceptr`), lent for as long as the buffer lives. Nothing frees them
    /// here.
    ///
    /// # Errors
    /// [`Error::Lent`] for memory that is null, not aligned to 16 bytes, unknown to the driver, or another device's.
    ///
    /// # Safety
    /// So many numbers lie there on the device of `gpu`, and stay until the buffer, its views and graphs that were captured with
    /// it are dropped and what they enqueued has run. What is done with them elsewhere is in an order with the stream of `gpu`.
    pub unsafe fn lent(gpu: &Arc<Gpu>, address: u64, len: usize) -> Result<DeviceBuffer<T>, Error> {
        let index = gpu.profile().index;
        let refused = |why| Err(Error::Lent { what: "memory", index, why: Box::new(why) });
        if address == 0 {
            return refused(LentFault::NullAddress);
        }
        if !address.is_multiple_of(ALIGNMENT) {
            return refused(LentFault::Misaligned { address, needed: ALIGNMENT });
        }
        let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
        if bytes.and_then(|bytes| address.checked_add(bytes)).is_none() {
            return refused(LentFault::TooLong);
        }
        match gpu.device_of(address)? {
            Ok(found) if found == index => {}
            Ok(found) => return refused(LentFault::OtherDevice { found }),
            Err(error) => return refused(LentFault::UnknownAddress { address, error }),
        }
        let storage = Arc::new(Storage { own: None, gpu: Arc::clone(gpu) });
        Ok(DeviceBuffer { storage, address, len, values: PhantomData })
    }

    /// Some of its numbers, as a buffer in the same memory, which lives as long as one of them: a part of a stacked output, where
    /// there is one token. What is enqueued with one and with the other is in order.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for a range that is not in it, [`Error::Lent`] for one that does not begin at a multiple of 16
    /// bytes.
    pub fn view(&self, range: Range<usize>) -> Result<DeviceBuffer<T>, Error> {
        let (what, unit) = ("a buffer of a device", "values");
        if range.start > range.end || range.end > self.len {
            let expected = range.end.max(range.start);
            return Err(Error::ShapeMismatch { what, unit, expected, found: self.len });
        }
        let address = self.address + (range.start * size_of::<T>()) as u64;
        if !address.is_multiple_of(ALIGNMENT) {
            let why = Box::new(LentFault::Misaligned { address, needed: ALIGNMENT });
            return Err(Error::Lent { what: "a view", index: self.gpu().profile().index, why });
        }
        let storage = Arc::clone(&self.storage);
        Ok(DeviceBuffer { storage, address, len: range.len(), values: PhantomData })
    }

    /// Its device address (`CUdeviceptr`), for kernels of others on the same stream, or on one that is ordered with it by events.
    /// It is valid for as long as the buffer or a view of it lives.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Whether memory is shared with another buffer.
    pub(crate) fn overlaps<U: Number>(&self, other: &DeviceBuffer<U>) -> bool {
        let end = |address: u64, bytes: usize| address.saturating_add(bytes as u64);
        self.address < end(other.address, other.bytes()) && other.address < end(self.address, self.bytes())
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
        self.write_as(TransferKind::ToDevice, values)
    }

    fn write_as(&mut self, kind: TransferKind, values: &[T]) -> Result<(), Error> {
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
        let (gpu, address) = (&self.storage.gpu, self.address);
        gpu.copy_and_wait(of_one(gpu, kind, size_of_val(values)), |stream| {
            // SAFETY: the buffer has room for the values; the stream is its device's. The copy is waited for: of
            // page-locked memory the driver has taken nothing when this returns, and of other memory not on every system.
            unsafe { result::memcpy_htod_async(address, values, stream) }
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
        let gpu = &self.storage.gpu;
        let from = self.address + (start * size_of::<T>()) as u64;
        gpu.copy_and_wait(of_one(gpu, TransferKind::FromDevice, size_of_val(values)), |stream| {
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
        let (gpu, address, bytes) = (&self.storage.gpu, self.address, self.bytes());
        gpu.copy_and_wait(of_one(gpu, TransferKind::FromDevice, size_of_val(values)), |stream| {
            // SAFETY: so many values and bytes lie there, and every bit pattern is a value; both are waited for.
            unsafe {
                result::memcpy_dtoh_async(values, address, stream)?;
                result::memset_d8_async(address, byte, bytes, stream)
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
        if self.overlaps(other) {
            return Err(Error::Overlap { kernel: "copy", what: "what is copied" });
        }
        let (to, from) = (self.output(), other.input());
        let gpu = &self.storage.gpu;
        gpu.copy_in_order(of_one(gpu, TransferKind::WithinDevice, other.bytes()), |stream| {
            // SAFETY: both buffers have the bytes of `other`, on the stream's device.
            unsafe { result::memcpy_dtod_async(to, from, other.bytes(), stream) }
        })
    }

    /// All values.
    ///
    /// # Errors
    /// [`Error::Gpu`]; [`Error::OutOfMemory`].
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        let mut values = zeros(self.len)?;
        self.read(&mut values)?;
        Ok(values)
    }

    /// Sets every byte.
    pub(crate) fn fill_bytes(&mut self, byte: u8) -> Result<(), Error> {
        let (pointer, bytes) = (self.output(), self.bytes());
        if bytes == 0 {
            return Ok(());
        }
        let gpu = &self.storage.gpu;
        // SAFETY: the buffer has as many bytes; the stream is its device's.
        let fill = |stream| unsafe { result::memset_d8_async(pointer, byte, bytes, stream) };
        gpu.check(None, "filling memory", gpu.enqueue(fill)?)
    }

    /// The address for a kernel that reads it. A device has one stream, so that order is all that there is to keep.
    pub(crate) fn input(&self) -> u64 {
        self.storage.gpu.keep_for_graph(|| Arc::clone(&self.storage) as Arc<dyn Any + Send + Sync>);
        self.address
    }

    /// The address for a kernel that writes it.
    pub(crate) fn output(&mut self) -> u64 {
        self.input()
    }
}

/// A buffer with room for `len` numbers.
pub(super) fn room<'b, T: Number>(
    buffer: &'b mut Option<DeviceBuffer<T>>,
    gpu: &Arc<Gpu>,
    len: usize,
) -> Result<&'b mut DeviceBuffer<T>, Error> {
    let fits = buffer.as_ref().is_some_and(|buffer| buffer.len() >= len);
    looked_up(Cache::Workspace, Device::cuda(gpu.profile().index), fits);
    if !fits {
        // The old one goes first: there may not be room for both.
        *buffer = None;
        *buffer = Some(DeviceBuffer::uninitialized(gpu, len)?);
    }
    made(buffer)
}

/// A buffer that was made for this run.
pub(super) fn made<T: Number>(buffer: &mut Option<DeviceBuffer<T>>) -> Result<&mut DeviceBuffer<T>, Error> {
    buffer.as_mut().ok_or(Error::TooLarge { what: "a buffer of a device" })
}
