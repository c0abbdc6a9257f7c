//! The forward pass: tokens in, logits out. Everything that a step needs is made when the model is loaded.

use crate::attention::Attention;
use crate::cache::{Cache, CacheFormat};
use crate::config::{Config, ExpertCounts};
use crate::error::{Error, zeros};
use crate::joint::{Joint, outputs};
use crate::mixture::{self, Mixture, PairBuffers, Shape};
use crate::numerics::{add, add_scaled, gated, norm, norm_in_place, rotate, softmax};
use crate::restrict::{restricted, tuned};
use crate::weights::{Expert, Ffn, Layer, Weights};
use gristmill::gguf::{LayerOptions, Model};
use gristmill::vocab::Isa;
use gristmill::{ExpertInput, Input, Linear, Recording, Routes, Rows, Threads, Workspace};
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

/// What lies between products.
#[derive(Debug)]
struct Buffers {
    /// The residual stream.
    x: Vec<f32>,
    normed: Vec<f32>,
    /// Outputs of the first product of a half of a layer.
    wide: Vec<f32>,
    /// What goes into the second.
    inner: Vec<f32>,
    /// Outputs of the second.
    out: Vec<f32>,
    attention: Attention,
    routing: Routing,
    logits: Vec<f32>,
    workspace: Workspace,
}

