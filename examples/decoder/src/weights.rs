//! The weights of a model: which tensors of a file are what, and loading them.

use crate::config::Config;
use crate::embedding::{self, Embedding};
use crate::error::Error;
use crate::head::{self, Head};
use crate::joint::{Joint, Source, check_dims};
use crate::mixture::{Mixture, Shape};
use crate::norms::{Norms, Prologues, Vector};
use gristmill::Recording;
use gristmill::gguf::{LayerOptions, Model};
use std::collections::HashSet;

/// The tensors of one layer that are matrices, as they are multiplied.
#[derive(Clone, Debug)]
pub struct LayerSources {
    /// Query, key, value.
    pub qkv: Vec<Source>,
    /// Output of attention.
    pub output: Vec<Source>,
    /// The feed-forward network.
    pub ffn: FfnSources,
}

/// The matrices of a feed-forward network.
#[derive(Clone, Debug)]
pub enum FfnSources {
    /// Gate and up, then down.
    Dense([Vec<Source>; 2]),
    /// Some for each token.
    Experts(ExpertSources),
}

/// The matrices of experts.
#[derive(Clone, Debug)]
pub struct ExpertSources {
    /// Gives a number for each expert.
    pub router: Vec<Source>,
    /// Gate and up, and down, of the first expert; those of the others are other rows of the same tensors.
    pub first: [Vec<Source>; 2],
    /// Experts.
    pub count: usize,
}

impl ExpertSources {
    /// Names of the tensors of gate, up and down.
    pub fn tensors(&self) -> Option<[&str; 3]> {
        let [gate_up, down] = &self.first;
        let ([gate, up], [down]) = (&gate_up[..], &down[..]) else { return None };
        Some([gate, up, down].map(|source| &source.tensor[..]))
    }
}

impl LayerSources {
    /// Those of layer `index`, whose tensors have the dimensions that the metadata asks for: what a file says of its sizes is believed
    /// only then, and nothing is made for each of so many experts before.
    ///
    /// # Errors
    /// As for [`Source::check`].
    pub fn of(config: &Config, model: &Model, index: usize) -> Result<LayerSources, Error> {
        let Config { embd, ffn, heads, kv_heads, head, .. } = *config;
        let stacked = |name: &str, n, k, stacked: Option<(usize, usize)>| {
            let bias = Some(format!("blk.{index}.{name}.bias"));
            let bias = bias.filter(|name| stacked.is_none() && model.file().tensor(name).is_some());
            let source = Source { tensor: format!("blk.{index}.{name}.weight"), stacked, n, k, bias };
            source.check(model).map(|()| source)
        };
        let source = |name: &str, n, k| stacked(name, n, k, None);
        let ffn = match config.experts {
            None => FfnSources::Dense([
                vec![source("ffn_gate", ffn, embd)?, source("ffn_up", ffn, embd)?],
                vec![source("ffn_down", embd, ffn)?],
            ]),
            Some(experts) => {
                let count = experts.count;
                let router = source("ffn_gate_inp", count, embd)?;
                let first = |name, n, k| stacked(name, n, k, Some((0, count)));
                let gate_up = vec![first("ffn_gate_exps", ffn, embd)?, first("ffn_up_exps", ffn, embd)?];
                let first = [gate_up, vec![first("ffn_down_exps", embd, ffn)?]];
                FfnSources::Experts(ExpertSources { router: vec![router], first, count })
            }
        };
        Ok(LayerSources {
            qkv: vec![
                source("attn_q", heads * head, embd)?,
                source("attn_k", kv_heads * head, embd)?,
                source("attn_v", kv_heads * head, embd)?,
            ],
            output: vec![source("attn_output", embd, heads * head)?],
            ffn,
        })
    }

    /// Every group of matrices that share their input; of experts those of the first.
    pub fn groups(&self) -> Vec<&[Source]> {
        let mut groups: Vec<&[Source]> = vec![&self.qkv, &self.output];
        match &self.ffn {
            FfnSources::Dense([gate_up, down]) => groups.extend([&gate_up[..], &down[..]]),
            FfnSources::Experts(ExpertSources { router, first: [gate_up, down], .. }) => {
                groups.extend([&router[..], &gate_up[..], &down[..]]);
            }
        }
        groups
    }
}

/// The norm before the head.
pub const OUTPUT_NORM: &str = "output_norm.weight";
/// Factors of the wave lengths of pairs.
pub const ROPE_FREQS: &str = "rope_freqs.weight";

