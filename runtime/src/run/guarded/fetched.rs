//! Operands of a run that lie on a GPU, in the processor's memory: for the runs that are compared.

use crate::activations::Input;
use crate::cuda::{DeviceBuffer, DeviceInput};
use crate::error::Error;
use crate::room::zeros;
use half::{bf16, f16};

/// The operands of a run, and what it came to.
pub(super) struct Fetched {
    values: Values,
    pub(super) bias: Option<Vec<f32>>,
    pub(super) y: Vec<f32>,
}

enum Values {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Fetched {
    /// Copies the operands of a run that was waited for.
    pub(super) fn from_device(
        input: DeviceInput<'_>,
        bias: Option<&DeviceBuffer<f32>>,
        y: &DeviceBuffer<f32>,
    ) -> Result<Fetched, Error> {
        let bits = |buffer: &DeviceBuffer<u16>| {
            let mut bits = zeros(buffer.len())?;
            buffer.read(&mut bits).map(|()| bits)
        };
        let floats = |buffer: &DeviceBuffer<f32>| {
            let mut values = zeros(buffer.len())?;
            buffer.read(&mut values).map(|()| values)
        };
        let values = match input {
            DeviceInput::F32(x) => Values::F32(floats(x)?),
            DeviceInput::F16(x) => Values::F16(bits(x)?.into_iter().map(f16::from_bits).collect()),
            DeviceInput::Bf16(x) => Values::Bf16(bits(x)?.into_iter().map(bf16::from_bits).collect()),
        };
        Ok(Fetched { values, bias: bias.map(floats).transpose()?, y: floats(y)? })
    }

    pub(super) fn input(&self) -> Input<'_> {
        match &self.values {
            Values::F32(x) => Input::F32(x),
            Values::F16(x) => Input::F16(x),
            Values::Bf16(x) => Input::Bf16(x),
        }
    }
}
