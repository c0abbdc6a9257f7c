//! The experts of a layer as stacks, where the file has them quantized: gate and up, and down.

use crate::config::Config;
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

impl Shape {
    /// That of `count` experts of a model.
    pub fn of(config: &Config, count: usize) -> Shape {
        Shape { count, ffn: config.ffn, embd: config.embd }
    }
}

/// All experts of a layer.
#[derive(Debug)]
pub struct Mixture {
    /// Gate and up: one stack if they have one format, else two.
    pub gate_up: Vec<Experts>,
    /// Down.
    pub down: Experts,
}

/// Tensors that become one stack.
#[derive(Debug)]
pub struct Stacked<'t> {
    /// Their names.
    pub tensors: Vec<&'t str>,
    /// Name of their format.
    pub format: &'static str,
    /// Outputs of an expert, of all of the tensors.
    pub n: usize,
    /// Inputs of an expert.
    pub k: usize,
}

/// What the tensors of gate, up and down become: stacks, the last one that of down. `None` where one of them is not a quantized stack of
/// just these matrices, or takes transformed activations: then experts are layers of their own.
///
/// # Errors
/// As for [`Model::tensor_type`].
pub fn stacked<'t>(
    model: &Model,
    [gate, up, down]: [&'t str; 3],
    shape: Shape,
) -> Result<Option<Vec<Stacked<'t>>>, Error> {
    let Shape { count, ffn, embd } = shape;
    let mut stacks: Vec<Stacked<'_>> = Vec::new();
    for (tensor, n, k) in [(gate, ffn, embd), (up, ffn, embd), (down, embd, ffn)] {
        let dims = [k, n, count].map(|dim| dim as u64);
        let alone = model.file().tensor(tensor).is_none_or(|tensor| tensor.dims() != dims);
        // Stacks take activations as they are; experts by themselves transform them.
        let transformed = model.transforms().is_some_and(|of| of.of_inputs(tensor).is_some());
        let format = match model.tensor_type(tensor)? {
            TensorType::Format(resolved) if !alone && !transformed => resolved.format.name,
            TensorType::Format(_) | TensorType::Tiled(_) | TensorType::Plain(_) => return Ok(None),
        };
        match stacks.last_mut().filter(|gate| tensor == up && gate.format == format) {
            Some(gate) => {
                gate.tensors.push(tensor);
                gate.n += n;
            }
            None => stacks.push(Stacked { tensors: vec![tensor], format, n, k }),
        }
    }
    Ok(Some(stacks))
}

impl Mixture {
    /// Reads and packs the tensors of gate, up and down, where they are [`stacked`].
    ///
    /// # Errors
    /// As for [`stacked`] and [`Model::experts`].
    pub fn load(
        model: &Model,
        tensors: [&str; 3],
        shape: Shape,
        options: &LayerOptions<'_>,
    ) -> Result<Option<Mixture>, Error> {
        let Some(stacks) = stacked(model, tensors, shape)? else { return Ok(None) };
        let load = |stack: &Stacked<'_>| model.experts(&stack.tensors, options);
        let mut stacks: Vec<Experts> = stacks.iter().map(load).collect::<Result<_, _>>()?;
        Ok(stacks.pop().map(|down| Mixture { gate_up: stacks, down }))
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
pub struct PairBuffers {
    /// Numbers of the experts.
    pub list: Vec<u32>,
    /// Gate and up.
    pub wide: Vec<f32>,
    /// What goes into down.
    pub inner: Vec<f32>,
    /// What comes out of it.
    pub out: Vec<f32>,
}

impl PairBuffers {
    /// Room for `pairs`.
    ///
    /// # Errors
    /// Those of memory.
    pub fn new(pairs: usize, shape: Shape) -> Result<PairBuffers, Error> {
        let make = |width: usize| zeros("a batch", width.saturating_mul(pairs));
        let Shape { ffn, embd, .. } = shape;
        let list = zeros("a batch", pairs)?;
        Ok(PairBuffers { list, wide: make(ffn.saturating_mul(2))?, inner: make(ffn)?, out: make(embd)? })
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