/// Refuses a file that has tensors which nothing reads, or lacks some: the forward pass would be of another model. Gives the matrices of
/// all layers.
///
/// # Errors
/// [`Error::UnknownTensor`], [`Error::Shape`], what a missing tensor gives.
pub fn survey(config: &Config, model: &Model) -> Result<Vec<LayerSources>, Error> {
    let mut known: HashSet<String> = HashSet::new();
    known.extend([embedding::NAME, head::NAME, OUTPUT_NORM, ROPE_FREQS].map(str::to_owned));
    let mut layers = Vec::new();
    for index in 0..config.layers {
        let layer = LayerSources::of(config, model, index)?;
        for source in layer.groups().into_iter().flatten() {
            known.insert(source.tensor.clone());
            known.extend(source.bias.clone());
        }
        for Vector { name, length } in Norms::of(config, index).all() {
            check_dims(model, name, &[*length])?;
            known.insert(name.clone());
        }
        layers.push(layer);
    }
    check_dims(model, OUTPUT_NORM, &[config.embd])?;
    if model.file().tensor(ROPE_FREQS).is_some() {
        check_dims(model, ROPE_FREQS, &[config.rope.dims / 2])?;
    }
    if model.file().tensor(head::NAME).is_some() {
        check_dims(model, head::NAME, &[config.embd, config.vocab])?;
    }
    if let Some(unknown) = model.file().tensors().find(|tensor| !known.contains(tensor.name())) {
        let architecture = config.architecture.name;
        return Err(Error::UnknownTensor { tensor: unknown.name().to_owned(), architecture });
    }
    Ok(layers)
}

/// A layer.
#[derive(Debug)]
pub struct Layer {
    /// What its norms multiply by.
    pub norms: Norms<Vec<f32>>,
    /// The same norms, and the gate, as what products take their input through.
    pub prologues: Prologues,
    /// Query, key, value.
    pub qkv: Joint,
    /// Output of attention.
    pub output: Joint,
    /// The feed-forward network.
    pub ffn: Ffn,
}

/// A feed-forward network.
#[derive(Debug)]
pub enum Ffn {
    /// One for all tokens.
    Dense(Expert),
    /// Some for each token, one expert after the other: those that are not quantized.
    Experts {
        /// Gives a number for each expert.
        router: Joint,
        /// All of them.
        experts: Vec<Expert>,
    },
    /// Some for each token, all experts together.
    Mixture {
        /// Gives a number for each expert.
        router: Joint,
        /// All of them.
        mixture: Box<Mixture>,
    },
}

/// Gate and up, and down.
#[derive(Debug)]
pub struct Expert {
    /// Gate and up.
    pub gate_up: Joint,
    /// Down.
    pub down: Joint,
}

impl Expert {
    fn load(
        model: &Model,
        [gate_up, down]: &[Vec<Source>; 2],
        options: &LayerOptions<'_>,
    ) -> Result<Expert, Error> {
        let gate_up = Joint::load(model, gate_up, options)?;
        Ok(Expert { gate_up, down: Joint::load(model, down, options)? })
    }
}

/// The experts as stacks, if they can be.
fn mixture(
    config: &Config,
    model: &Model,
    experts: &ExpertSources,
    options: &LayerOptions<'_>,
) -> Result<Option<Mixture>, Error> {
    match experts.tensors() {
        Some(tensors) => Mixture::load(model, tensors, Shape::of(config, experts.count), options),
        None => Ok(None),
    }
}

impl Layer {
    /// Its experts, where they are stacks.
    pub fn mixture(&self) -> Option<&Mixture> {
        match &self.ffn {
            Ffn::Mixture { mixture, .. } => Some(mixture),
            Ffn::Dense(_) | Ffn::Experts { .. } => None,
        }
    }

    fn load(
        config: &Config,
        model: &Model,
        index: usize,
        sources: &LayerSources,
        options: &LayerOptions<'_>,
    ) -> Result<Layer, Error> {
        let norms = Norms::of(config, index).load(model)?;
        let prologues = Prologues::new(config, &norms)?;
        let ffn = match &sources.ffn {
            FfnSources::Dense(dense) => Ffn::Dense(Expert::load(model, dense, options)?),
            FfnSources::Experts(experts) => {
                let router = Joint::load(model, &experts.router, options)?;
                match mixture(config, model, experts, options)? {
                    Some(mixture) => Ffn::Mixture { router, mixture: Box::new(mixture) },
                    None => {
                        let load = |index| {
                            let at =
                                |group: &Vec<Source>| group.iter().map(|first| first.at(index)).collect();
                            Expert::load(model, &experts.first.each_ref().map(at), options)
                        };
                        let experts = (0..experts.count).map(load).collect::<Result<_, _>>()?;
                        Ffn::Experts { router, experts }
                    }
                }
            }
        };
        let qkv = Joint::load(model, &sources.qkv, options)?;
        let output = Joint::load(model, &sources.output, options)?;
        Ok(Layer { norms, prologues, qkv, output, ffn })
    }

