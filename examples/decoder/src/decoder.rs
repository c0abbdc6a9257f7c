//! A model that is loaded: tokens in, logits out. Everything that a step needs is made when it is loaded; what a step does is in
//! `pass.rs`.

use crate::buffers::Buffers;
use crate::cache::{Cache, CacheFormat};
use crate::config::Config;
use crate::error::{Error, zeros};
use crate::pass::Pass;
use crate::restrict::{restricted, tuned};
use crate::weights::Weights;
use gristmill::gguf::{LayerOptions, Model};
use gristmill::vocab::Isa;
use gristmill::{Recording, Threads};
use std::path::Path;
use std::sync::Arc;

/// How a model is loaded and run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads.
    pub threads: usize,
    /// Positions of the cache; `None`: those of the model, but at most [`DEFAULT_CONTEXT`].
    pub context: Option<usize>,
    /// What keys and values are held as.
    pub cache: CacheFormat,
    /// Tokens that go through the layers together; `None`: [`DEFAULT_BATCH`], or [`DEFAULT_BATCH_OF_EXPERTS`].
    pub batch: Option<usize>,
    /// Format of a head that the file has as f32, f16 or bf16.
    pub head: Option<String>,
    /// No kernels above this ISA; `None`: what `GRISTMILL_ISA` says. Other restrictions and the tuning of the environment hold as well.
    pub isa: Option<Isa>,
}

/// Positions of a cache if nothing is said.
pub const DEFAULT_CONTEXT: usize = 4096;

/// Tokens of a batch if nothing is said. What lies between products of more does not stay in the caches: on a Xeon with AMX a prompt of 512
/// tokens takes 0.82 to 0.95 of the time that it takes in one batch; held to AVX2 or AVX-VNNI, 0.93 to 1.02.
pub const DEFAULT_BATCH: usize = 128;

/// The same for models with experts, of which each has but a few of a batch's tokens.
pub const DEFAULT_BATCH_OF_EXPERTS: usize = 512;

impl Default for Options {
    fn default() -> Options {
        Options { threads: 1, context: None, cache: CacheFormat::F16, batch: None, head: None, isa: None }
    }
}

impl Options {
    /// Positions of the cache for a model.
    ///
    /// # Errors
    /// More than the model was made for, or none.
    pub fn context(&self, config: &Config) -> Result<usize, Error> {
        let longest = config.context;
        match self.context {
            None => Ok(longest.min(DEFAULT_CONTEXT)),
            Some(0) => Err(Error::Asked("--context 0: a context has one position at least".to_owned())),
            Some(context) if context > longest => Err(Error::Asked(format!(
                "--context {context}: the model was made for {longest} positions (its `context_length`)"
            ))),
            Some(context) => Ok(context),
        }
    }

    /// Tokens of a batch for a model, at most the positions of its cache.
    ///
    /// # Errors
    /// As for [`Options::context`].
    pub fn batch(&self, config: &Config) -> Result<usize, Error> {
        let default = if config.experts.is_some() { DEFAULT_BATCH_OF_EXPERTS } else { DEFAULT_BATCH };
        Ok(self.batch.unwrap_or(default).clamp(1, self.context(config)?))
    }

    /// What the layers of a model are asked to be, whether they are loaded or planned.
    ///
    /// # Errors
    /// Variables of the environment that can't be understood.
    pub fn layers<'t>(&self, model: &Model, threads: &'t Threads) -> Result<LayerOptions<'t>, Error> {
        let mut layers = LayerOptions::new(threads);
        layers.linear.restrict = Some(restricted(self.isa)?);
        layers.linear.tuning = Some(Arc::new(tuned(model.registry())?));
        layers.linear.working_set = Some(model.file().working_set());
        Ok(layers)
    }
}

/// A model that is loaded.
#[derive(Debug)]
pub struct Decoder {
    /// Its sizes.
    pub config: Config,
    /// Its file, from which vectors of tokens are read.
    pub model: Model,
    /// Its weights.
    pub weights: Weights,
    threads: Threads,
    cache: Cache,
    position: usize,
    batch: usize,
    /// Cosines and sines of all positions.
    turns: [Vec<f32>; 2],
    buffers: Buffers,
}

/// Which logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Those behind the last token.
    Last,
    /// Those behind each token, which must be no more than a batch.
    All,
}

impl Decoder {
    /// Opens the file at `path` and loads its weights.
    ///
    /// # Errors
    /// Everything that can be wrong with the file and the options.
    pub fn load(path: &Path, options: &Options) -> Result<Decoder, Error> {
        Decoder::new(Decoder::open(path)?, options)
    }

    /// Opens the file at `path`: what can be seen before the weights are loaded.
    ///
    /// # Errors
    /// It is no GGUF file.
    pub fn open(path: &Path) -> Result<Model, Error> {
        // Joints and the embedding apply what the file declares.
        Ok(Model::open(path)?.transformed_by_caller())
    }

