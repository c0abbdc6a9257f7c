//! What a monitor costs a launch: the smallest launch that there is, without one, with one, and with its time taken.

#[path = "../../runtime/tests/toy/mod.rs"]
mod toy;

use gristmill_ops::{Monitor, MonitorOptions};
use gristmill_runtime::stats::measure_time;
use gristmill_runtime::{Dequantizer, QuantizedMatrix, Request};
use std::time::Instant;

/// Launches between two readings of the clock.
const LAUNCHES: u32 = 20_000;
/// Rounds, of which the median is taken; the three ways take turns in each.
const ROUNDS: usize = 101;

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bytes = toy::tiny8(1, 4);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TINY8], 1, 4, &bytes)?;
    let prepared = toy::REGISTRY.prepare(&Request::dequantize("tiny8", 1, 4))?;
    let dequantizer = Dequantizer::new(&prepared.decide_as_asked())?;
    let mut values = [0.0; 4];
    let monitor = Monitor::start(&toy::REGISTRY, MonitorOptions::default())?;
    let mut round = || -> Result<f64, gristmill_runtime::Error> {
        let started = Instant::now();
        for _ in 0..LAUNCHES {
            dequantizer.run(&matrix, std::hint::black_box(&mut values))?;
        }
        Ok(started.elapsed().as_secs_f64() * 1e9 / f64::from(LAUNCHES))
    };
    let (mut off, mut on, mut timed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        monitor.pause(true);
        off.push(round()?);
        monitor.pause(false);
        on.push(round()?);
        measure_time(true);
        timed.push(round()?);
        measure_time(false);
    }
    #[cfg(feature = "tracing")]
    let spans = {
        // Keeps spans and does nothing with them: what a subscriber does besides is its own.
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry());
        let mut spans = Vec::new();
        for _ in 0..ROUNDS {
            spans.push(round()?);
        }
        median(spans)
    };
    let (off, on, timed) = (median(off), median(on), median(timed));
    println!("without a monitor: {off:.1} ns a launch");
    println!("with one:          {:+.1} ns ({:.2} times)", on - off, on / off);
    #[cfg(feature = "tracing")]
    println!("with spans:        {:+.1} ns ({:.2} times)", spans - off, spans / off);
    println!("each launch timed: {:+.1} ns ({:.2} times)", timed - off, timed / off);
    Ok(())
}