    /// Its layers of matrices, but for experts that are stacks.
    pub fn joints(&self) -> Vec<&Joint> {
        let mut joints = vec![&self.qkv, &self.output];
        match &self.ffn {
            Ffn::Dense(expert) => joints.extend([&expert.gate_up, &expert.down]),
            Ffn::Experts { router, experts } => {
                joints.push(router);
                joints.extend(experts.iter().flat_map(|expert| [&expert.gate_up, &expert.down]));
            }
            Ffn::Mixture { router, .. } => joints.push(router),
        }
        joints
    }

    fn joints_mut(&mut self) -> Vec<&mut Joint> {
        let mut joints = vec![&mut self.qkv, &mut self.output];
        match &mut self.ffn {
            Ffn::Dense(expert) => joints.extend([&mut expert.gate_up, &mut expert.down]),
            Ffn::Experts { router, experts } => {
                joints.push(router);
                joints.extend(experts.iter_mut().flat_map(|expert| [&mut expert.gate_up, &mut expert.down]));
            }
            Ffn::Mixture { router, .. } => joints.push(router),
        }
        joints
    }
}

/// All weights.
#[derive(Debug)]
pub struct Weights {
    /// Vectors of tokens.
    pub embedding: Embedding,
    /// Layers.
    pub layers: Vec<Layer>,
    /// Before the head.
    pub output_norm: Vec<f32>,
    /// Logits.
    pub head: Head,
    /// Factors of the wave lengths of pairs, where the file has them.
    pub rope_freqs: Option<Vec<f32>>,
}

impl Weights {
    /// Loads and packs everything.
    ///
    /// # Errors
    /// As for [`survey`]; those of reading and packing; no kernel.
    pub fn load(
        config: &Config,
        model: &Model,
        head_format: Option<&str>,
        options: &LayerOptions<'_>,
    ) -> Result<Weights, Error> {
        let sources = survey(config, model)?;
        let restrict = options.linear.restrict.clone().unwrap_or_default();
        let rope_freqs = match model.file().tensor(ROPE_FREQS) {
            Some(_) => Some(model.vector(ROPE_FREQS, config.rope.dims / 2)?),
            None => None,
        };
        // While a tensor is packed it is in memory twice: this one, the largest of small models, before there is anything beside it.
        let head = Head::load(config, model, head_format, options)?;
        let mut layers = Vec::new();
        for (index, sources) in sources.iter().enumerate() {
            layers.push(Layer::load(config, model, index, sources, options)?);
        }
        Ok(Weights {
            embedding: Embedding::new(model, config.vocab, config.embd, &restrict)?,
            layers,
            output_norm: model.vector(OUTPUT_NORM, config.embd)?,
            head,
            rope_freqs,
        })
    }

    /// Every layer of matrices but stacks of experts, the head last.
    pub fn joints(&self) -> impl Iterator<Item = &Joint> {
        self.layers.iter().flat_map(Layer::joints).chain([&self.head.joint])
    }

    /// Every stack of experts.
    pub fn mixtures(&self) -> impl Iterator<Item = &Mixture> {
        self.layers.iter().filter_map(Layer::mixture)
    }

    /// Bytes held: matrices as packed, and vectors.
    pub fn bytes(&self) -> usize {
        let joints: usize = self.joints().map(Joint::bytes).sum();
        let mixtures: usize = self.mixtures().map(Mixture::bytes).sum();
        let norms = self.layers.iter().flat_map(|layer| layer.norms.all()).chain([&self.output_norm]);
        joints + mixtures + norms.map(|norm| size_of_val(&norm[..])).sum::<usize>()
    }

    /// Lets every launch count.
    ///
    /// # Errors
    /// [`gristmill::Error::ForeignRecording`].
    pub fn record(&mut self, recording: &Recording) -> Result<(), Error> {
        self.embedding.record(recording)?;
        for layer in &mut self.layers {
            if let Ffn::Mixture { mixture, .. } = &mut layer.ffn {
                mixture.record(recording)?;
            }
        }
        for joint in self.layers.iter_mut().flat_map(Layer::joints_mut).chain([&mut self.head.joint]) {
            joint.record(recording)?;
        }
        Ok(())
    }
}
