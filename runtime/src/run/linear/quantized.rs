//! A layer in two steps: activations quantized once, for several layers, and products that read them.

use super::Linear;
use crate::activations::{Input, QuantizedActivations};
use crate::error::Error;
use crate::operands::output::Output;
use crate::request::Shape;
use crate::run::choice::{Choice, refused};
use crate::run::launch::ProductJob;
use crate::run::product::Store;
use crate::threads::Threads;
use crate::workspace::Workspace;
use gristmill_spec::vocab::DType;

impl Linear {
    /// Quantizes `m` tokens into `workspace` for this layer and others that read the same ([`Linear::shares_activations_with`]).
    /// Allocates nothing, as [`Linear::forward`].
    ///
    /// # Errors
    /// [`Error::NoKernel`] if this `m` has none that multiplies quantized activations, whatever the policy; else as for
    /// [`Matmul::quantize`](crate::Matmul::quantize).
    pub fn quantize<'w>(
        &self,
        input: Input<'_>,
        m: usize,
        workspace: &'w mut Workspace,
        threads: &Threads,
    ) -> Result<QuantizedActivations<'w>, Error> {
        if let Some(transform) = &self.transform {
            return Err(self.no_int8(transform));
        }
        self.quantize_transformed(input, m, workspace, threads)
    }

    /// The same with rows as they are after the layer's transform, where it has one.
    pub(crate) fn quantize_transformed<'w>(
        &self,
        input: Input<'_>,
        m: usize,
        workspace: &'w mut Workspace,
        threads: &Threads,
    ) -> Result<QuantizedActivations<'w>, Error> {
        // No tokens are quantized by what one would be.
        let shape = Shape { m: m.max(1), n: self.n, k: self.k };
        match self.choice(shape, input.dtype()) {
            Some(Choice { matmul, .. }) => matmul.quantize(input, m, self.k, workspace, threads),
            None => Err(refused(&self.prepared, shape)),
        }
    }

    /// Computes `y` (`m * n`) from activations that this layer or another one quantized, with the kernel that decide gives
    /// for this `m` and the bits of [`Linear::forward`].
    ///
    /// # Errors
    /// [`Error::NoKernel`] as for [`Linear::quantize`]; else as for [`Matmul::run_quantized`](crate::Matmul::run_quantized).
    pub fn forward_quantized(
        &self,
        x: &QuantizedActivations<'_>,
        bias: Option<&[f32]>,
        y: &mut [f32],
        threads: &Threads,
    ) -> Result<(), Error> {
        self.forward_quantized_stored(x, &Store { bias, ..Store::default() }, Output::F32(y), threads)
    }

    /// The same with results as they are stored.
    pub(crate) fn forward_quantized_stored(
        &self,
        x: &QuantizedActivations<'_>,
        store: &Store<'_>,
        y: Output<'_>,
        threads: &Threads,
    ) -> Result<(), Error> {
        let chosen = self.choice_for(x)?;
        let turn = self.turn(Shape { m: x.m(), n: self.n, k: self.k }, store, &y);
        let Choice { matmul, packed } = turn.as_ref().map_or(chosen, |(choice, _)| choice);
        let product = || matmul.run_quantized_stored(&self.packed[*packed], x, store, y, threads);
        match turn {
            Some((_, turn)) => turn.time(product),
            None => product(),
        }?;
        self.count_fallback(matmul, x.m());
        Ok(())
    }

    /// The same as a job that is not run yet; `None` where there was nothing to compute, or nothing but the bias.
    pub(crate) fn job<'p>(
        &'p self,
        x: &QuantizedActivations<'p>,
        store: &Store<'p>,
        y: Output<'p>,
    ) -> Result<Option<ProductJob<'p>>, Error> {
        let Choice { matmul, packed } = self.choice_for(x)?;
        let job = matmul.job(&self.packed[*packed], x, store, y)?;
        // Counted when it has run, which may be never.
        Ok(job.map(|job| job.noting(self.fallback(matmul))))
    }

    /// What multiplies quantized activations.
    fn choice_for(&self, x: &QuantizedActivations<'_>) -> Result<&Choice, Error> {
        if let Some(transform) = &self.transform {
            return Err(self.no_int8(transform));
        }
        let shape = Shape { m: x.m().max(1), n: self.n, k: self.k };
        self.choice(shape, DType::I8).ok_or_else(|| refused(&self.prepared, shape))
    }

    /// Whether `m` tokens that one of two layers [quantized](Linear::quantize) are what the other one reads: whether both
    /// have kernels of the processor, or of one GPU, for this `m`, of one activation format and with one layout of rows, and no
    /// transform.
    pub fn shares_activations_with(&self, other: &Linear, m: usize) -> bool {
        if self.transform.is_some() || other.transform.is_some() {
            return false;
        }
        let shape = |layer: &Linear| Shape { m: m.max(1), n: layer.n, k: layer.k };
        match (self.choice(shape(self), DType::I8), other.choice(shape(other), DType::I8)) {
            (Some(one), Some(two)) => {
                self.k == other.k && one.matmul.shares_activations_with(&two.matmul, self.k)
            }
            (_, _) => false,
        }
    }
}
