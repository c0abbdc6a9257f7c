//! What a monitor costs a launch: the smallest launch that there is, without one, with one, and with its time taken. And what it costs to be told
//! of a copy, an allocation, and a look for something that is kept.

#[path = "../../runtime/tests/toy/mod.rs"]
mod toy;

use gristmill_ops::{Monitor, MonitorOptions};
use gristmill_runtime::observe::{Allocation, Cache, Lookup, Observer, Transfer, TransferKind};
use gristmill_runtime::stats::measure_time;
use gristmill_runtime::{Dequantizer, Device, QuantizedMatrix, Request};
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
    for (what, [first, last]) in ["a copy:", "an allocation:", "a look:"].into_iter().zip(memory(monitor)) {
        println!("{what:<18} {first:+.1} ns of the first device, {last:+.1} of the last of eight");
    }
    Ok(())
}

/// Nanoseconds to tell of a copy, an allocation and a look, of the first and of the last of eight devices.
fn memory(observer: &dyn Observer) -> [[f64; 2]; 3] {
    let copy = |index| {
        let (kind, device) = (TransferKind::ToDevice, Device::cuda(index));
        let transfer = Transfer { kind, device, source: None, bytes: 4096, time: None };
        std::hint::black_box(observer.wants_transfer_time(&transfer));
        observer.transferred(&transfer);
    };
    let allocation = |index| {
        observer.allocated(&Allocation { device: Device::cuda(index), bytes: 4096, grown: Some(0) });
    };
    let look = |index| {
        observer.looked_up(Lookup { cache: Cache::Workspace, device: Device::cuda(index), hit: true });
    };
    let measured = |tell: &dyn Fn(u32)| {
        (0..8).for_each(tell);
        let round = |device| {
            let started = Instant::now();
            (0..LAUNCHES).for_each(|_| tell(std::hint::black_box(device)));
            started.elapsed().as_secs_f64() * 1e9 / f64::from(LAUNCHES)
        };
        [0, 7].map(|device| median((0..ROUNDS).map(|_| round(device)).collect()))
    };
    [measured(&copy), measured(&allocation), measured(&look)]
}
