//! Activations of a product through a prologue, in one pass with their quantization.

use super::Matmul;
use crate::activations::{self, ActivationLayout, Activations, QuantizedActivations};
use crate::error::Error;
use crate::launch::{Launcher, PrologueCode};
use crate::prologue::{Prologue, PrologueInput};
use crate::request::Shape;
use crate::threads::Threads;
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
        prologue.check(format, &input)?;
        input.check(m, k)?;
        if m == 0 || k == 0 {
            let rows = Activations { layout: row, m, q: &[], scales: &[], sums: &[] };
            return Ok(QuantizedActivations { format, rows });
        }
        let launcher = self.prologue_kernel(Shape { m, n: 1, k })?;
        let rows = activations::quantize_with(launcher, prologue, input, m, row, workspace, threads)?;
        Ok(QuantizedActivations { format, rows })
    }

    fn prologue_kernel(&self, shape: Shape) -> Result<&Launcher<PrologueCode>, Error> {
        let broken = || self.on.broken("it takes floats, and nothing was prepared for a prologue");
        let prepared = self.prologue.as_ref().ok_or_else(broken)?;
        let entry = prepared.decide(shape).kernel()?;
        self.prologues.iter().find(|launcher| std::ptr::eq(launcher.entry, entry)).ok_or_else(broken)
    }
}
