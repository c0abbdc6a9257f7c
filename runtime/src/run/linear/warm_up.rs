//! The first call, made before anybody waits for it.

use super::Linear;
use crate::activations::Input;
use crate::error::Error;
use crate::memory::aligned::Aligned;
use crate::threads::Threads;
use crate::workspace::Workspace;

impl Linear {
    /// Computes a product of zeros for each number of tokens in `tokens` and throws it away, so that no later call is a first one: it
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
            let x = Aligned::<f32>::zeroed(values(self.k)?)?;
            let mut y = Aligned::<f32>::zeroed(values(self.n)?)?;
            self.forward(Input::F32(&x), m, None, &mut y, workspace, threads)?;
        }
        Ok(())
    }
}
