//! Activations of a product through a prologue, in one pass with their quantization.

use super::Matmul;
use crate::activations::{self, ActivationLayout, Activations, QuantizedActivations};
use crate::cuda;
#[cfg(feature = "cuda")]
use crate::cuda::{DeviceBuffer, DevicePrologue, DevicePrologueInput};
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::operands::sizes::check_len;
use crate::prologue::{Prologue, PrologueInput};
use crate::registry::Entry;
use crate::request::Shape;
use crate::run::launch::{On, PrologueCode};
use crate::threads::Threads;
#[cfg(feature = "cuda")]
use crate::weights::PackedMatrix;
use crate::workspace::Workspace;

impl Matmul {
    /// Takes `m` tokens through `prologue` and quantizes them into `workspace`, in one pass: what [`Matmul::quantize`] would make
    /// of the rows behind the prologue, bit for bit. Allocates nothing, as [`Matmul::run`].
    ///
    /// # Errors
    /// [`Error::ProcessorOnly`]; [`Error::NoKernel`] where this build has no kernel of the prologue; [`Error::Prologue`] for steps
    /// that the activation format does not take, and for a gate without its rows; [`Error::ShapeMismatch`];
    /// [`Error::WorkspaceTooSmall`]; [`Error::NonFinite`] with the position.
    pub fn quantize_with<'w>(
        &self,
        prologue: &Prologue,
        input: PrologueInput<'_>,
        m: usize,
        workspace: &'w mut Workspace,
        threads: &Threads,
    ) -> Result<QuantizedActivations<'w>, Error> {
        self.on_processor()?;
        let k = prologue.k();
        let ActivationLayout { format, row } = self.activation_layout(k)?;
        prologue.check(format, input.operands())?;
        input.check(m, k)?;
        if m == 0 || k == 0 {
            let rows = Activations { layout: row, m, q: &[], scales: &[], sums: &[] };
            return Ok(QuantizedActivations { format, rows });
        }
        let On::Cpu(launcher) = self.prologue_kernel(Shape { m, n: 1, k })? else {
            return Err(self.on.broken("its prologue is one of a GPU"));
        };
        let rows = activations::quantize_with(launcher, prologue, input, m, row, workspace, threads)?;
        Ok(QuantizedActivations { format, rows })
    }

    /// The same on the kernel's GPU with the product behind it: `m` rows that lie there go through `prologue` and are multiplied,
    /// enqueued and not waited for. `y` has room for `m * n` values. [`Workspace::finish`] waits, and reports what stopped a row.
    ///
    /// # Errors
    /// As for [`Matmul::quantize_with`] and [`Matmul::run_on_device`]; [`Error::WrongInput`] for a product of floats.
    #[cfg(feature = "cuda")]
    #[expect(clippy::too_many_arguments, reason = "the operands of a product and of what is in front")]
    pub fn run_on_device_with(
        &self,
        weights: &PackedMatrix,
        prologue: &DevicePrologue,
        input: DevicePrologueInput<'_>,
        m: usize,
        bias: Option<&DeviceBuffer<f32>>,
        y: &mut DeviceBuffer<f32>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let launcher = self.on_device(weights, m, bias, y)?;
        let (n, k) = (weights.n(), weights.k());
        check_len("a row of the prologue", "values", k, prologue.prologue().k())?;
        let ActivationLayout { format, row } = self.activation_layout(k)?;
        prologue.prologue().check(format, input.given())?;
        let On::Cuda(first) = self.prologue_kernel(Shape { m, n, k })? else {
            return Err(self.on.broken("its prologue is one of the processor"));
        };
        launcher.run_behind(
            first,
            prologue,
            input,
            (weights, m, &row, format.block),
            bias,
            y,
            &mut workspace.gpu,
        )
    }

    /// The kernel of a prologue, for so many tokens.
    pub(crate) fn prologue_entry(&self, shape: Shape) -> Option<&'static Entry> {
        self.prologue_kernel(shape).ok().map(On::entry)
    }

    pub(super) fn prologue_kernel(
        &self,
        shape: Shape,
    ) -> Result<&On<PrologueCode, cuda::PrologueCode>, Error> {
        let broken = || self.on.broken("it takes floats, and nothing was prepared for a prologue");
        let prepared = self.prologue.as_ref().ok_or_else(broken)?;
        let entry = prepared.decide(Shape { n: 1, ..shape }).kernel()?;
        self.prologues.iter().find(|launcher| std::ptr::eq(launcher.entry(), entry)).ok_or_else(broken)
    }
}
