//! The experts of a layer as stacks, where the file has them quantized: gate and up, and down.

use crate::error::{Error, zeros};
use gristmill::gguf::{LayerOptions, Model, TensorType};
use gristmill::{Experts, Recording, Threads, Workspace};

/// What a layer's experts are.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Experts.
    pub count: usize,
    /// Outputs of gate and of up.
    pub ffn: usize,
    /// Outputs of down.
    pub embd: usize,
}

/// All experts of a layer.
#[derive(Debug)]
pub struct Mixture {
    /// Gate and up: one stack if they have one format, else two.
    pub gate_up: Vec<Experts>,
    /// Down.
    pub down: Experts,
}

impl Mixture {
    /// Reads and packs the tensors of gate, up and down. `None` where one of them is not a quantized stack of just these
    /// matrices, or takes transformed activations.
    ///
    /// # Errors
    /// As for [`Model::experts`].
    pub fn load(
        model: &Model,
        [gate, up, down]: [&str; 3],
        shape: Shape,
        options: &LayerOptions<'_>,
    ) -> Result<Option<Mixture>, Error> {
        let Shape { count, ffn, embd } = shape;
        let mut formats = Vec::new();
        for (name, n, k) in [(gate, ffn, embd), (up, ffn, embd), (down, embd, ffn)] {
            let dims = [k, n, count].map(|dim| dim as u64);
            let stacked = model.file().tensor(name).is_some_and(|tensor| tensor.dims() == dims);
            // Stacks take activations as they are; experts by themselves transform them.
            let transformed = model.transforms().is_some_and(|of| of.of_inputs(name).is_some());
            match model.tensor_type(name)? {
                TensorType::Format(resolved) if stacked && !transformed => formats.push(resolved.format.name),
                TensorType::Format(_) | TensorType::Tiled(_) | TensorType::Plain(_) => return Ok(None),
            }
        }
        let gate_up = match formats[0] == formats[1] {
            true => vec![model.experts(&[gate, up], options)?],
            false => vec![model.experts(&[gate], options)?, model.experts(&[up], options)?],
        };
        Ok(Some(Mixture { gate_up, down: model.experts(&[down], options)? }))
    }

    /// Its stacks.
    pub fn stacks(&self) -> impl Iterator<Item = &Experts> {
        self.gate_up.iter().chain([&self.down])
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.stacks().map(Experts::weight_bytes).sum()
    }

    /// Lets its launches count.
    ///
    /// # Errors
    /// [`gristmill::Error::ForeignRecording`].
    pub fn record(&mut self, recording: &Recording) -> Result<(), Error> {
        for stack in self.gate_up.iter_mut().chain([&mut self.down]) {
            stack.record(Some(recording))?;
        }
        Ok(())
    }
}

/// What a batch needs on its way through the experts, for each pair of a token and one of its experts.
#[derive(Debug, Default)]
pub struct Pairs {
    /// Numbers of the experts.
    pub list: Vec<u32>,
    /// Gate and up.
    pub wide: Vec<f32>,
    /// What goes into down.
    pub inner: Vec<f32>,
    /// What comes out of it.
    pub out: Vec<f32>,
}

impl Pairs {
    /// Room for `pairs`.
    ///
    /// # Errors
    /// Those of memory.
    pub fn new(pairs: usize, shape: Shape) -> Result<Pairs, Error> {
        let make = |width: usize| zeros("a batch", width.saturating_mul(pairs));
        let Shape { ffn, embd, .. } = shape;
        let list = zeros("a batch", pairs)?;
        Ok(Pairs { list, wide: make(ffn.saturating_mul(2))?, inner: make(ffn)?, out: make(embd)? })
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let floats = [&self.wide, &self.inner, &self.out];
        let floats: usize = floats.iter().map(|floats| size_of_val(&floats[..])).sum();
        floats + size_of_val(&self.list[..])
    }
}

/// Makes `workspace` large enough for stacks of experts.
///
/// # Errors
/// Those of memory.
pub fn grow<'m>(
    workspace: &mut Workspace,
    mixtures: impl IntoIterator<Item = &'m Mixture>,
    [tokens, pairs]: [usize; 2],
    threads: &Threads,
) -> Result<(), Error> {
    for mixture in mixtures {
        for stack in &mixture.gate_up {
            workspace.grow(stack.workspace_size(tokens, pairs, threads)?)?;
        }
        // Each pair has an input of its own.
        workspace.grow(mixture.down.workspace_size(tokens, pairs, threads)?)?;
    }
    Ok(())
}
