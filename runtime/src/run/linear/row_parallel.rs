//! A layer whose inputs are divided over devices of several processes or machines.

use super::{Linear, LinearOptions};
use crate::cuda::{Communicator, DeviceBuffer, DeviceInput};
use crate::error::Error;
use crate::operands::quantized_buf::QuantizedBuf;
use crate::receipt::Recording;
use crate::registry::Registry;
use crate::threads::Threads;
use crate::weights::QuantizedMatrix;
use crate::workspace::Workspace;
use std::ops::Range;
use std::sync::Arc;

/// A rank's part of a layer whose **inputs (k) are divided over the ranks** of a [`Communicator`]: each has some of the inputs and the weights for
/// them, computes all outputs as far as these go, and all ranks add them up (all-reduce). In the literature on tensor parallelism, where weights
/// are written transposed, this is *row* parallelism (`RowParallelLinear` of Megatron-LM): the second layer of a pair, whose first is divided by
/// its outputs, so that each rank has the inputs that it needs.
///
/// Parts are sums of their own, rounded to f32, and activations are quantized on each rank for itself. So **results have not the bits of the
/// undivided layer**, and how close they are depends on the activation format; they are the same on all ranks.
#[derive(Debug)]
pub struct RowParallelLinear {
    linear: Linear,
    communicator: Arc<Communicator>,
    inputs: Range<usize>,
    k: usize,
}

impl RowParallelLinear {
    /// The part of the communicator's rank of the layer with these weights, which are all of it: whole blocks of inputs, about as many for each rank.
    /// `options` are those of [`Linear::new`], but for the device, which is the communicator's.
    ///
    /// # Errors
    /// [`Error::Division`] where there are fewer blocks than ranks; else as for [`Linear::new`]. Nothing is sent to other ranks.
    pub fn new(
        registry: &'static Registry,
        weights: &QuantizedMatrix<'_>,
        options: &LinearOptions,
        communicator: &Arc<Communicator>,
        threads: &Threads,
    ) -> Result<RowParallelLinear, Error> {
        let (k, block) = (weights.k(), weights.format().elements.max(1));
        let (rank, ranks, blocks) = (communicator.rank(), communicator.ranks(), k / block);
        if blocks < ranks {
            let why = format!("rows have {blocks} blocks of {block} for {ranks} ranks");
            return Err(Error::Division { why });
        }
        // As many for each, the first ones one more.
        let begin = |rank: usize| (blocks / ranks * rank + rank.min(blocks % ranks)) * block;
        let inputs = begin(rank)..begin(rank + 1);
        let own = QuantizedBuf::columns_of(weights, inputs.clone())?;
        let options = options.clone().on_gpu(communicator.gpu());
        let linear = Linear::new(registry, &own.matrix(), &options, threads)?;
        Ok(RowParallelLinear { linear, communicator: Arc::clone(communicator), inputs, k })
    }

    /// Rows of the weights: outputs, on every rank.
    pub fn n(&self) -> usize {
        self.linear.n()
    }

    /// Inputs of the whole layer.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The inputs that are this rank's.
    pub fn inputs(&self) -> Range<usize> {
        self.inputs.clone()
    }

    /// The layer of this rank's inputs, without the others.
    pub fn own(&self) -> &Linear {
        &self.linear
    }

    /// As [`Linear::record`]: launches of this rank count. NCCL's are none of gristmill's.
    ///
    /// # Errors
    /// As for [`Linear::record`].
    pub fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        self.linear.record(recording)
    }

    /// Enqueues the product of this rank's inputs, `m` rows of as many as [`inputs`](RowParallelLinear::inputs) has, and the sum over all
    /// ranks: `y` (`m * n`) will hold the outputs of the layer, on every rank. The bias (`n` values) is added once, by rank 0; others may leave
    /// it out. Every rank has to call it with the same `m`. Not waited for; [`Workspace::finish`] waits, and reports a fault of this rank's inputs:
    /// the others then have outputs that mean nothing and do not know it, so that a program tells them.
    ///
    /// # Errors
    /// As for [`Linear::forward_on_device`], and then nothing was enqueued for the others, who wait; [`Error::Nccl`]; [`Error::Capturing`].
    pub fn forward_on_device(
        &self,
        input: DeviceInput<'_>,
        m: usize,
        bias: Option<&DeviceBuffer<f32>>,
        y: &mut DeviceBuffer<f32>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let bias = bias.filter(|_| self.communicator.rank() == 0);
        self.linear.forward_on_device(input, m, bias, y, workspace)?;
        self.communicator.sum(y)
    }
}
