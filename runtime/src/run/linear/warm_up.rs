//! The first call, made before anybody waits for it.

use super::Linear;
use crate::activations::Input;
use crate::error::Error;
use crate::request::Shape;
use crate::room::zeros;
use crate::run::choice::{Choice, refused};
use crate::threads::Threads;
use crate::workspace::Workspace;
use gristmill_spec::vocab::DType;

impl Linear {
    /// Computes a product of zeros of the layer's input type for each number of tokens in `tokens` and throws it away, so that no later call is a first one: it
    /// reads all weights (pages that were swapped out or not yet read are brought in), starts and wakes the threads, makes `workspace` as
    /// large as the largest needs, and on a GPU goes through uploads, kernels and downloads once. Takes as long as those products.
    ///
    /// The launches are launches: a [`Recording`](crate::Recording) that is attached counts them, and so do statistics. Warm up before
    /// attaching where they are not to be counted.
    ///
    /// # Errors
    /// As for [`Linear::forward`]; [`Error::OutOfMemory`], [`Error::TooLarge`].
    pub fn warm_up(
        &self,
        tokens: &[usize],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        for &m in tokens {
            let values = |width: usize| m.checked_mul(width).ok_or(Error::TooLarge { what: "a warm-up" });
            workspace.grow(self.workspace_size(m, threads)?)?;
            let (all, mut y) = (values(self.k)?, zeros(values(self.n)?)?);
            let mut run = |x: Input<'_>| self.forward(x, m, None, &mut y, workspace, threads);
            match self.prepared.input() {
                DType::F32 => run(Input::F32(&zeros(all)?)),
                DType::F16 => run(Input::F16(&zeros(all)?)),
                DType::Bf16 => run(Input::Bf16(&zeros(all)?)),
                DType::I8 => {
                    let mut scales = zeros(values(self.scales(m)?)?)?;
                    // Some formats divide by them.
                    scales.fill(1.0);
                    run(Input::I8 { q: &zeros(all)?, scales: &scales })
                }
            }?;
        }
        Ok(())
    }

    /// Scales of each of `m` tokens of int8.
    fn scales(&self, m: usize) -> Result<usize, Error> {
        let shape = Shape { m, n: self.n, k: self.k };
        match (self.choice(shape, DType::I8), &self.plain) {
            (Some(Choice { matmul, .. }), _) => Ok(matmul.activation_layout(self.k)?.row.blocks),
            (None, Some((plain, _))) => Ok(plain.blocks()),
            (None, None) => Err(refused(&self.prepared, shape)),
        }
    }
}
