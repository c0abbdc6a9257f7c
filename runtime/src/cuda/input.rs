//! Activations that lie on a device.

use super::buffer::{DeviceBuffer, Number};
use super::device::Gpu;
use super::types::{BF16, F16, F32};
use gristmill_spec::vocab::DType;
use std::sync::Arc;

/// Activations in a device's memory: `m` rows of `k`. Those of two bytes as their bits.
#[derive(Clone, Copy, Debug)]
pub enum DeviceInput<'a> {
    /// binary32.
    F32(&'a DeviceBuffer<f32>),
    /// binary16.
    F16(&'a DeviceBuffer<u16>),
    /// bfloat16.
    Bf16(&'a DeviceBuffer<u16>),
}

impl DeviceInput<'_> {
    /// The type.
    pub fn dtype(&self) -> DType {
        match self {
            DeviceInput::F32(_) => DType::F32,
            DeviceInput::F16(_) => DType::F16,
            DeviceInput::Bf16(_) => DType::Bf16,
        }
    }

    /// How many values.
    pub fn len(&self) -> usize {
        match self {
            DeviceInput::F32(x) => x.len(),
            DeviceInput::F16(x) | DeviceInput::Bf16(x) => x.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn address(&self) -> u64 {
        match self {
            DeviceInput::F32(x) => x.input(),
            DeviceInput::F16(x) | DeviceInput::Bf16(x) => x.input(),
        }
    }

    /// The type, as `quantize_activations` takes it.
    pub(crate) fn word(&self) -> u32 {
        match self {
            DeviceInput::F32(_) => F32,
            DeviceInput::F16(_) => F16,
            DeviceInput::Bf16(_) => BF16,
        }
    }

    /// Whether memory is shared with a buffer.
    pub(crate) fn overlaps<T: Number>(&self, other: &DeviceBuffer<T>) -> bool {
        match self {
            DeviceInput::F32(x) => x.overlaps(other),
            DeviceInput::F16(x) | DeviceInput::Bf16(x) => x.overlaps(other),
        }
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        match self {
            DeviceInput::F32(x) => x.gpu(),
            DeviceInput::F16(x) | DeviceInput::Bf16(x) => x.gpu(),
        }
    }
}
