//! A layer as other languages have it.

use super::Guard;
use crate::gguf::{LayerOptions, Model, ModelError};
use gristmill_runtime::{
    Error, GuardOptions, GuardedLinear, Input, Linear, LinearOptions, QuantizedBuf, QuantizedMatrix, Receipt,
    Recording, Registry, Threads, Workspace,
};

/// A layer whose runs are recorded, and which goes on where a kernel or its GPU fails if a [`Guard`] says so.
#[derive(Debug)]
pub struct Layer {
    runs: Runs,
    recording: Recording,
}

/// What runs.
#[derive(Debug)]
enum Runs {
    Plain(Box<Linear>),
    Guarded(Box<GuardedLinear<'static>>),
}

/// What a layer under a guard is made with, and what its guard is.
fn under(guard: &Guard, options: LinearOptions) -> (LinearOptions, GuardOptions) {
    (LinearOptions { policy: guard.policy, ..options }, guard.options.clone())
}

impl Layer {
    /// A layer of weights in a format's own bytes, which are kept under a guard, and not needed afterwards without one.
    ///
    /// # Errors
    /// As for [`Linear::new`] and [`GuardedLinear::new`]; [`Error::OutOfMemory`] for what is kept.
    pub fn of_matrix(
        registry: &'static Registry,
        weights: &QuantizedMatrix<'_>,
        options: LinearOptions,
        guard: Option<&Guard>,
        threads: &Threads,
    ) -> Result<Layer, Error> {
        let runs = match guard {
            None => Runs::Plain(Box::new(Linear::new(registry, weights, &options, threads)?)),
            Some(guard) => {
                let (options, guard) = under(guard, options);
                let own = QuantizedBuf::rows_of(weights, 0..weights.n())?.into_owned()?;
                Runs::Guarded(Box::new(GuardedLinear::new(registry, own, &options, guard, threads)?))
            }
        };
        Layer::recorded(registry, runs)
    }

    /// A layer of the quantized matrix `name` of a model, which need not live longer than this call.
    ///
    /// # Errors
    /// As for [`Model::linear`] and [`Model::guarded`].
    pub fn of_model(
        model: &Model,
        name: &str,
        options: LayerOptions<'_>,
        guard: Option<&Guard>,
    ) -> Result<Layer, ModelError> {
        let runs = match guard {
            None => Runs::Plain(Box::new(model.linear(name, &options)?)),
            Some(guard) => {
                let (linear, guard) = under(guard, options.linear);
                let options = LayerOptions { linear, ..options };
                Runs::Guarded(Box::new(model.guarded_owned(name, guard, &options)?))
            }
        };
        Layer::recorded(model.registry(), runs)
            .map_err(|error| ModelError::Layer { tensors: vec![name.to_owned()], error })
    }

    fn recorded(registry: &'static Registry, mut runs: Runs) -> Result<Layer, Error> {
        let recording = Recording::new(registry);
        match &mut runs {
            Runs::Plain(layer) => layer.record(Some(&recording))?,
            Runs::Guarded(layer) => layer.record(Some(&recording))?,
        }
        Ok(Layer { runs, recording })
    }

    /// Rows of the weights: outputs.
    pub fn n(&self) -> usize {
        match &self.runs {
            Runs::Plain(layer) => layer.n(),
            Runs::Guarded(layer) => layer.n(),
        }
    }

    /// Elements of a row: inputs.
    pub fn k(&self) -> usize {
        match &self.runs {
            Runs::Plain(layer) => layer.k(),
            Runs::Guarded(layer) => layer.k(),
        }
    }

    /// Bytes held for the weights, packed.
    pub fn weight_bytes(&self) -> usize {
        match &self.runs {
            Runs::Plain(layer) => layer.weight_bytes(),
            Runs::Guarded(layer) => layer.weight_bytes(),
        }
    }

    /// Bytes of weights that a guard keeps besides; 0 without one.
    pub fn kept_bytes(&self) -> usize {
        match &self.runs {
            Runs::Plain(_) => 0,
            Runs::Guarded(layer) => layer.kept_bytes(),
        }
    }

    /// The layer, where no guard stands around it.
    pub fn unguarded(&self) -> Option<&Linear> {
        match &self.runs {
            Runs::Plain(layer) => Some(layer),
            Runs::Guarded(_) => None,
        }
    }

    /// As [`Linear::forward`], of f32, in a workspace that grows to what it takes.
    ///
    /// # Errors
    /// As for [`Linear::forward`] and [`GuardedLinear::forward`].
    pub fn forward(
        &self,
        x: &[f32],
        m: usize,
        bias: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        match &self.runs {
            Runs::Plain(layer) => {
                workspace.grow(layer.workspace_size(m, threads)?)?;
                layer.forward(Input::F32(x), m, bias, y, workspace, threads)
            }
            Runs::Guarded(layer) => {
                workspace.grow(layer.workspace_size(m, threads)?)?;
                layer.forward(Input::F32(x), m, bias, y, workspace, threads)
            }
        }
    }

    /// Which kernels ran, and what was done where one failed.
    pub fn receipt(&self) -> Receipt {
        self.recording.receipt()
    }
}
