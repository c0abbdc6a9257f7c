//! Devices and what lies on them: there are none.

use crate::gpu::{GpuProfile, NoGpu};

/// No device is ever there.
pub(crate) fn detect(_: u32) -> Result<GpuProfile, NoGpu> {
    Err(NoGpu::FeatureOff)
}

/// Weights on a device.
#[derive(Debug)]
pub(crate) enum Weights {}

impl Weights {
    pub(crate) fn bytes(&self) -> usize {
        match *self {}
    }
}

/// Memory of runs on a device.
#[derive(Debug)]
pub(crate) enum Scratch {}
