//! Devices and what lies on them: there are none.

use crate::gpu::{GpuProfile, NoGpu};
use crate::observe::HeldMemory;

/// No device is ever there.
pub(crate) fn detect(_: u32) -> Result<GpuProfile, NoGpu> {
    Err(NoGpu::FeatureOff)
}

/// Nothing is held on any.
pub(crate) fn held_memory() -> Vec<HeldMemory> {
    Vec::new()
}

/// A device by its index.
#[derive(Clone, Debug)]
pub(crate) struct Place(u32);

impl Place {
    pub(crate) fn at(index: u32) -> Place {
        Place(index)
    }

    pub(crate) fn index(&self) -> u32 {
        self.0
    }
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
