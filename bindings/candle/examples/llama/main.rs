//! candle's quantized llama with gristmill's layers in place of its `QMatMul`: both read the same file, which holds random weights
//! unless one is named, and have to write the same tokens. Prints how fast each reads the prompt and writes.
//!
//!     cargo run --release --example llama [MODEL.gguf] [TOKENS] [TOKENS OF THE PROMPT]

mod model;
mod random;

use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::{self, QTensor};
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use gristmill_candle::{Fallback, QMatMul, Threads};
use model::{Layer, Llama};
use std::io::{Cursor, Read, Seek};
use std::sync::Arc;
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PROMPT: [u32; 7] = [1, 17, 42, 99, 3, 250, 8];

/// The token with the greatest logit, and how far the next one is below it.
fn greatest(logits: &[f32]) -> (u32, f32) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    (order[0] as u32, logits[order[0]] - logits[order[1]])
}

/// Greedy tokens behind the prompt, the logits that each was chosen from, and in words how many were read and written in a second.
struct Written {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
    speed: String,
}

fn write(
    [prompt, count]: [usize; 2],
    mut next: impl FnMut(&[u32]) -> candle_core::Result<Vec<f32>>,
) -> Result<Written> {
    let (mut tokens, mut logits, mut ends) = (Vec::new(), Vec::new(), vec![Instant::now()]);
    let mut read: Vec<u32> = PROMPT.iter().copied().cycle().take(prompt).collect();
    for _ in 0..count {
        let found = next(&read)?;
        let (token, _) = greatest(&found);
        read = vec![token];
        tokens.push(token);
        logits.push(found);
        ends.push(Instant::now());
    }
    let rate = |count: usize, times: &[Instant]| match times {
        [first, .., last] => format!("{:.1} tokens/s", count as f64 / (*last - *first).as_secs_f64()),
        _ => "nothing".to_owned(),
    };
    let speed = format!(
        "prompt {}, then {}",
        rate(prompt, ends.get(..2).unwrap_or_default()),
        rate(count.saturating_sub(1), ends.get(1..).unwrap_or_default())
    );
    Ok(Written { tokens, logits, speed })
}

fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn compare<R: Read + Seek>(file: &mut R, sizes: [usize; 2]) -> Result<()> {
    // candle's own model, as its users have it.
    let content = Content::read(file)?;
    let mut candle = ModelWeights::from_gguf(content, file, &Device::Cpu)?;
    let mut read = 0;
    let Written { tokens, logits, speed } = write(sizes, |next| {
        let logits = candle.forward(&Tensor::new(next, &Device::Cpu)?.unsqueeze(0)?, read)?;
        read += next.len();
        logits.flatten_all()?.to_vec1()
    })?;
    println!("candle:                     {tokens:?}, {speed}");

    // The model of this example with candle's layers: it computes the same.
    let mut theirs = |weights: Arc<QTensor>| Ok(Box::new(quantized::QMatMul::from_arc(weights)?) as Layer);
    file.rewind()?;
    let mut model = Llama::read(file, &mut theirs)?;
    let same = write(sizes, |next| model.next(next))?;
    println!("the same, candle's layers:  {:?}, {}", same.tokens, same.speed);

    // And with ours.
    let threads = Arc::new(Threads::new(candle_core::utils::get_num_threads())?);
    let mut layers = Vec::new();
    let mut ours = |weights| {
        let layer = QMatMul::from_arc(weights, Fallback::Refuse, &threads)?;
        layers.push(layer.clone());
        Ok(Box::new(layer) as Layer)
    };
    file.rewind()?;
    let mut model = Llama::read(file, &mut ours)?;
    let swapped = write(sizes, |next| model.next(next))?;
    println!("the same, gristmill's:      {:?}, {}", swapped.tokens, swapped.speed);

    let mut kernels: Vec<&str> = Vec::new();
    for layer in &layers {
        let QMatMul::Gristmill(layer) = layer else {
            return Err("a layer of candle's under Fallback::Refuse".into());
        };
        let receipt = layer.receipt();
        if receipt.kernels().is_empty() {
            return Err("a layer did not run".into());
        }
        kernels.extend(receipt.kernels().iter().map(|kernel| kernel.name()));
    }
    kernels.sort_unstable();
    kernels.dedup();
    println!("kernels: {}", kernels.join(", "));
    let margin = logits.iter().map(|logits| greatest(logits).1).fold(f32::INFINITY, f32::min);
    println!(
        "logits differ by at most {:.1e} (candle's layers) and {:.1e} (gristmill's); the greatest are at least {margin:.1e} above the next",
        difference(&logits, &same.logits),
        difference(&logits, &swapped.logits)
    );
    if tokens != same.tokens || tokens != swapped.tokens {
        return Err("the tokens differ".into());
    }
    println!("{} tokens, all the same", tokens.len());
    Ok(())
}

/// With the file that this example makes.
pub fn random_weights(sizes: [usize; 2]) -> Result<()> {
    compare(&mut Cursor::new(random::file()?), sizes)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next();
    let count = arguments.next().map_or(Ok(24), |count| count.parse())?;
    let prompt = arguments.next().map_or(Ok(PROMPT.len()), |prompt| prompt.parse())?;
    match file {
        Some(path) => compare(&mut std::io::BufReader::new(std::fs::File::open(path)?), [prompt, count]),
        None => random_weights([prompt, count]),
    }
}
