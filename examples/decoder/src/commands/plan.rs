//! `decoder run --plan`: what will run, and how much memory it takes, before anything is loaded.

use super::loading::{Loading, mebibytes, print};
use crate::cache::Cache;
use crate::config::Config;
use crate::error::Error;
use crate::head;
use crate::joint::{Group, Source, groups};
use crate::mixture::{Shape as ExpertShape, stacked};
use crate::weights::{ExpertSources, FfnSources, survey};
use gristmill::gguf::{LayerOptions, Model, TensorType};
use gristmill::{CpuProfile, Request, Restrict, Shape, Threads, Tuning};
use std::collections::HashMap;
use std::io::Write;

/// A layer as it will be loaded: of one matrix, or of several that are stacked.
#[derive(Debug)]
struct Line {
    name: String,
    /// What the file has it as, and what that becomes.
    stored: String,
    /// How many there are of it, where it is an expert.
    count: Option<usize>,
    n: usize,
    k: usize,
    product: Product,
}

/// How a layer is multiplied.
#[derive(Clone, Debug)]
struct Product {
    /// Names of kernels, each with the number of tokens from which on it runs; none of matrices of floats.
    kernels: Vec<(usize, &'static str)>,
    /// Bytes of its weights.
    bytes: usize,
}

impl Line {
    /// Bytes of all there are of it.
    fn bytes(&self) -> usize {
        self.product.bytes.saturating_mul(self.count.unwrap_or(1))
    }

