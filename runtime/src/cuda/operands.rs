//! Operands of the parts of a divided layer on one device, in the workspace's memory there.

use super::between::Pinned;
use super::buffer::{DeviceBuffer, Number, room};
use super::device::Gpu;
use super::input::DeviceInput;
use crate::activations::Input;
use crate::error::Error;
use half::slice::HalfFloatSliceExt as _;
use std::sync::Arc;

/// Memory for them.
#[derive(Debug, Default)]
pub(crate) struct Operands {
    x: Option<DeviceBuffer<f32>>,
    halves: Option<DeviceBuffer<u16>>,
    bias: Option<DeviceBuffer<f32>>,
    y: Option<DeviceBuffer<f32>>,
    pinned: Option<Pinned<f32>>,
    pinned_halves: Option<Pinned<u16>>,
}

impl Operands {
    pub(super) fn bytes(&self) -> usize {
        let f32s = [&self.x, &self.bias, &self.y];
        let f32s: usize = f32s.iter().map(|buffer| buffer.as_ref().map_or(0, DeviceBuffer::bytes)).sum();
        f32s + self.halves.as_ref().map_or(0, DeviceBuffer::bytes)
    }
}

/// A number of activations, and where those of a divided layer are held.
pub(crate) trait Activation: Number {
    #[doc(hidden)]
    fn place(operands: &mut Operands) -> (&mut Option<DeviceBuffer<Self>>, &mut Option<Pinned<Self>>);
}

impl Activation for f32 {
    fn place(operands: &mut Operands) -> (&mut Option<DeviceBuffer<f32>>, &mut Option<Pinned<f32>>) {
        (&mut operands.x, &mut operands.pinned)
    }
}

impl Activation for u16 {
    fn place(operands: &mut Operands) -> (&mut Option<DeviceBuffer<u16>>, &mut Option<Pinned<u16>>) {
        (&mut operands.halves, &mut operands.pinned_halves)
    }
}

/// Activations on a device, in the workspace's memory.
#[derive(Debug)]
pub(crate) enum HeldInput {
    F32(DeviceBuffer<f32>),
    F16(DeviceBuffer<u16>),
    Bf16(DeviceBuffer<u16>),
}

impl HeldInput {
    pub(crate) fn input(&self) -> DeviceInput<'_> {
        match self {
            HeldInput::F32(x) => DeviceInput::F32(x),
            HeldInput::F16(x) => DeviceInput::F16(x),
            HeldInput::Bf16(x) => DeviceInput::Bf16(x),
        }
    }
}

/// The start of a buffer that is made as large as it has to be.
fn start<T: Number>(
    place: &mut Option<DeviceBuffer<T>>,
    gpu: &Arc<Gpu>,
    len: usize,
) -> Result<DeviceBuffer<T>, Error> {
    room(place, gpu, len)?.view(0..len)
}

/// Buffers of these lengths one behind the other, each where kernels can write it.
fn behind_each_other(
    place: &mut Option<DeviceBuffer<f32>>,
    gpu: &Arc<Gpu>,
    lengths: &[usize],
) -> Result<Vec<DeviceBuffer<f32>>, Error> {
    let too_large = Error::TooLarge { what: "a buffer of a device" };
    let mut starts = Vec::with_capacity(lengths.len());
    let mut end = 0usize;
    for length in lengths {
        starts.push(end);
        let next = end.checked_add(*length).and_then(|end| end.checked_next_multiple_of(4));
        end = next.ok_or(too_large.clone())?;
    }
    let all = room(place, gpu, end)?;
    starts.iter().zip(lengths).map(|(start, length)| all.view(*start..start + length)).collect()
}

impl Operands {
    /// Room for `len` activations on a device.
    pub(crate) fn activations<T: Activation>(
        &mut self,
        gpu: &Arc<Gpu>,
        len: usize,
    ) -> Result<DeviceBuffer<T>, Error> {
        start(T::place(self).0, gpu, len)
    }

    /// Page-locked memory for `len` of them, of the device that fills it.
    pub(crate) fn pinned<T: Activation>(
        &mut self,
        gpu: &Arc<Gpu>,
        len: usize,
    ) -> Result<&mut Pinned<T>, Error> {
        Pinned::room(T::place(self).1, gpu, len)
    }

    /// Copies floats of the processor's to a device.
    pub(crate) fn held(&mut self, gpu: &Arc<Gpu>, input: Input<'_>) -> Result<Option<HeldInput>, Error> {
        let mut halves = |bits: &[u16]| {
            let mut x = self.activations::<u16>(gpu, bits.len())?;
            x.write(bits)?;
            Ok::<_, Error>(x)
        };
        Ok(match input {
            Input::F16(x) => Some(HeldInput::F16(halves(x.reinterpret_cast())?)),
            Input::Bf16(x) => Some(HeldInput::Bf16(halves(x.reinterpret_cast())?)),
            Input::F32(values) => {
                let mut x = self.activations::<f32>(gpu, values.len())?;
                x.write(values)?;
                Some(HeldInput::F32(x))
            }
            Input::I8 { .. } => None,
        })
    }

    /// Room for outputs of these sizes.
    pub(crate) fn outputs(
        &mut self,
        gpu: &Arc<Gpu>,
        lengths: &[usize],
    ) -> Result<Vec<DeviceBuffer<f32>>, Error> {
        behind_each_other(&mut self.y, gpu, lengths)
    }

    /// Copies parts of a bias to a device.
    pub(crate) fn biases(
        &mut self,
        gpu: &Arc<Gpu>,
        parts: &[&[f32]],
    ) -> Result<Vec<DeviceBuffer<f32>>, Error> {
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        let mut buffers = behind_each_other(&mut self.bias, gpu, &lengths)?;
        for (buffer, part) in buffers.iter_mut().zip(parts) {
            buffer.write(part)?;
        }
        Ok(buffers)
    }
}
