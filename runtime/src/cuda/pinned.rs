//! Page-locked memory, and copies from there on a stream of their own, while another one computes.

use super::between::{Pinned, UnderWay, on_its_way};
use super::buffer::{DeviceBuffer, Number};
use super::device::Gpu;
use super::transfer::of_one;
use crate::error::Error;
use crate::observe::TransferKind;
use cudarc::driver::result;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// `len` numbers of the processor's in page-locked memory, from which a device copies by itself: [`Gpu::upload`]. Memory that is
/// page-locked is taken from all that the system has, so it is for what is copied often.
#[derive(Debug)]
pub struct PinnedBuffer<T: Number> {
    memory: Pinned<T>,
    len: usize,
}

impl<T: Number> PinnedBuffer<T> {
    /// Zeros.
    ///
    /// # Errors
    /// [`Error::Gpu`], [`Error::OutOfMemory`].
    pub fn zeroed(gpu: &Arc<Gpu>, len: usize) -> Result<PinnedBuffer<T>, Error> {
        let memory = Pinned::<T>::new(gpu, len)?;
        // SAFETY: there is room for `len` numbers, of which zeros are some; nobody else has the memory.
        unsafe { memory.pointer().write_bytes(0, len) };
        Ok(PinnedBuffer { memory, len })
    }

    /// A copy of `values`.
    ///
    /// # Errors
    /// As for [`PinnedBuffer::zeroed`].
    pub fn of(gpu: &Arc<Gpu>, values: &[T]) -> Result<PinnedBuffer<T>, Error> {
        let mut buffer = PinnedBuffer::zeroed(gpu, values.len())?;
        buffer.copy_from_slice(values);
        Ok(buffer)
    }
}

impl<T: Number> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: so many numbers were written when it was made; devices copy from it only while `Upload` or `Uploaded` has it.
        unsafe { std::slice::from_raw_parts(self.memory.pointer(), self.len) }
    }
}

impl<T: Number> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.memory.pointer(), self.len) }
    }
}

/// A copy from page-locked memory to a device that is enqueued on a stream of its own. Both memories belong to it meanwhile; dropped, it
/// waits for the copy.
#[derive(Debug)]
#[must_use = "dropped, it is waited for, and what was copied is lost"]
pub struct Upload<T: Number> {
    // In front of the memories: it waits before they go.
    under_way: UnderWay,
    to: DeviceBuffer<T>,
    from: PinnedBuffer<T>,
}

/// Page-locked memory from which something may still be copied.
#[derive(Debug)]
pub struct Uploaded<T: Number> {
    // In front of the memory: it waits before that goes.
    under_way: UnderWay,
    from: PinnedBuffer<T>,
}

impl Gpu {
    /// Enqueues a copy of all of `from` to the start of `to` on this stream, behind what is enqueued on the stream of `to` by now, and
    /// does not wait for it. Where this is [another stream](Gpu::another_stream) of the same device, what is enqueued on that of `to`
    /// from now on is computed meanwhile, until it [joins](Upload::join).
    ///
    /// ```
    /// use gristmill_runtime::cuda::{DeviceBuffer, Gpu, PinnedBuffer};
    /// use gristmill_runtime::Error;
    /// use std::sync::Arc;
    ///
    /// /// Two batches, of which the second one arrives while the first one is computed.
    /// fn both(
    ///     gpu: &Arc<Gpu>,
    ///     batches: [PinnedBuffer<f32>; 2],
    ///     places: [DeviceBuffer<f32>; 2],
    ///     compute: impl Fn(&DeviceBuffer<f32>) -> Result<(), Error>,
    /// ) -> Result<[PinnedBuffer<f32>; 2], Error> {
    ///     let copies = gpu.another_stream()?;
    ///     let ([one, other], [here, there]) = (batches, places);
    ///     let (one, other) = (copies.upload(one, here)?, copies.upload(other, there)?);
    ///     let (x, one) = one.join()?;
    ///     compute(&x)?;
    ///     let (x, other) = other.join()?;
    ///     compute(&x)?;
    ///     Ok([one.wait()?, other.wait()?])
    /// }
    /// # let _ = |gpu: &Arc<Gpu>, a, b| both(gpu, a, b, |_| Ok(()));
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if there are more values than room; [`Error::WrongDevice`] for a buffer of another device;
    /// [`Error::Capturing`], [`Error::Gpu`]. Both memories are given back then.
    pub fn upload<T: Number>(
        self: &Arc<Gpu>,
        from: PinnedBuffer<T>,
        mut to: DeviceBuffer<T>,
    ) -> Result<Upload<T>, Error> {
        if from.len() > to.len() {
            let (expected, found) = (from.len(), to.len());
            return Err(Error::ShapeMismatch {
                what: "a buffer of a device",
                unit: "values",
                expected,
                found,
            });
        }
        let other = Arc::clone(to.gpu());
        if self.context.cu_ctx() != other.context.cu_ctx() {
            return Err(Error::WrongDevice { kernel: "copy", index: self.profile.index });
        }
        if !Arc::ptr_eq(self, &other) {
            self.wait_for(&other.record()?)?;
        }
        let address = to.output();
        let enqueue = |stream| {
            if from.is_empty() {
                return Ok(());
            }
            // SAFETY: there is room for the values; both memories stay until the copy is done, since they are the result's, which waits
            // for it, or hands them out behind it.
            unsafe { result::memcpy_htod_async(address, &from, stream) }
        };
        let transfer = of_one(&other, TransferKind::ToDevice, size_of_val::<[T]>(&from));
        let under_way = on_its_way((self, &other), transfer, enqueue)?;
        Ok(Upload { under_way, to, from })
    }
}

impl<T: Number> Upload<T> {
    /// Lets what is enqueued from now on with the buffer wait for the copy, and gives the buffer back. Does not wait itself; the
    /// page-locked memory can be had again when the copy is done ([`Uploaded::wait`]).
    ///
    /// # Errors
    /// [`Error::Gpu`], [`Error::Capturing`]. The copy is waited for then, and the buffer is given back to the device.
    pub fn join(self) -> Result<(DeviceBuffer<T>, Uploaded<T>), Error> {
        // Dropped in the other order: the copy is waited for first.
        let Upload { to, from, under_way } = self;
        // SAFETY: the event lives in `under_way`.
        unsafe { to.gpu().wait_for_handle(under_way.handle()) }?;
        Ok((to, Uploaded { under_way, from }))
    }
}

impl<T: Number> Uploaded<T> {
    /// Waits until the copy is done, and gives the memory back.
    ///
    /// # Errors
    /// [`Error::Gpu`], also of a kernel in front of the copy.
    pub fn wait(self) -> Result<PinnedBuffer<T>, Error> {
        let Uploaded { from, under_way } = self;
        under_way.wait()?;
        Ok(from)
    }
}
