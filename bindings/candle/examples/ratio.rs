//! GMAC/s of this layer beside candle's `QMatMul`, in one process, on the same number of threads and the same bytes, for one
//! token and for several: prints each pair and their ratio.
//!
//!     RAYON_NUM_THREADS=1 cargo run --release --example ratio [N] [K]

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Result, Tensor};
use gristmill_candle::{Linear, Threads};
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

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut sizes = std::env::args().skip(1).map(|size| size.parse::<usize>());
    let n = sizes.next().transpose()?.unwrap_or(2560);
    let k = sizes.next().transpose()?.unwrap_or(2560);
    let count = candle_core::utils::get_num_threads();
    let threads = Arc::new(Threads::new(count)?);
    println!("{n}x{k}, {count} threads, GMAC/s");
    println!("{:<6} {:>4} {:>8} {:>10} {:>6}", "type", "m", "candle", "gristmill", "ratio");
    use GgmlDType::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    for dtype in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K] {
        let weights = Tensor::randn(0f32, 1.0, (n, k), &Device::Cpu)?;
        let weights = QTensor::quantize(&weights, dtype)?;
        let ours = Linear::from_qtensor(&weights, &threads)?;
        let theirs = QMatMul::from_qtensor(weights)?;
        for m in [1, 32, 512] {
            let x = Tensor::randn(0f32, 1.0, (m, k), &Device::Cpu)?;
            let mut calls: [(&dyn Module, Vec<f64>); 2] = [(&theirs, Vec::new()), (&ours, Vec::new())];
            seconds(&mut calls, &x)?;
            let work = (m * n * k) as f64 / 1e9;
            let [theirs, ours] = calls.map(|(_, mut times)| work / median(&mut times));
            println!("{dtype:<6?} {m:>4} {theirs:>8.1} {ours:>10.1} {:>6.2}", ours / theirs);
        }
    }
    Ok(())
}
