//! Times of products on a GPU: launched as a graph, by the device's clock, so that what is measured is the device's work and
//! not the processor's.

use super::clock::median;
use super::error::CliError;
use super::verify::random_tensor;
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::oracle::{Oracle, Random};
use gristmill::registry::FormatInfo;
use gristmill::{Error, Matmul, PackedMatrix, REGISTRY, Workspace};
use std::sync::Arc;

/// Copies of weights, at most.
const MOST_COPIES: usize = 64;
/// Products in a graph, so that its launch is not what is measured.
pub const BATCH: usize = 20;
/// Products between two readings of the device's clock, at least: it counts in half microseconds.
const BETWEEN: usize = 200;

/// Rounds of quick runs at most, whose figures are not for records.
const QUICK: usize = 5;

/// How often a graph of `batch` products is launched between two readings of the clock, of which there are `rounds`.
pub fn launches(batch: usize, rounds: usize) -> usize {
    if rounds <= QUICK { 1 } else { BETWEEN.div_ceil(batch.max(1)) }
}

/// Times of work on a GPU.
#[derive(Clone, Debug)]
pub struct Times {
    /// The median.
    pub seconds: f64,
    /// Of each round, in their order.
    pub rounds: Vec<f64>,
}

/// Seconds of a product of `m` rows `x` with `weights` in turn, what is done to the activations included.
pub fn seconds(
    gpu: &Arc<Gpu>,
    matmul: &Matmul,
    weights: &[PackedMatrix],
    x: DeviceInput<'_>,
    y: &mut DeviceBuffer<f32>,
    m: usize,
    rounds: usize,
) -> Result<Times, CliError> {
    let mut workspace = Workspace::new();
    let mut product = |weights: &PackedMatrix| matmul.run_on_device(weights, x, m, None, y, &mut workspace);
    let count = weights.len();
    let times = in_graph(gpu, count, rounds, |turn| weights.get(turn).map_or(Ok(()), &mut product))?;
    workspace.finish()?;
    Ok(times)
}

/// Seconds of `work` in a graph. Its argument counts from 0 to `turns` again and again.
pub fn in_graph(
    gpu: &Arc<Gpu>,
    turns: usize,
    rounds: usize,
    mut work: impl FnMut(usize) -> Result<(), Error>,
) -> Result<Times, CliError> {
    // Loads the kernels and makes what memory they need, which a graph can't.
    work(0)?;
    let batch = BATCH.next_multiple_of(turns.max(1));
    let graph = gpu.capture(|| (0..batch).try_for_each(|at| work(at % turns.max(1))))?;
    let (mut times, launches) = (Vec::new(), launches(batch, rounds));
    for _ in 0..rounds {
        // Right in front, so that clocks and caches are as in the middle of work.
        graph.launch()?;
        let ((), time) = gpu.time(|| (0..launches).try_for_each(|_| graph.launch()))?;
        times.push(time.as_secs_f64() / (launches * batch) as f64);
    }
    let rounds = times.clone();
    Ok(Times { seconds: median(&mut times), rounds })
}

/// So many copies that they don't fit the second-level cache together, three times over.
pub fn copies(gpu: &Gpu, bytes: usize) -> usize {
    let cache = usize::try_from(gpu.profile().l2).unwrap_or(usize::MAX);
    cache.saturating_mul(3).div_ceil(bytes.max(1)).clamp(2, MOST_COPIES)
}

/// The bytes of `n` rows of `k` random weights. What a row holds does not change its time, so a few rows come in turn.
pub fn tensor(
    format: &'static FormatInfo,
    random: &mut Random,
    n: usize,
    k: usize,
) -> Result<Vec<u8>, CliError> {
    let oracle = Oracle::new(&REGISTRY)?;
    let distinct = n.min(64);
    let few = random_tensor(&oracle.format(format.name)?, random, distinct, k);
    let row_bytes = format.row_bytes(k)?;
    let (rows, tail) = few.split_at(distinct * row_bytes);
    let mut tensor = rows.repeat(n.div_ceil(distinct.max(1)));
    tensor.truncate(n * row_bytes);
    tensor.extend_from_slice(tail);
    Ok(tensor)
}
