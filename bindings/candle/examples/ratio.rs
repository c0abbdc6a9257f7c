//! GMAC/s of this layer beside candle's `QMatMul`, in one process, on the same number of threads, for one token and for several:
//! prints each pair and their ratio, for every format of this build that quantizes.
//!
//! Types that candle has are compared on the same bytes. Of the others it has floats alone, so there the same weights are beside
//! its f32.
//!
//!     RAYON_NUM_THREADS=1 cargo run --release --example ratio [N] [K] [FORMAT]

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Result, Tensor};
use gristmill::REGISTRY;
use gristmill_candle::{Linear, Threads, format_of};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Turns of each layer.
const TURNS: usize = 9;

/// Seconds of one call: the median of the turns, each long enough to be measured.
fn seconds(calls: &mut [(&dyn Module, Vec<f64>)], x: &Tensor) -> Result<()> {
    for _ in 0..TURNS {
        // In turn, so that what else the machine does meets both.
        for (layer, times) in calls.iter_mut() {
            let (started, mut count) = (Instant::now(), 0u32);
            while started.elapsed() < Duration::from_millis(20) {
                layer.forward(x)?;
                count += 1;
            }
            times.push(started.elapsed().as_secs_f64() / f64::from(count));
        }
    }
    Ok(())
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// candle's types that are formats of gristmill's.
const TYPES: [GgmlDType; 10] = {
    use GgmlDType::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K]
};

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut size = || arguments.next().map_or(Ok(2560), |size| size.parse::<usize>());
    let (n, k) = (size()?, size()?);
    let only = arguments.next();
    let count = candle_core::utils::get_num_threads();
    let threads = Arc::new(Threads::new(count)?);
    println!("{n}x{k}, {count} threads, GMAC/s");
    println!("{:<12} {:>4} {:>8} {:>10} {:>6}", "format", "m", "candle", "gristmill", "ratio");
    for info in REGISTRY.formats.iter().filter(|info| only.as_ref().is_none_or(|only| only == info.name)) {
        let weights = Tensor::randn(0f32, 1.0, (n, k), &Device::Cpu)?;
        let (ours, theirs, beside) = match TYPES.iter().find(|dtype| format_of(**dtype) == Some(info.name)) {
            Some(dtype) => {
                let weights = QTensor::quantize(&weights, *dtype)?;
                (Linear::from_qtensor(&weights, &threads)?, QMatMul::from_qtensor(weights)?, "")
            }
            None => match Linear::quantize(&weights, info.name, &threads) {
                Ok(ours) => (ours, QMatMul::Tensor(weights), " (f32)"),
                Err(error) => {
                    println!("{:<12} {}", info.name, error.to_string().lines().next().unwrap_or_default());
                    continue;
                }
            },
        };
        for m in [1, 32, 512] {
            let x = Tensor::randn(0f32, 1.0, (m, k), &Device::Cpu)?;
            let mut calls: [(&dyn Module, Vec<f64>); 2] = [(&theirs, Vec::new()), (&ours, Vec::new())];
            seconds(&mut calls, &x)?;
            let work = (m * n * k) as f64 / 1e9;
            let [theirs, ours] = calls.map(|(_, mut times)| work / median(&mut times));
            println!("{:<12} {m:>4} {theirs:>8.1} {ours:>10.1} {:>6.2}{beside}", info.name, ours / theirs);
        }
    }
    Ok(())
}