    /// Loads the weights of a file that [`open`](Decoder::open) opened.
    ///
    /// # Errors
    /// As for [`load`](Decoder::load).
    pub fn new(model: Model, options: &Options) -> Result<Decoder, Error> {
        let config = Config::of(model.file())?;
        let context = options.context(&config)?;
        // Before the weights, which take long.
        options.cache.check(&config)?;
        let batch = options.batch(&config)?;
        let threads = Threads::new(options.threads)?;
        let layers = options.layers(&model, &threads)?;
        let restrict = layers.linear.restrict.clone().unwrap_or_default();
        let weights = Weights::load(&config, &model, options.head.as_deref(), &layers)?;
        let buffers = Buffers::new(&config, &weights, batch, &threads)?;
        let turns = turns(&config, weights.rope_freqs.as_deref(), context)?;
        let cache = Cache::new(&config, context, options.cache, &restrict, &threads)?;
        Ok(Decoder { config, model, weights, threads, cache, position: 0, batch, turns, buffers })
    }

    /// Tokens in the cache.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Places that are left in it.
    pub fn room(&self) -> usize {
        self.cache.context() - self.position
    }

    /// Places in it.
    pub fn context(&self) -> usize {
        self.cache.context()
    }

    /// What keys and values are held as.
    pub fn cache_format(&self) -> CacheFormat {
        self.cache.format()
    }

    /// Forgets all tokens but the first `position`.
    pub fn rewind(&mut self, position: usize) {
        self.position = self.position.min(position);
    }

    /// Lets every launch count.
    ///
    /// # Errors
    /// [`gristmill::Error::ForeignRecording`].
    pub fn record(&mut self, recording: &Recording) -> Result<(), Error> {
        self.weights.record(recording)?;
        self.cache.record(recording)
    }

    /// Bytes of the cache and of what lies between products.
    pub fn working_bytes(&self) -> (usize, usize) {
        (self.cache.bytes(), self.buffers.bytes())
    }

    /// Takes in tokens, a batch at a time, and gives the logits that are wanted: `vocab` behind the last token, or as many for
    /// each token. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Token`], [`Error::Context`] before anything is computed; no tokens; more than a batch where all logits are wanted;
    /// what kernels report, as values that are not finite.
    pub fn feed(&mut self, tokens: &[u32], wanted: Wanted) -> Result<&mut [f32], Error> {
        let vocab = self.config.vocab;
        if tokens.is_empty() {
            return Err(Error::Asked("there are no tokens to continue from".to_owned()));
        }
        if tokens.len() > self.room() {
            let (tokens, room, context) = (tokens.len(), self.room(), self.cache.context());
            return Err(Error::Context { tokens, room, context, longest: self.config.context });
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
            return Err(Error::Token { token: *token, vocab });
        }
        if wanted == Wanted::All && tokens.len() > self.batch {
            return Err(Error::Asked(format!(
                "logits of {} tokens: --batch is {}",
                tokens.len(),
                self.batch
            )));
        }
        if wanted == Wanted::All && self.buffers.logits.len() < tokens.len() * vocab {
            self.buffers.logits = zeros("logits", tokens.len().saturating_mul(vocab))?;
        }
        let Decoder { config, model, weights, threads, cache, turns, buffers, .. } = self;
        let mut position = self.position;
        for batch in tokens.chunks(self.batch) {
            let pass = Pass { config, threads, turns, first: position, m: batch.len() };
            threads.awake(|| pass.batch(model, weights, cache, buffers, batch))?;
            position += batch.len();
        }
        self.position = position;
        let last = tokens.chunks(self.batch).last().map_or(0, <[u32]>::len);
        let rows = if wanted == Wanted::All { last } else { 1 };
        let pass = Pass { config, threads, turns, first: 0, m: last };
        threads.awake(|| pass.head(weights, buffers, rows))?;
        Ok(&mut buffers.logits[..rows * vocab])
    }
}

/// Cosines and sines for each position and pair.
fn turns(config: &Config, factors: Option<&[f32]>, context: usize) -> Result<[Vec<f32>; 2], Error> {
    let pairs = config.rope.dims / 2;
    let mut turns: [Vec<f32>; 2] =
        [zeros("cosines", context.saturating_mul(pairs))?, zeros("sines", context.saturating_mul(pairs))?];
    for pair in 0..pairs {
        let exponent = -2.0 * pair as f64 / config.rope.dims as f64;
        let factor = factors.and_then(|factors| factors.get(pair)).map_or(1.0, |factor| f64::from(*factor));
        let angle = libm::pow(config.rope.base, exponent) * config.rope.scale / factor;
        for position in 0..context {
            let place = position * pairs + pair;
            turns[0][place] = libm::cos(angle * position as f64) as f32;
            turns[1][place] = libm::sin(angle * position as f64) as f32;
        }
    }
    Ok(turns)
}