    fn print(&self, out: &mut dyn Write) -> Result<(), Error> {
        let Line { name, stored, n, k, product, .. } = self;
        let (size, tokens) = match self.count {
            Some(count) => (format!("{count}x {n}x{k}"), "tokens of an expert"),
            None => (format!("{n}x{k}"), "tokens"),
        };
        let mut kernels = String::new();
        for (m, kernel) in &product.kernels {
            let before = match m {
                1 => String::new(),
                m => format!("; from {m} {tokens} on "),
            };
            kernels.push_str(&before);
            kernels.push_str(kernel);
        }
        if kernels.is_empty() {
            kernels.push_str("f32 in this decoder");
        }
        let bytes = mebibytes(self.bytes() as u64);
        print(out, format_args!("{name:<42} {stored:<10} {size:>18} {bytes:>9} MiB  {kernels}\n"))
    }
}

/// What is planned for the layers of one model: the requests are those by which they are loaded.
struct Planner<'p> {
    model: &'p Model,
    layers: &'p LayerOptions<'p>,
    restrict: Restrict,
    tuning: Tuning,
    /// Most tokens at once.
    batch: usize,
    /// By format, rows and elements of a row: most layers are alike.
    known: HashMap<(&'static str, usize, usize), Product>,
    lines: Vec<Line>,
}

impl<'p> Planner<'p> {
    fn new(model: &'p Model, layers: &'p LayerOptions<'p>, batch: usize) -> Planner<'p> {
        let restrict = layers.linear.restrict.clone().unwrap_or_default();
        let tuning = layers.linear.tuning.as_deref().cloned().unwrap_or_else(Tuning::none);
        Planner { model, layers, restrict, tuning, batch, known: HashMap::new(), lines: Vec::new() }
    }

    /// Every layer of a model, the head last.
    fn all(mut self, config: &Config, head: Option<&str>) -> Result<Vec<Line>, Error> {
        for layer in survey(config, self.model)? {
            self.joint(&layer.qkv, None)?;
            self.joint(&layer.output, None)?;
            match &layer.ffn {
                FfnSources::Dense([gate_up, down]) => {
                    self.joint(gate_up, None)?;
                    self.joint(down, None)?;
                }
                FfnSources::Experts(experts) => self.experts(config, experts)?,
            }
        }
        let (tensor, _, format) = head::choose(config, self.model, head)?;
        let (n, k) = (config.vocab, config.embd);
        let source = Source { tensor: tensor.to_owned(), stacked: None, n, k, bias: None };
        match format {
            Some(format) => {
                source.check(self.model)?;
                let (_, info) = self.model.registry().format(format)?;
                let stored = format!("{}>{format}", self.stored(tensor)?);
                let product = self.product(info.name, n, k)?;
                self.lines.push(Line { name: tensor.to_owned(), stored, count: None, n, k, product });
            }
            None => self.joint(&[source], None)?,
        }
        if let Some(head) = self.lines.last_mut() {
            head.name.push_str(" (head)");
        }
        Ok(self.lines)
    }

    /// Matrices that share their input; `count` of them, where they are those of an expert.
    fn joint(&mut self, sources: &[Source], count: Option<usize>) -> Result<(), Error> {
        for group in groups(self.model, sources)? {
            let (n, Some(Source { tensor, k, .. })) = (group.n(), group.sources.first()) else { continue };
            let Group { sources, format } = group;
            let (stored, k) = (self.stored(tensor)?, *k);
            let product = match format {
                Some(format) => self.product(format, n, k)?,
                None => Product { kernels: Vec::new(), bytes: n.saturating_mul(k * size_of::<f32>()) },
            };
            let name = joined(sources.iter().map(|source| &source.tensor[..]));
            self.lines.push(Line { name, stored, count, n, k, product });
        }
        Ok(())
    }

    fn experts(&mut self, config: &Config, experts: &ExpertSources) -> Result<(), Error> {
        let ExpertSources { router, first: [gate_up, down], count } = experts;
        self.joint(router, None)?;
        let shape = ExpertShape::of(config, *count);
        let stacks = match experts.tensors() {
            Some(tensors) => stacked(self.model, tensors, shape)?,
            None => None,
        };
        let Some(stacks) = stacks else {
            self.joint(gate_up, Some(*count))?;
            return self.joint(down, Some(*count));
        };
        for stack in stacks {
            let (n, k) = (stack.n, stack.k);
            let product = self.product(stack.format, n, k)?;
            let (name, stored) = (joined(stack.tensors.into_iter()), stack.format.to_owned());
            self.lines.push(Line { name, stored, count: Some(*count), n, k, product });
        }
        Ok(())
    }

    /// What the file has a tensor as.
    fn stored(&self, tensor: &str) -> Result<String, Error> {
        Ok(match self.model.tensor_type(tensor)? {
            TensorType::Format(resolved) => resolved.format.name.to_owned(),
            TensorType::Tiled(tiled) => tiled.layout.name().to_owned(),
            TensorType::Plain(plain) => plain.name.to_owned(),
        })
    }

    fn product(&mut self, format: &'static str, n: usize, k: usize) -> Result<Product, Error> {
        if let Some(known) = self.known.get(&(format, n, k)) {
            return Ok(known.clone());
        }
        let linear = &self.layers.linear;
        let request = Request::matmul(format, Shape::new(1, n, k)).with_input(linear.input).on(linear.device);
        let request = request.with_precision(linear.precision).with_working_set(linear.working_set);
        let request = request.with_threads(self.layers.threads.count());
        let registry = self.model.registry();
        let prepared =
            registry.prepare_tuned(&request, CpuProfile::detect(), &self.restrict, &self.tuning)?;
        let mut kernels: Vec<(usize, &'static str)> = Vec::new();
        for m in 1..=self.batch {
            let name = prepared.decide(Shape { m, n, k }).kernel()?.name;
            if kernels.last().is_none_or(|(_, last)| *last != name) {
                kernels.push((m, name));
            }
        }
        // Weights are held once for each packing that kernels want.
        let bytes = prepared.packings(n, k)?.iter().map(|(_, bytes)| bytes).sum();
        let product = Product { kernels, bytes };
        self.known.insert((format, n, k), product.clone());
        Ok(product)
    }
}

/// The first name, and what is another in the others.
fn joined<'t>(mut tensors: impl Iterator<Item = &'t str>) -> String {
    let mut name = tensors.next().unwrap_or_default().to_owned();
    for tensor in tensors {
        let short = tensor.strip_suffix(".weight").unwrap_or(tensor);
        name.push_str(" + ");
        name.push_str(short.rsplit('.').next().unwrap_or(short));
    }
    name
}

impl Loading {
    /// Prints the plan.
    pub(super) fn plan(&self, threads: usize, out: &mut dyn Write) -> Result<(), Error> {
        let model = self.open()?;
        let config = Config::of(model.file())?;
        let options = self.options(threads);
        let (context, batch) = (options.context(&config)?, options.batch(&config)?);
        let cache = Cache::bytes_for(&config, context, self.cache)?;
        let threads = Threads::new(threads)?;
        let layers = options.layers(&model, &threads)?;
        let lines = Planner::new(&model, &layers, batch).all(&config, self.head.as_deref())?;
        for line in &lines {
            line.print(out)?;
        }
        let weights: usize = lines.iter().map(Line::bytes).sum();
        print(
            out,
            format_args!(
                "\n{} MiB of packed matrices; a cache of {context} positions in {} takes {} MiB; strict: a layer without a kernel is an error\n",
                mebibytes(weights as u64),
                self.cache.name(),
                mebibytes(cache as u64)
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::make_model::Recipe;
    use crate::weights::Weights;
    use gristmill::{ExpertInput, Input, REGISTRY, Recording, Routes, Workspace};
    use std::collections::BTreeSet;

    const BATCH: usize = 40;

    fn recipe(architecture: &str, formats: &[&str]) -> Recipe {
        Recipe {
            architecture: architecture.to_owned(),
            layers: 1,
            embd: 256,
            ffn: 512,
            heads: 4,
            kv_heads: 2,
            head: None,
            vocab: 300,
            context: 64,
            experts: (3, 2),
            formats: formats.iter().map(|format| (*format).to_owned()).collect(),
            embedding: "f16".to_owned(),
            head_format: None,
            rope_freqs: false,
            vocabulary: false,
            seed: 1,
        }
    }

    /// Runs every layer with each of `tokens`, and gives the names of the products' kernels.
    fn run(weights: &mut Weights, tokens: &[usize], threads: &Threads) -> Result<BTreeSet<String>, Error> {
        let recording = Recording::new(&REGISTRY);
        weights.record(&recording)?;
        for m in tokens.iter().copied() {
            for joint in weights.joints() {
                let k = joint.linears().next().map_or(0, gristmill::Linear::k);
                let mut workspace = Workspace::for_all(joint.linears(), m, threads)?;
                let (x, mut y) = (vec![0.5; m * k], vec![0.0; m * joint.n()]);
                if k > 0 {
                    joint.forward(&x, m, &mut y, &mut workspace, threads)?;
                }
            }
            for stack in weights.mixtures().flat_map(crate::mixture::Mixture::stacks) {
                let (x, mut y) = (vec![0.5; m * stack.k()], vec![0.0; m * stack.n()]);
                let mut workspace = stack.workspace(m, m, threads)?;
                // One expert has all of them.
                let numbers = vec![1; m];
                let routes = Routes::each(m, 1, &numbers)?;
                let input = ExpertInput::Tokens(Input::F32(&x));
                stack.forward(input, &routes, None, &mut y, &mut workspace, threads)?;
            }
        }
        let receipt = recording.receipt();
        let names = receipt.kernels().iter().map(|kernel| kernel.name().to_owned());
        Ok(names.filter(|name| name.starts_with("matmul.")).collect())
    }

    /// Of weights that the last-level cache holds, and of such that it does not: other packings, and other kernels, are then taken.
    #[test]
    fn a_plan_is_what_is_loaded_and_what_runs() -> Result<(), Error> {
        let folder = tempfile::tempdir().map_err(|source| Error::Io {
            action: "make",
            path: "a folder".into(),
            source,
        })?;
        let path = folder.path().join("model.gguf");
        let threads = Threads::single();
        for (architecture, formats, lines) in [
            ("bitnet-b1.58", &["i2_s"][..], 5),
            ("llama", &["q4_k"], 5),
            // Query, key and value; output; gate; up; down; the head.
            ("llama", &["q4_k", "q4_k", "q4_k", "q6_k", "q6_k", "q5_k", "q8_0"], 6),
            ("llama", &["f32", "q8_0"], 8),
            ("qwen3moe", &["q8_0"], 6),
            ("qwen3moe", &["q4_k", "q4_k", "q4_k", "q4_k", "q6_k", "q5_k", "q8_0"], 7),
            ("qwen3moe", &["f16"], 9),
        ] {
            recipe(architecture, formats).write(&path, &threads)?;
            let model = crate::decoder::Decoder::open(&path)?;
            let config = Config::of(model.file())?;
            let mut packings = BTreeSet::new();
            for working_set in [0, u64::MAX] {
                let mut layers = LayerOptions::new(&threads);
                layers.linear.working_set = Some(working_set);
                let plan = Planner::new(&model, &layers, BATCH).all(&config, None)?;
                let name = format!("{architecture}, {formats:?}, {working_set}: {plan:#?}");
                assert_eq!(plan.len(), lines, "{name}");
                let mut weights = Weights::load(&config, &model, None, &layers)?;
                let joints: usize = weights.joints().map(crate::joint::Joint::bytes).sum();
                let stacks: usize = weights.mixtures().map(crate::mixture::Mixture::bytes).sum();
                assert_eq!(plan.iter().map(Line::bytes).sum::<usize>(), joints + stacks, "{name}");
                let kernels = plan.iter().flat_map(|line| &line.product.kernels);
                let planned: BTreeSet<String> = kernels.map(|(_, kernel)| (*kernel).to_owned()).collect();
                let tokens: Vec<usize> = (1..=BATCH).collect();
                assert_eq!(run(&mut weights, &tokens, &threads)?, planned, "{name}");
                packings.insert(planned);
            }
            println!("{architecture}, {formats:?}: {} sets of kernels", packings.len());
        }
        Ok(())
    }
}
