//! The output layer: `output.weight`, or the embedding where the file has none. If that is f32, f16 or bf16 it is quantized while it
//! is loaded, as every token reads all of it.

use crate::config::Config;
use crate::embedding;
use crate::error::{Error, zeros};
use crate::floats::Float;
use crate::joint::{Joint, Source};
use gristmill::gguf::{LayerOptions, Model, TensorType};
use gristmill::registry::FormatInfo;
use gristmill::{CpuProfile, Dequantizer, Linear, QuantizedMatrix, Quantizer, Request, Restrict};
use std::sync::Mutex;

/// Name of the tensor.
pub const NAME: &str = "output.weight";

/// Rows that are quantized at a time.
const PIECE: usize = 64;

/// The output layer.
#[derive(Debug)]
pub struct Head {
    /// Its product.
    pub joint: Joint,
    /// Whether it shares the matrix of the embedding.
    pub tied: bool,
    /// What was done to a matrix that was not quantized.
    pub requantized: Option<Requantized>,
}

/// A matrix that was quantized while it was loaded.
#[derive(Clone, Debug)]
pub struct Requantized {
    /// Its type in the file.
    pub from: &'static str,
    /// Its format now.
    pub to: &'static str,
    /// The sum of squared differences over the sum of squares, of one row in 64.
    pub nmse: f64,
}

/// The tensor that the head is made of, its type, and the format it gets where it has none: `asked`, else `q6_k` where rows are
/// of whole blocks of it, else `q8_0`.
///
/// # Errors
/// An unknown or unsuitable format, and one for a head that has a format already.
pub fn choose<'a>(
    config: &Config,
    model: &Model,
    asked: Option<&'a str>,
) -> Result<(&'static str, TensorType, Option<&'a str>), Error> {
    let tensor = if model.file().tensor(NAME).is_some() { NAME } else { embedding::NAME };
    let found = model.tensor_type(tensor)?;
    let format = match &found {
        TensorType::Format(resolved) => match asked {
            Some(asked) if asked != resolved.format.name => {
                return Err(Error::Asked(format!(
                    "the head, `{tensor}`, is quantized to {} already; --head is for files that have it as f32, f16 or bf16",
                    resolved.format.name
                )));
            }
            _ => None,
        },
        // What it becomes is up to its tile sizes and rows.
        TensorType::Tiled(_) => None,
        TensorType::Plain(_) => {
            let format = asked.unwrap_or(if config.embd.is_multiple_of(256) { "q6_k" } else { "q8_0" });
            Some(format).filter(|format| Float::named(format).is_none())
        }
    };
    Ok((tensor, found, format))
}

impl Head {
    /// Loads it.
    ///
    /// # Errors
    /// Those of [`choose`], of reading, quantizing and packing.
    pub fn load(
        config: &Config,
        model: &Model,
        asked: Option<&str>,
        options: &LayerOptions<'_>,
    ) -> Result<Head, Error> {
        let (tensor, found, format) = choose(config, model, asked)?;
        let (n, k) = (config.vocab, config.embd);
        let tied = tensor == embedding::NAME;
        let source = Source { tensor: tensor.to_owned(), stacked: None, n, k, bias: None };
        source.check(model)?;
        match (format, found) {
            (Some(format), TensorType::Plain(plain)) => {
                let quantizing = Quantizing::new(model, &source, format, options)?;
                let (bytes, nmse) = quantizing.run(options)?;
                let matrix = QuantizedMatrix::new(quantizing.format, n, k, &bytes)?;
                let layer = Linear::new(model.registry(), &matrix, &options.linear, options.threads)?;
                // What is stored was quantized, folded as it may be.
                let layer = match model.transforms().and_then(|transforms| transforms.of_inputs(tensor)) {
                    Some(transform) => layer.transformed(transform.clone())?,
                    None => layer,
                };
                let requantized = Requantized { from: plain.name, to: quantizing.format.name, nmse };
                Ok(Head { joint: Joint::of(layer), tied, requantized: Some(requantized) })
            }
            (_, _) => Ok(Head { joint: Joint::load(model, &[source], options)?, tied, requantized: None }),
        }
    }
}

/// A matrix on its way to a format.
struct Quantizing<'m> {
    model: &'m Model,
    source: &'m Source,
    format: &'static FormatInfo,
    quantizer: Quantizer,
    dequantizer: Dequantizer,
}

impl<'m> Quantizing<'m> {
    fn new(
        model: &'m Model,
        source: &'m Source,
        format: &str,
        options: &LayerOptions<'_>,
    ) -> Result<Quantizing<'m>, Error> {
        let registry = model.registry();
        let (_, info) = registry.format(format)?;
        if info.tensor_tail.is_some() {
            let why = "has one scale for a whole tensor, which is too coarse for a head\n  help: --head q6_k";
            return Err(Error::Asked(format!("format `{format}` {why}")));
        }
        let restrict: Restrict = options.linear.restrict.clone().unwrap_or_default();
        let (n, k) = (source.n, source.k);
        // Says early that rows are not whole blocks.
        info.tensor_bytes(n, k)?;
        let prepare = |request: Request<'_>| registry.prepare_for(&request, CpuProfile::detect(), &restrict);
        let quantizer = Quantizer::new(&prepare(Request::quantize(format, None, n, k))?.decide_as_asked())?;
        let dequantizer = Dequantizer::new(&prepare(Request::dequantize(format, n, k))?.decide_as_asked())?;
        Ok(Quantizing { model, source, format: info, quantizer, dequantizer })
    }

    /// All bytes in the new format, and how far they are from what the file has.
    fn run(&self, options: &LayerOptions<'_>) -> Result<(Vec<u8>, f64), Error> {
        let Source { n, k, .. } = *self.source;
        let mut bytes: Vec<u8> = zeros("the quantized head", self.format.tensor_bytes(n, k)?)?;
        let row_bytes = self.format.row_bytes(k)?;
        // Squared differences and squares by piece, so that their sums have one order.
        let pieces = n.div_ceil(PIECE);
        let sums = Mutex::new(vec![(0.0f64, 0.0f64); pieces]);
        options.threads.chunks(&mut bytes, PIECE * row_bytes, |piece, out| {
            let rows = PIECE.min(n - piece * PIECE);
            let mut values: Vec<f32> = zeros("rows of the head", rows * k)?;
            self.model.floats_at(&self.source.tensor, (piece * PIECE * k) as u64, &mut values)?;
            self.quantizer.run(&values, rows, k, out)?;
            let mut back: Vec<f32> = zeros("a row of the head", k)?;
            let matrix = QuantizedMatrix::new(self.format, rows, k, out)?;
            self.dequantizer.rows(&matrix, 0..1, &mut back)?;
            let squares = |(a, b): (&f32, &f32)| (f64::from(a - b).powi(2), f64::from(*a).powi(2));
            let (error, signal) = values
                .iter()
                .zip(&back)
                .map(squares)
                .fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            // Nothing panics while it is held.
            sums.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[piece] = (error, signal);
            Ok::<(), Error>(())
        })?;
        let sums = sums.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (error, signal) = sums.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Ok((bytes, if signal > 0.0 { error / signal } else { 0.0 }))
    }
}
