//! What lies between products, made when a model is loaded: a step allocates nothing.

use crate::attention::Attention;
use crate::config::Config;
use crate::error::{Error, zeros};
use crate::joint::{Joint, outputs};
use crate::mixture::{self, PairBuffers, Shape};
use crate::weights::{Layer, Weights};
use gristmill::{Linear, Threads, Workspace};

/// What lies between products.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// The residual stream.
    pub(crate) x: Vec<f32>,
    pub(crate) normed: Vec<f32>,
    /// Outputs of the first product of a half of a layer.
    pub(crate) wide: Vec<f32>,
    /// What goes into the second.
    pub(crate) inner: Vec<f32>,
    /// Outputs of the second.
    pub(crate) out: Vec<f32>,
    pub(crate) attention: Attention,
    pub(crate) routing: Routing,
    pub(crate) logits: Vec<f32>,
    pub(crate) workspace: Workspace,
}

/// Which experts tokens go to.
#[derive(Debug, Default)]
pub(crate) struct Routing {
    pub(crate) scores: Vec<f32>,
    /// For each token the experts that it goes through, with their weights.
    pub(crate) chosen: Vec<(u32, f32)>,
    /// Tokens of the expert whose turn it is.
    pub(crate) tokens: Vec<(u32, f32)>,
    /// Their inputs, one behind the other.
    pub(crate) inputs: Vec<f32>,
    /// For experts that are stacks.
    pub(crate) pairs: PairBuffers,
}

impl Buffers {
    /// Those of a model, for batches of `m` tokens.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn new(
        config: &Config,
        weights: &Weights,
        m: usize,
        threads: &Threads,
    ) -> Result<Buffers, Error> {
        let Config { embd, ffn, heads, head, .. } = *config;
        let make = |width: usize| zeros("a batch", width.saturating_mul(m));
        let linears: Vec<&Linear> = weights.joints().flat_map(Joint::linears).collect();
        let routing = match config.experts {
            None => Routing::default(),
            Some(experts) => Routing {
                scores: make(experts.count)?,
                chosen: zeros("a batch", m * experts.used)?,
                tokens: Vec::with_capacity(m),
                inputs: make(embd)?,
                pairs: match weights.mixtures().next() {
                    Some(_) => {
                        PairBuffers::new(m.saturating_mul(experts.used), Shape::of(config, experts.count))?
                    }
                    None => PairBuffers::default(),
                },
            },
        };
        let mut workspace = Workspace::for_all(linears, m, threads)?;
        let used = config.experts.map_or(0, |experts| experts.used);
        mixture::grow(&mut workspace, weights.mixtures(), [m, m.saturating_mul(used)], threads)?;
        let layers = weights.layers.iter().flat_map(Layer::joints);
        Ok(Buffers {
            x: make(embd)?,
            normed: make(embd)?,
            wide: outputs(layers, m)?,
            inner: make(ffn.max(heads * head))?,
            out: make(embd)?,
            attention: Attention::new(config, m)?,
            routing,
            logits: zeros("logits", config.vocab)?,
            workspace,
        })
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> usize {
        let Buffers { x, normed, wide, inner, out, attention, routing, logits, workspace } = self;
        let floats = [x, normed, wide, inner, out, &routing.scores, &routing.inputs, logits];
        let lists = size_of_val(&routing.chosen[..]) + routing.tokens.capacity() * size_of::<(u32, f32)>();
        floats.iter().map(|floats| size_of_val(&floats[..])).sum::<usize>()
            + lists
            + routing.pairs.bytes()
            + attention.bytes()
            + workspace.bytes()
    }
}
