//! A decoder layer of BitNet b1.58 2B-4T in memory: hidden size 2560, 640 for keys and values, 6912 in the
//! feed-forward part.

use super::super::error::CliError;
use super::super::held::Held;
use super::super::memory::Need;
use super::super::progress;
use super::super::progress::step;
use super::Bench;
use super::report::Done;
use gristmill::oracle::Random;
use gristmill::{QuantizedMatrix, Quantizer, REGISTRY, Request};

/// Name, rows, elements of a row.
pub const TENSORS: [(&str, usize, usize); 7] = [
    ("attn_q", 2560, 2560),
    ("attn_k", 640, 2560),
    ("attn_v", 640, 2560),
    ("attn_output", 2560, 2560),
    ("ffn_gate", 6912, 2560),
    ("ffn_up", 6912, 2560),
    ("ffn_down", 2560, 6912),
];

/// The format of that model.
const FORMAT: &str = "i2_s";

/// Makes and runs `layers` layers, one tensor at a time.
///
/// # Errors
/// If the build holds no kernels for the format.
pub fn run(layers: u32, bench: &mut Bench<'_>) -> Result<Done, CliError> {
    let (_, format) = REGISTRY.format(FORMAT)?;
    let mut working_set = 0u64;
    for (_, n, k) in TENSORS {
        working_set += format.tensor_bytes(n, k)? as u64 * u64::from(layers);
    }
    bench.held = Held::new(working_set);
    let mut done = Done::default();
    let bar = progress::bar(u64::from(layers) * TENSORS.len() as u64);
    for layer in 0..layers {
        for (tensor, n, k) in TENSORS {
            let name = format!("blk.{layer}.{tensor}.weight");
            step(&bar, &name);
            let prepared = bench.environment.prepare(&Request::quantize(FORMAT, None, n, k))?;
            let quantizer = Quantizer::new(&prepared.decide_as_asked())?;
            // As f32, and quantized.
            let need = Need::new().and(&[n, k], 4).and(&[format.tensor_bytes(n, k)?], 1);
            need.check(
                || format!("`{name}` ({n}x{k})"),
                "give a model FILE.gguf, whose tensors are not made first",
            )?;
            let mut bytes = vec![0; format.tensor_bytes(n, k)?];
            // Weights are freed before the run, so that memory holds one tensor in f32 at most.
            {
                let weights = Random::new(bench.seed, &name).gauss_vec(n * k, 0.02);
                quantizer.run(&weights, n, k, &mut bytes)?;
            }
            done.tensors.push(bench.tensor(&name, &QuantizedMatrix::new(format, n, k, &bytes)?, None)?);
        }
    }
    bar.finish_and_clear();
    Ok(done)
}
