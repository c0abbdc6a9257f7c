//! Activations on a GPU that several layers read.

use super::Linear;
use crate::cuda::{DeviceActivations, DeviceBuffer, DeviceInput, DevicePrologue, DevicePrologueInput};
use crate::error::Error;
use crate::kernel::{Matmul, QuantizedProduct};
use crate::request::Shape;
use crate::run::choice::{Choice, refused};
use crate::workspace::Workspace;
use gristmill_spec::vocab::DType;

impl Linear {
    /// Enqueues the quantization of `m` tokens that are on the layer's GPU, for this layer and others that read the same
    /// ([`Linear::shares_activations_with`]), and does not wait for it: [`Workspace::finish`] does. A
    /// [`Graph`](crate::cuda::Graph) can be captured of it.
    ///
    /// # Errors
    /// [`Error::NoKernel`] if this `m` has none that multiplies quantized activations; else as for
    /// [`Matmul::quantize_on_device`].
    pub fn quantize_on_device<'w>(
        &self,
        input: DeviceInput<'_>,
        m: usize,
        workspace: &'w mut Workspace,
    ) -> Result<DeviceActivations<'w>, Error> {
        let reads = self.reads_quantized(m)?;
        let layout = reads.matmul.layout_on_device(self.k)?;
        self.beside(reads, Matmul::quantizes_on_device).quantize_as(layout, input, m, workspace)
    }

    /// As [`quantize_on_device`](Linear::quantize_on_device), of what the tokens are behind `prologue`: one launch does both.
    ///
    /// # Errors
    /// As there, and for [`Matmul::quantize_on_device_with`].
    pub fn quantize_on_device_with<'w>(
        &self,
        prologue: &DevicePrologue,
        input: DevicePrologueInput<'_>,
        m: usize,
        workspace: &'w mut Workspace,
    ) -> Result<DeviceActivations<'w>, Error> {
        let reads = self.reads_quantized(m)?;
        let layout = reads.matmul.layout_on_device(self.k)?;
        self.beside(reads, Matmul::has_prologue).quantize_as_with(layout, prologue, input, m, workspace)
    }

    /// Enqueues the product of activations that this layer or another one quantized, with the bits of
    /// [`Linear::forward_on_device`], and does not wait for it. `workspace` is another one than that in which the activations
    /// lie.
    ///
    /// # Errors
    /// [`Error::NoKernel`] as for [`Linear::quantize_on_device`]; else as for [`Matmul::run_quantized_on_device`].
    pub fn forward_quantized_on_device(
        &self,
        x: &DeviceActivations<'_>,
        bias: Option<&DeviceBuffer<f32>>,
        y: &mut DeviceBuffer<f32>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let Choice { matmul, packed } = self.reads_quantized(x.m())?;
        matmul.run_quantized_on_device(&self.packed[*packed], x, bias, y, workspace)
    }

    /// The same, looked at and not enqueued yet.
    pub(crate) fn quantized_product(
        &self,
        x: &DeviceActivations<'_>,
        bias: Option<&DeviceBuffer<f32>>,
        y: &DeviceBuffer<f32>,
    ) -> Result<QuantizedProduct<'_>, Error> {
        let Choice { matmul, packed } = self.reads_quantized(x.m())?;
        matmul.quantized_product(&self.packed[*packed], x, bias, y)
    }

    /// What multiplies `m` tokens that are quantized.
    fn reads_quantized(&self, m: usize) -> Result<&Choice, Error> {
        let shape = Shape { m: m.max(1), n: self.n, k: self.k };
        self.choice(shape, DType::I8).ok_or_else(|| refused(&self.prepared, shape))
    }

    /// `choice`, or where it has not what is asked for, a product of the layer that has: a kernel of quantized activations alone
    /// stands beside those that take floats.
    fn beside<'l>(&'l self, choice: &'l Choice, has: impl Fn(&Matmul) -> bool) -> &'l Matmul {
        let others = self.choices.iter().map(|other| &other.matmul);
        std::iter::once(&choice.matmul).chain(others).find(|matmul| has(matmul)).unwrap_or(&choice.matmul)
    }
}
