//! `decoder run --plan`: what will run, and how much memory it takes, before anything is loaded.

use super::loading::{Loading, mebibytes, print};
use crate::cache::Cache;
use crate::config::Config;
use crate::error::Error;
use crate::head;
use crate::joint::Source;
use crate::restrict::{restricted, tuned};
use crate::weights::survey;
use gristmill::gguf::{Model, TensorType};
use gristmill::{CpuProfile, Request, Shape, Threads};
use std::io::Write;

/// One matrix of the plan.
#[derive(Debug, PartialEq)]
struct Line {
    format: String,
    one: String,
    many: String,
    bytes: usize,
}

impl Loading {
    /// Prints the plan.
    pub(super) fn plan(&self, threads: usize, out: &mut dyn Write) -> Result<(), Error> {
        let model = Model::open(&self.model)?;
        let config = Config::of(model.file())?;
        let options = self.options(threads);
        let (context, batch) = (options.context(&config)?, options.batch(&config)?);
        let cache = Cache::bytes_for(&config, context, self.cache)?;
        let threads = Threads::new(threads)?;
        let mut weights = 0;
        let mut print_line = |tensor: &str, n, k, line: Line| {
            weights += line.bytes;
            let Line { format, one, many, bytes } = line;
            let kernels = if one == many { one } else { format!("{one}; of {batch} tokens {many}") };
            print(
                out,
                format_args!(
                    "{tensor:<32} {format:<10} {n:>6}x{k:<6} {:>9} MiB  {kernels}\n",
                    mebibytes(bytes as u64)
                ),
            )
        };
        for layer in survey(&config, &model)? {
            for source in layer.groups().into_iter().flatten() {
                let line = self.line(&model, source, None, batch, &threads)?;
                let name = match source.rows() {
                    Some(rows) => format!("{} [{}..]", source.tensor, rows.start),
                    None => source.tensor.clone(),
                };
                print_line(&name, source.n, source.k, line)?;
            }
        }
        let (tensor, _, format) = head::choose(&config, &model, self.head.as_deref())?;
        let source =
            Source { tensor: tensor.to_owned(), stacked: None, n: config.vocab, k: config.embd, bias: None };
        source.check(&model)?;
        let line = self.line(&model, &source, format, batch, &threads)?;
        print_line(&format!("{tensor} (head)"), source.n, source.k, line)?;
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

    fn line(
        &self,
        model: &Model,
        source: &Source,
        instead: Option<&str>,
        batch: usize,
        threads: &Threads,
    ) -> Result<Line, Error> {
        let (n, k) = (source.n, source.k);
        let (format, shown) = match (instead, model.tensor_type(&source.tensor)?) {
            (Some(format), TensorType::Plain(plain)) => {
                (format.to_owned(), format!("{}>{format}", plain.name))
            }
            (None, TensorType::Plain(plain)) => {
                let f32 = "f32 in this decoder".to_owned();
                let bytes = n * k * size_of::<f32>();
                return Ok(Line { format: plain.name.to_owned(), one: f32.clone(), many: f32, bytes });
            }
            (_, TensorType::Tiled(tiled)) => {
                let format = model.types().imported_as(k).map_or(tiled.layout.name(), |format| format.name);
                (format.to_owned(), tiled.layout.name().to_owned())
            }
            (_, TensorType::Format(resolved)) => {
                (resolved.format.name.to_owned(), resolved.format.name.to_owned())
            }
        };
        let shape = Shape::new(1, n, k);
        let request = Request::matmul(&format, shape);
        let (restrict, tuning) = (restricted(self.isa)?, tuned(model.registry())?);
        let prepared = model.registry().prepare_tuned(&request, CpuProfile::detect(), &restrict, &tuning)?;
        // A layer holds its weights once for each packing that its kernels want.
        let mut packings: Vec<(Option<&str>, usize)> = Vec::new();
        let mut names = Vec::new();
        for m in [1, batch] {
            let decision = prepared.decide(Shape { m, n, k });
            let memory = decision.memory(threads)?;
            if !packings.iter().any(|(packing, _)| *packing == memory.packing) {
                packings.push((memory.packing, memory.weight_bytes));
            }
            names.push(decision.kernel()?.name.to_owned());
        }
        let bytes = packings.iter().map(|(_, bytes)| bytes).sum();
        let many = names.pop().unwrap_or_default();
        Ok(Line { format: shown, one: names.pop().unwrap_or_default(), many, bytes })
    }
}
