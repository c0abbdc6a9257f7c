//! The norms of a layer: which vectors of a file they multiply by, and how products take their input through them.

use crate::config::Config;
use crate::error::Error;
use gristmill::Prologue;
use gristmill::gguf::Model;

/// What the norms of a layer multiply by: where a file has it, or its values.
#[derive(Debug)]
pub struct Norms<T> {
    /// Before attention.
    pub attn: T,
    /// Before the feed-forward network.
    pub ffn: T,
    /// Behind attention.
    pub attn_sub: Option<T>,
    /// Behind the gate.
    pub ffn_sub: Option<T>,
    /// Of each head of queries, and of keys.
    pub heads: Option<[T; 2]>,
}

/// A vector of a file.
#[derive(Debug)]
pub struct Vector {
    /// Its name.
    pub name: String,
    /// Its elements.
    pub length: usize,
}

impl<T> Norms<T> {
    /// All that there are.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        let Norms { attn, ffn, attn_sub, ffn_sub, heads } = self;
        [attn, ffn].into_iter().chain(attn_sub).chain(ffn_sub).chain(heads.iter().flatten())
    }
}

impl Norms<Vector> {
    /// Those that layer `index` of a model has.
    pub fn of(config: &Config, index: usize) -> Norms<Vector> {
        let Config { architecture, embd, ffn, heads, head, .. } = *config;
        let vector = |name, length| Vector { name: format!("blk.{index}.{name}.weight"), length };
        Norms {
            attn: vector("attn_norm", embd),
            ffn: vector("ffn_norm", embd),
            attn_sub: architecture.sub_norms.then(|| vector("attn_sub_norm", heads * head)),
            ffn_sub: architecture.sub_norms.then(|| vector("ffn_sub_norm", ffn)),
            heads: architecture
                .head_norms
                .then(|| ["attn_q_norm", "attn_k_norm"].map(|name| vector(name, head))),
        }
    }

    /// Reads their values.
    ///
    /// # Errors
    /// One of them is missing, of another shape, or can't be read.
    pub fn load(&self, model: &Model) -> Result<Norms<Vec<f32>>, Error> {
        let load = |Vector { name, length }: &Vector| model.vector(name, *length);
        Ok(Norms {
            attn: load(&self.attn)?,
            ffn: load(&self.ffn)?,
            attn_sub: self.attn_sub.as_ref().map(load).transpose()?,
            ffn_sub: self.ffn_sub.as_ref().map(load).transpose()?,
            heads: match &self.heads {
                Some([q, k]) => Some([load(q)?, load(k)?]),
                None => None,
            },
        })
    }
}

/// What the inputs of a layer's products go through while they are quantized.
#[derive(Debug)]
pub struct Prologues {
    /// In front of query, key and value.
    pub attn: Prologue,
    /// In front of the output of attention, where that is normalized.
    pub output: Prologue,
    /// In front of gate and up.
    pub ffn: Prologue,
    /// In front of down.
    pub down: Prologue,
}

impl Prologues {
    /// Those with the norms of a layer.
    ///
    /// # Errors
    /// [`gristmill::Error`]: an epsilon that is none.
    pub fn new(config: &Config, norms: &Norms<Vec<f32>>) -> Result<Prologues, Error> {
        let norm = |of: Prologue, weight: Option<&Vec<f32>>| match weight {
            Some(weight) => of.rms_norm(weight, config.eps),
            None => Ok(of),
        };
        let gated = Prologue::new(config.ffn).gated(config.architecture.gate.function());
        Ok(Prologues {
            attn: norm(Prologue::new(config.embd), Some(&norms.attn))?,
            output: norm(Prologue::new(config.heads * config.head), norms.attn_sub.as_ref())?,
            ffn: norm(Prologue::new(config.embd), Some(&norms.ffn))?,
            down: norm(gated, norms.ffn_sub.as_ref())?,
        })
    }
}
