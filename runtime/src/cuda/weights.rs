//! Weights on a device.

use super::buffer::DeviceBuffer;

/// Weights on a device.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(super) codes: DeviceBuffer<u8>,
    pub(super) scales: DeviceBuffer<f32>,
    pub(super) mins: DeviceBuffer<f32>,
    pub(super) outer: DeviceBuffer<f32>,
    pub(super) table: Option<DeviceBuffer<u8>>,
}

impl Weights {
    /// Lets a graph that is being captured keep them, for a kernel that looks up where they are.
    pub(super) fn keep(&self) {
        let f32s = [&self.scales, &self.mins, &self.outer].map(DeviceBuffer::input);
        let _ = (self.codes.input(), f32s);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.codes.bytes() + self.scales.bytes() + self.mins.bytes() + self.outer.bytes()
    }
}
