//! What each thing that an engine can ask for costs a call of a layer: a receipt, kernels that took turns, a guard, a guard that compares
//! one run of a thousand, and with the feature `ops` a monitor that measures threads too. Calls with and without take turns; one
//! thread, one token; the smallest layer that there is, and one of a model. First, the calls of a trial of kernels.

use gristmill::{
    Adaptive, Error, GuardOptions, GuardedLinear, Input, Linear, LinearOptions, QuantizedBuf,
    QuantizedMatrix, Quantizer, REGISTRY, Recording, Request, Threads, Workspace,
};
use std::error::Error as StdError;
use std::hint::black_box;
use std::num::NonZeroU64;
use std::time::Instant;
use values::values;

#[path = "operands/values.rs"]
mod values;

/// Rounds, of which medians are taken; all take turns in each.
const ROUNDS: usize = 201;

/// Rows, elements, and calls between two readings of the clock.
const LAYERS: [(usize, usize, u32); 2] = [(16, 256, 2000), (2560, 2560, 50)];

/// A call of a layer.
type Call<'a> = dyn Fn(&mut Operands) -> Result<(), Error> + 'a;

/// What a call is measured with: what stands in front of the calls and behind them, and a call.
struct Way<'a> {
    name: &'static str,
    ask: Box<dyn Fn(bool) + 'a>,
    call: Box<Call<'a>>,
}

impl<'a> Way<'a> {
    fn new(name: &'static str, call: impl Fn(&mut Operands) -> Result<(), Error> + 'a) -> Way<'a> {
        Way { name, ask: Box::new(|_| ()), call: Box::new(call) }
    }
}

/// One token, and what a call needs besides.
struct Operands {
    x: Vec<f32>,
    y: Vec<f32>,
    workspace: Workspace,
    threads: Threads,
}

impl Operands {
    fn through(&mut self, layer: &Linear) -> Result<(), Error> {
        let input = Input::F32(black_box(&self.x));
        layer.forward(input, 1, None, black_box(&mut self.y), &mut self.workspace, &self.threads)
    }

    fn guarded(&mut self, layer: &GuardedLinear<'_>) -> Result<(), Error> {
        let input = Input::F32(black_box(&self.x));
        layer.forward(input, 1, None, black_box(&mut self.y), &mut self.workspace, &self.threads)
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Nanoseconds of a call.
fn timed(way: &Way<'_>, calls: u32, operands: &mut Operands) -> Result<f64, Error> {
    (way.ask)(true);
    // Weights of its own come into the caches.
    (0..4).try_for_each(|_| (way.call)(operands))?;
    let started = Instant::now();
    let outcome = (0..calls).try_for_each(|_| (way.call)(operands));
    let seconds = started.elapsed().as_secs_f64();
    (way.ask)(false);
    outcome.map(|()| 1e9 * seconds / f64::from(calls))
}

/// Prints what the calls of a trial cost, beside calls that take `plain` nanoseconds.
fn trial(layer: &Linear, plain: f64, operands: &mut Operands) -> Result<(), Error> {
    let turns = layer.adapted(1).map_or(0, |adapted| adapted.of);
    let started = Instant::now();
    (0..turns).try_for_each(|_| operands.through(layer))?;
    let trial = 1e6 * started.elapsed().as_secs_f64();
    let more = trial - turns as f64 * plain / 1e3;
    println!("  trial of kernels: {turns} calls in {trial:.1} us, {more:.1} us more than without");
    match layer.adapted(1) {
        Some(adapted) => println!("    {adapted}"),
        None => println!("    this processor has one kernel for the packing"),
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn StdError>> {
    let threads = Threads::single();
    #[cfg(feature = "ops")]
    let monitor = gristmill_ops::Monitor::start(
        &REGISTRY,
        gristmill_ops::MonitorOptions { threads: true, ..gristmill_ops::MonitorOptions::default() },
    )?;
    #[cfg(feature = "ops")]
    monitor.pause(true);
    for (n, k, calls) in LAYERS {
        let prepared = REGISTRY.prepare(&Request::quantize("i2_s", None, n, k))?;
        let quantizer = Quantizer::new(&prepared.decide_as_asked())?;
        let mut bytes = vec![0; quantizer.format().tensor_bytes(n, k)?];
        quantizer.run(&values(n * k), n, k, &mut bytes)?;
        let matrix = QuantizedMatrix::new(quantizer.format(), n, k, &bytes)?;
        let options = LinearOptions::default();
        let layer = |options: &LinearOptions| Linear::new(&REGISTRY, &matrix, options, &threads);
        let guarded = |check_every: Option<NonZeroU64>| {
            let guard = GuardOptions { check_every, ..GuardOptions::default() };
            let weights = QuantizedBuf::new(quantizer.format(), n, k, bytes.as_slice())?;
            GuardedLinear::new(&REGISTRY, weights, &options, guard, &threads)
        };

        let plain = layer(&options)?;
        let mut recorded = layer(&options)?;
        let recording = Recording::new(&REGISTRY);
        recorded.record(Some(&recording))?;
        let adaptive = LinearOptions { adaptive: Some(Adaptive::default()), ..options.clone() };
        let adapted = layer(&adaptive)?;
        let [kept, compared] = [guarded(None)?, guarded(NonZeroU64::new(1000))?];

        let mut operands = Operands {
            x: values(k),
            y: vec![0.0; n],
            workspace: adapted.workspace(1, &threads)?,
            threads: Threads::single(),
        };
        (0..100).try_for_each(|_| operands.through(&plain))?;
        let alone = Way::new("nothing", |operands| operands.through(&plain));
        let before = timed(&alone, calls, &mut operands)?;
        println!("i2_s {n}x{k}, {before:.1} ns a call");
        trial(&adapted, before, &mut operands)?;

        #[cfg_attr(not(feature = "ops"), expect(unused_mut, reason = "the monitor is one of them"))]
        let mut ways = vec![
            Way::new("receipt", |operands| operands.through(&recorded)),
            Way::new("kernels took turns", |operands| operands.through(&adapted)),
            Way::new("guard", |operands| operands.guarded(&kept)),
            Way::new("guard, one of 1000 compared", |operands| operands.guarded(&compared)),
        ];
        #[cfg(feature = "ops")]
        ways.push(Way {
            ask: Box::new(|on| monitor.pause(!on)),
            ..Way::new("monitor, of threads too", |operands| operands.through(&plain))
        });
        measure(&alone, &ways, calls, &mut operands)?;
    }
    Ok(())
}

/// Prints what each way costs beside the plain one.
fn measure(plain: &Way<'_>, ways: &[Way<'_>], calls: u32, operands: &mut Operands) -> Result<(), Error> {
    let mut off = Vec::new();
    let mut on = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        off.push(timed(plain, calls, operands)?);
        for (way, on) in ways.iter().zip(&mut on) {
            on.push(timed(way, calls, operands)?);
        }
    }
    for (way, on) in ways.iter().zip(on) {
        // Round by round, so that another clock or other work is in both.
        let differences = on.iter().zip(&off).map(|(on, off)| on - off).collect();
        let ratios = on.iter().zip(&off).map(|(on, off)| on / off).collect();
        println!(
            "  {:<28} {:+8.1} ns ({:+.2} %)",
            way.name,
            median(differences),
            100.0 * (median(ratios) - 1.0)
        );
    }
    Ok(())
}
