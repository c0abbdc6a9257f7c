//! What kernels that take turns cost a layer: calls with and without, in turns, when the trial is over, and the calls of the trial
//! itself. One thread, one token; the smallest layer that there is, and one of a model.

use gristmill::{
    Adaptive, Error, Input, Linear, LinearOptions, QuantizedMatrix, Quantizer, REGISTRY, Request, Threads,
};
use std::hint::black_box;
use std::time::Instant;
use values::values;

#[path = "operands/values.rs"]
mod values;

/// Rounds, of which medians are taken; both layers take turns in each.
const ROUNDS: usize = 201;

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn main() -> Result<(), Error> {
    let threads = Threads::single();
    for (n, k, calls) in [(16, 256, 2000), (2560, 2560, 20)] {
        let prepared = REGISTRY.prepare(&Request::quantize("i2_s", None, n, k))?;
        let quantizer = Quantizer::new(&prepared.decide_as_asked())?;
        let mut bytes = vec![0; quantizer.format().tensor_bytes(n, k)?];
        quantizer.run(&values(n * k), n, k, &mut bytes)?;
        let matrix = QuantizedMatrix::new(quantizer.format(), n, k, &bytes)?;
        let adaptive = LinearOptions { adaptive: Some(Adaptive::default()), ..LinearOptions::default() };
        let layers = [
            Linear::new(&REGISTRY, &matrix, &LinearOptions::default(), &threads)?,
            Linear::new(&REGISTRY, &matrix, &adaptive, &threads)?,
        ];
        let (x, mut y) = (values(k), vec![0.0; n]);
        let mut workspace = layers[1].workspace(1, &threads)?;
        let mut call = |layer: &Linear| {
            layer.forward(Input::F32(black_box(&x)), 1, None, black_box(&mut y), &mut workspace, &threads)
        };
        // What the other one has is warm too.
        (0..100).try_for_each(|_| call(&layers[0]))?;
        let started = Instant::now();
        let turns = layers[1].adapted(1).map_or(0, |adapted| adapted.of);
        (0..turns).try_for_each(|_| call(&layers[1]))?;
        let trial = started.elapsed().as_secs_f64();
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (layer, times) in layers.iter().zip(&mut times) {
                let started = Instant::now();
                (0..calls).try_for_each(|_| call(layer))?;
                times.push(started.elapsed().as_secs_f64() * 1e9 / f64::from(calls));
            }
        }
        // Round by round, so that another clock or other work is in both.
        let ratio = median(times[0].iter().zip(&times[1]).map(|(off, on)| on / off).collect());
        let [off, on] = times.map(median);
        println!(
            "i2_s {n}x{k}: {off:.1} ns a call, {on:.1} ns with kernels that took turns ({:+.2} %)",
            100.0 * (ratio - 1.0)
        );
        println!(
            "  the trial: {turns} calls in {:.1} us, {:.1} us more than without",
            1e6 * trial,
            1e6 * trial - turns as f64 * off / 1e3
        );
        match layers[1].adapted(1) {
            Some(adapted) => println!("  {adapted}"),
            None => println!("  this processor has one kernel for the packing"),
        }
    }
    Ok(())
}