/// Which experts tokens go to.
#[derive(Debug, Default)]
struct Routing {
    scores: Vec<f32>,
    /// For each token the experts that it goes through, with their weights.
    chosen: Vec<(u32, f32)>,
    /// Tokens of the expert whose turn it is.
    tokens: Vec<(u32, f32)>,
    /// Their inputs, one behind the other.
    inputs: Vec<f32>,
    /// For experts that are stacks.
    pairs: PairBuffers,
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

impl Buffers {
    fn new(config: &Config, weights: &Weights, m: usize, threads: &Threads) -> Result<Buffers, Error> {
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

    fn bytes(&self) -> usize {
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

/// One batch on its way through the layers.
struct Pass<'d> {
    config: &'d Config,
    threads: &'d Threads,
    turns: &'d [Vec<f32>; 2],
    first: usize,
    m: usize,
}

impl Pass<'_> {
    fn batch(
        &self,
        model: &Model,
        weights: &mut Weights,
        cache: &mut Cache,
        buffers: &mut Buffers,
        tokens: &[u32],
    ) -> Result<(), Error> {
        let embd = self.config.embd;
        weights.embedding.rows(model, tokens, &mut buffers.x[..self.m * embd])?;
        for (index, layer) in weights.layers.iter().enumerate() {
            self.attend(index, layer, cache, buffers)?;
            self.feed_forward(index, layer, buffers)?;
        }
        Ok(())
    }

    fn norm(&self, x: &[f32], weight: &[f32], y: &mut [f32]) -> Result<(), Error> {
        let embd = self.config.embd;
        self.threads.chunks(&mut y[..self.m * embd], embd, |token, y| {
            norm(&x[token * embd..][..embd], weight, self.config.eps, y);
            Ok(())
        })
    }

    fn add(&self, out: &[f32], x: &mut [f32]) -> Result<(), Error> {
        let embd = self.config.embd;
        self.threads.chunks(&mut x[..self.m * embd], embd, |token, x| {
            add(&out[token * embd..][..embd], x);
            Ok(())
        })
    }

    fn attend(
        &self,
        index: usize,
        layer: &Layer,
        cache: &mut Cache,
        buffers: &mut Buffers,
    ) -> Result<(), Error> {
        let Config { embd, heads, kv_heads, head, eps, .. } = *self.config;
        let (m, threads) = (self.m, self.threads);
        let Buffers { x, normed, wide, inner, out, attention, workspace, .. } = buffers;
        if layer.qkv.fuses() {
            let (norm, x) = (&layer.prologues.attn, Rows::dense(&x[..m * embd]));
            layer.qkv.forward_with(norm, x, None, m, wide, workspace, threads)?;
        } else {
            self.norm(x, &layer.norms.attn, normed)?;
            layer.qkv.forward(&normed[..m * embd], m, wide, workspace, threads)?;
        }
        let pairs = self.config.rope.dims / 2;
        for (which, count) in [(0, heads), (1, kv_heads)] {
            let weight = layer.norms.heads.as_ref().map(|norms| &norms[which]);
            layer.qkv.each_row(wide, m, which, count * head, threads, |token, row| {
                let place = (self.first + token) * pairs;
                let [cos, sin] = [0, 1].map(|which: usize| &self.turns[which][place..][..pairs]);
                for head in row.chunks_mut(head) {
                    if let Some(weight) = weight {
                        norm_in_place(head, weight, eps);
                    }
                    rotate(self.config.architecture.pairs, cos, sin, head);
                }
            })?;
        }
        let wide = &wide[..];
        let row = |which, count: usize| move |token| layer.qkv.row(wide, m, which, token, count * head);
        cache.store(index, self.first, m, row(1, kv_heads), row(2, kv_heads), threads)?;
        let inner = &mut inner[..m * heads * head];
        attention.run(cache, index, self.first, m, row(0, heads), inner, threads)?;
        match &layer.norms.attn_sub {
            Some(_) if layer.output.fuses() => {
                let (norm, inner) = (&layer.prologues.output, Rows::dense(inner));
                layer.output.forward_with(norm, inner, None, m, out, workspace, threads)?;
            }
            sub_norm => {
                if let Some(weight) = sub_norm {
                    self.norm_rows(inner, heads * head, weight)?;
                }
                layer.output.forward(inner, m, out, workspace, threads)?;
            }
        }
        self.add(out, x)
    }

    fn norm_rows(&self, rows: &mut [f32], width: usize, weight: &[f32]) -> Result<(), Error> {
        self.threads.chunks(rows, width, |_, row| {
            norm_in_place(row, weight, self.config.eps);
            Ok(())
        })
    }

    fn feed_forward(&self, index: usize, layer: &Layer, buffers: &mut Buffers) -> Result<(), Error> {
        let embd = self.config.embd;
        let Buffers { x, normed, wide, inner, out, routing, workspace, .. } = buffers;
        match &layer.ffn {
            Ffn::Dense(_) => {}
            Ffn::Mixture { .. } | Ffn::Experts { .. } => self.norm(x, &layer.norms.ffn, normed)?,
        }
        match &layer.ffn {
            Ffn::Dense(expert) => {
                let (m, threads) = (self.m, self.threads);
                if expert.gate_up.fuses() {
                    let (norm, x) = (&layer.prologues.ffn, Rows::dense(&x[..m * embd]));
                    expert.gate_up.forward_with(norm, x, None, m, wide, workspace, threads)?;
                } else {
                    self.norm(x, &layer.norms.ffn, normed)?;
                    expert.gate_up.forward(&normed[..m * embd], m, wide, workspace, threads)?;
                }
                self.down(expert, layer, m, [wide, inner, out], workspace)?;
                self.add(out, x)
            }
            Ffn::Mixture { router, mixture } => {
                let normed = &normed[..self.m * embd];
                self.route(index, router, normed, routing, workspace)?;
                self.mixture(mixture, layer, normed, x, routing, workspace)
            }
            Ffn::Experts { router, experts } => {
                let Some(sizes) = self.config.experts else { return Ok(()) };
                self.route(index, router, &normed[..self.m * embd], routing, workspace)?;
                let chosen = &routing.chosen[..self.m * sizes.used];
                // By rising number of the expert, so that a token's sum has one order whatever tokens are beside it.
                for (number, expert) in experts.iter().enumerate() {
                    routing.tokens.clear();
                    for (place, (of, weight)) in chosen.iter().enumerate() {
                        if *of as usize == number {
                            routing.tokens.push(((place / sizes.used) as u32, *weight));
                        }
                    }
                    if routing.tokens.is_empty() {
                        continue;
                    }
                    let inputs = &mut routing.inputs[..routing.tokens.len() * embd];
                    for ((token, _), input) in routing.tokens.iter().zip(inputs.chunks_mut(embd)) {
                        input.copy_from_slice(&normed[*token as usize * embd..][..embd]);
                    }
                    let m = routing.tokens.len();
                    self.expert(expert, layer, inputs, m, [wide, inner, out], workspace)?;
                    for ((token, weight), out) in routing.tokens.iter().zip(out.chunks(embd)) {
                        add_scaled(*weight, out, &mut x[*token as usize * embd..][..embd]);
                    }
                }
                Ok(())
            }
        }
    }

    /// Which experts each token goes through in layer `index`.
    fn route(
        &self,
        index: usize,
        router: &Joint,
        normed: &[f32],
        routing: &mut Routing,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let Some(sizes) = self.config.experts else { return Ok(()) };
        let scores = &mut routing.scores[..self.m * sizes.count];
        router.forward(normed, self.m, scores, workspace, self.threads)?;
        // No order of them is one where a score is NaN, and none has a weight where it is infinite.
        if let Some(at) = scores.iter().position(|score| !score.is_finite()) {
            let (token, expert) = (self.first + at / sizes.count, at % sizes.count);
            return Err(Error::Router { layer: index, token, expert, value: scores[at] });
        }
        choose(scores, sizes, &mut routing.chosen);
        Ok(())
    }

    /// All experts together, into `x`.
    fn mixture(
        &self,
        mixture: &Mixture,
        layer: &Layer,
        normed: &[f32],
        x: &mut [f32],
        routing: &mut Routing,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let Config { ffn, embd, experts: Some(sizes), .. } = *self.config else { return Ok(()) };
        let (m, threads) = (self.m, self.threads);
        let pairs = m * sizes.used;
        let Routing { chosen, pairs: PairBuffers { list, wide, inner, out }, .. } = routing;
        let chosen = &mut chosen[..pairs];
        // By rising number of the expert, so that a token's sum has one order whatever tokens are beside it.
        chosen.chunks_mut(sizes.used).for_each(|chosen| chosen.sort_unstable_by_key(|(expert, _)| *expert));
        let list = &mut list[..pairs];
        list.iter_mut().zip(&*chosen).for_each(|(to, (expert, _))| *to = *expert);
        let routes = Routes::each(m, sizes.used, list)?;
        let wide = &mut wide[..pairs * 2 * ffn];
        let mut rest = &mut *wide;
        for stack in &mixture.gate_up {
            let (y, behind) = rest.split_at_mut(pairs * stack.n());
            stack.forward(ExpertInput::Tokens(Input::F32(normed)), &routes, None, y, workspace, threads)?;
            rest = behind;
        }
        // Gate and up of a pair lie side by side where they are one stack.
        let (step, up) = if mixture.gate_up.len() == 1 { (2 * ffn, ffn) } else { (ffn, pairs * ffn) };
        let inner = &mut inner[..pairs * ffn];
        threads.chunks(inner, ffn, |pair, row| {
            let [gate, up] = [0, up].map(|first| &wide[pair * step + first..][..ffn]);
            gated(self.config.architecture.gate, gate, up, row);
            Ok::<(), Error>(())
        })?;
        if let Some(weight) = &layer.norms.ffn_sub {
            self.norm_rows(inner, ffn, weight)?;
        }
        let out = &mut out[..pairs * embd];
        mixture.down.forward(
            ExpertInput::Pairs(Input::F32(inner)),
            &routes,
            None,
            out,
            workspace,
            threads,
        )?;
        threads.chunks(&mut x[..m * embd], embd, |token, x| {
            for pair in token * sizes.used..(token + 1) * sizes.used {
                add_scaled(chosen[pair].1, &out[pair * embd..][..embd], x);
            }
            Ok(())
        })
    }

    fn expert(
        &self,
        expert: &Expert,
        layer: &Layer,
        x: &[f32],
        m: usize,
        [wide, inner, out]: [&mut [f32]; 3],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        expert.gate_up.forward(x, m, wide, workspace, self.threads)?;
        self.down(expert, layer, m, [wide, inner, out], workspace)
    }

    /// What an expert makes of the outputs of gate and up.
    fn down(
        &self,
        expert: &Expert,
        layer: &Layer,
        m: usize,
        [wide, inner, out]: [&mut [f32]; 3],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let Config { ffn, embd, .. } = *self.config;
        let out = &mut out[..m * embd];
        if expert.down.fuses() {
            let [gate, up] = [0, 1].map(|which| expert.gate_up.rows(wide, m, which));
            let prologue = &layer.prologues.down;
            return expert.down.forward_with(prologue, gate, Some(up), m, out, workspace, self.threads);
        }
        let inner = &mut inner[..m * ffn];
        self.threads.chunks(inner, ffn, |token, row| {
            let [gate, up] = [0, 1].map(|which| expert.gate_up.row(wide, m, which, token, ffn));
            gated(self.config.architecture.gate, gate, up, row);
            Ok::<(), Error>(())
        })?;
        if let Some(weight) = &layer.norms.ffn_sub {
            self.norm_rows(inner, ffn, weight)?;
        }
        expert.down.forward(inner, m, out, workspace, self.threads)
    }

    /// Logits of the last `rows` of `m` tokens.
    fn head(&self, weights: &Weights, buffers: &mut Buffers, rows: usize) -> Result<(), Error> {
        let Config { embd, vocab, .. } = *self.config;
        let Buffers { x, normed, logits, workspace, .. } = buffers;
        let x = &x[(self.m - rows) * embd..self.m * embd];
        let pass = Pass { m: rows, ..*self };
        pass.norm(x, &weights.output_norm, normed)?;
        let logits = &mut logits[..rows * vocab];
        weights.head.joint.forward(&normed[..rows * embd], rows, logits, workspace, self.threads)
    }
}

/// For each token the experts with the greatest probabilities, which are then made to add up to 1. Of equals the first. Scores are finite.
fn choose(scores: &mut [f32], sizes: ExpertCounts, chosen: &mut [(u32, f32)]) {
    for (scores, chosen) in scores.chunks_mut(sizes.count).zip(chosen.chunks_mut(sizes.used)) {
        softmax(scores);
        let mut sum = 0.0;
        for place in chosen.iter_mut() {
            let mut best = 0;
            for (number, score) in scores.iter().enumerate() {
                if *score > scores[best] {
                    best = number;
                }
            }
            *place = (best as u32, scores[best]);
            sum += scores[best];
            scores[best] = -1.0;
        }
        for (_, weight) in chosen {
            *weight /= sum;
        }
    }
}
