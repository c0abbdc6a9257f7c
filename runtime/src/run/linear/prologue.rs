//! Activations of a layer through a prologue, in one pass with their quantization.

use super::Linear;
use crate::activations::QuantizedActivations;
#[cfg(feature = "cuda")]
use crate::cuda::{DeviceBuffer, DevicePrologue, DevicePrologueInput};
use crate::error::Error;
use crate::prologue::{Prologue, PrologueInput};
use crate::request::Shape;
use crate::run::choice::{Choice, refused};
use crate::threads::Threads;
use crate::workspace::Workspace;
use gristmill_spec::vocab::DType;

impl Linear {
    /// Takes `m` tokens through `prologue` (gate, residual, norm, transform) and quantizes them into `workspace`, in one pass, for
    /// this layer and others that read the same ([`Linear::shares_activations_with`]): what [`Linear::quantize`] would make of the
    /// rows behind the prologue, bit for bit. Allocates nothing, as [`Linear::forward`].
    ///
    /// A layer of folded weights takes the transform as the prologue's last step ([`Prologue::transformed`]), and is not
    /// [`Linear::transformed`] itself.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for a prologue of other rows than the layer's; [`Error::NoKernel`] if this `m` has none that
    /// multiplies quantized activations, whatever the policy; [`Error::Hadamard`] of a layer with a transform of its own; else as
    /// for [`Matmul::quantize_with`](crate::Matmul::quantize_with).
    pub fn quantize_with<'w>(
        &self,
        prologue: &Prologue,
        input: PrologueInput<'_>,
        m: usize,
        workspace: &'w mut Workspace,
        threads: &Threads,
    ) -> Result<QuantizedActivations<'w>, Error> {
        if let Some(transform) = &self.transform {
            return Err(self.no_int8(transform));
        }
        if prologue.k() != self.k {
            let (expected, found) = (self.k, prologue.k());
            return Err(Error::ShapeMismatch {
                what: "a row of the prologue",
                unit: "values",
                expected,
                found,
            });
        }
        // No tokens are quantized by what one would be.
        let shape = Shape { m: m.max(1), n: self.n, k: self.k };
        match self.choice(shape, DType::F32) {
            Some(Choice { matmul, .. }) => matmul.quantize_with(prologue, input, m, workspace, threads),
            None => Err(refused(&self.prepared, shape)),
        }
    }

    /// The same on the layer's GPU, with the product behind it: `m` rows that lie there go through `prologue` and the layer, into memory
    /// there, enqueued and not waited for; [`Workspace::finish`] waits and reports what stopped a row. A graph can be captured of it.
    ///
    /// # Errors
    /// [`Error::NoKernel`] if this `m` has none on a GPU; else as for
    /// [`Matmul::run_on_device_with`](crate::Matmul::run_on_device_with).
    #[cfg(feature = "cuda")]
    pub fn forward_on_device_with(
        &self,
        prologue: &DevicePrologue,
        input: DevicePrologueInput<'_>,
        m: usize,
        bias: Option<&DeviceBuffer<f32>>,
        y: &mut DeviceBuffer<f32>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let shape = Shape { m, n: self.n, k: self.k };
        match self.choice(shape, DType::F32) {
            Some(Choice { matmul, packed }) => {
                let weights = &self.packed[*packed];
                matmul.run_on_device_with(weights, prologue, input, m, bias, y, workspace)
            }
            None => Err(refused(&self.prepared, shape)),
        }
    }
}
