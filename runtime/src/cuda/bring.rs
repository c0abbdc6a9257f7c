//! What lies on one device, for another: activations between layers that are on different devices.

use super::between::{Columns, Pinned};
use super::buffer::{DeviceBuffer, Number};
use crate::error::Error;
use std::sync::Arc;

impl<T: Number> DeviceBuffer<T> {
    /// Copies all of `other`, which may be on another device or stream, to the start of the buffer: behind everything that was
    /// enqueued on both, directly where the devices reach each other (`cuDeviceCanAccessPeer`), else through page-locked memory of the
    /// processor. Waits for it. On one stream this is [`copy`](DeviceBuffer::copy), which does not wait.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if it is more than there is room for; [`Error::Overlap`]; [`Error::Gpu`], also of a kernel that was
    /// launched before; [`Error::Capturing`].
    pub fn bring(&mut self, other: &DeviceBuffer<T>) -> Result<(), Error> {
        let (gpu, from) = (Arc::clone(self.gpu()), Arc::clone(other.gpu()));
        if Arc::ptr_eq(&gpu, &from) {
            self.copy(other)?;
            return gpu.synchronize();
        }
        if other.len() > self.len() {
            let (what, unit) = ("a buffer of another device", "values");
            return Err(Error::ShapeMismatch { what, unit, expected: other.len(), found: self.len() });
        }
        if other.is_empty() {
            return Ok(());
        }
        if self.overlaps(other) {
            return Err(Error::Overlap { kernel: "bring", what: "what is copied" });
        }
        let all = Columns::dense(1, other.len());
        // What made it, before another stream reads it.
        from.synchronize()?;
        if gpu.reaches(&from)? {
            // SAFETY: both are borrowed until it has been waited for, and nothing is enqueued for them meanwhile from here; what other
            // threads enqueue on views of them has no order, as for all streams.
            return unsafe { self.pull_columns(&gpu, all, (other, all)) }?.wait();
        }
        let mut pinned = None;
        let pinned = Pinned::room(&mut pinned, &from, other.len())?;
        pinned.fill(other, all)?;
        // SAFETY: likewise, and the page-locked memory lives until the copy has been waited for.
        unsafe { pinned.empty(self, all) }?.wait()
    }
}
