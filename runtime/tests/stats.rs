//! Counters of launches, in a process of their own because they are global.

#[path = "toy/mod.rs"]
mod toy;

use gristmill_runtime::stats::{KernelStats, measure_time};
use gristmill_runtime::{Dequantizer, Error, QuantizedMatrix, Request};

fn stats(name: &str) -> KernelStats {
    toy::REGISTRY.stats().into_iter().find(|stats| stats.name == name).expect("a kernel of the registry")
}

#[test]
fn counts_bytes_and_times() -> Result<(), Error> {
    let bytes = toy::tiny8(4, 8);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TINY8], 4, 8, &bytes)?;
    let prepared = toy::REGISTRY.prepare(&Request::dequantize("tiny8", 4, 8))?;
    let dequantizer = Dequantizer::new(&prepared.decide_as_asked())?;
    let name = dequantizer.entry().name;
    let mut y = vec![0.0; 32];
    dequantizer.run(&matrix, &mut y)?;
    dequantizer.run(&matrix, &mut y)?;
    let untimed = stats(name);
    assert_eq!((untimed.launches, untimed.bytes_in, untimed.bytes_out), (2, 2 * 48, 2 * 128));
    assert_eq!((untimed.time, untimed.mean_time(), untimed.timed_launches), (None, None, 0));
    measure_time(true);
    dequantizer.run(&matrix, &mut y)?;
    measure_time(false);
    let timed = stats(name);
    assert_eq!((timed.launches, timed.timed_launches), (3, 1));
    assert!(timed.time.is_some() && timed.mean_time() == timed.time);
    assert_eq!(stats("matmul.tiny8.scalar").launches, 0);
    Ok(())
}
