//! A monitor against a known sequence of calls, in a process of its own because a program has one observer.

#[path = "../../runtime/tests/toy/mod.rs"]
mod toy;

mod metrics;

use gristmill_ops::{KernelLoad, Monitor, MonitorOptions, Snapshot};
use gristmill_runtime::registry::KernelId;
use gristmill_runtime::{
    Dequantizer, Device, Error, GuardOptions, GuardedLinear, Input, Linear, LinearOptions, Policy,
    QuantizedBuf, QuantizedMatrix, Request, Threads,
};
use metrics::scraped;
use prometheus_parse::{Scrape, Value};

fn load<'s>(snapshot: &'s Snapshot, kernel: &str, tokens: u64) -> Option<&'s KernelLoad> {
    snapshot.kernels.iter().find(|load| {
        load.kernel == kernel && load.tokens.0 <= tokens && load.tokens.1.is_none_or(|to| tokens <= to)
    })
}

#[test]
fn counts_are_those_of_the_calls() -> Result<(), Box<dyn std::error::Error>> {
    let threads = Threads::single();
    let weights = toy::tiny8(4, 8);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TINY8], 4, 8, &weights)?;
    let prepared = toy::REGISTRY.prepare(&Request::dequantize("tiny8", 4, 8))?;
    let dequantizer = Dequantizer::new(&prepared.decide_as_asked())?;
    let mut values = vec![0.0; 32];
    // Before there is a monitor.
    dequantizer.run(&matrix, &mut values)?;

    let compiler = Some("a compiler".to_owned());
    let options = MonitorOptions { sample_every: 3, compiler, ..MonitorOptions::default() };
    let monitor = Monitor::start(&toy::REGISTRY, options)?;
    assert!(matches!(Monitor::start(&toy::REGISTRY, MonitorOptions::default()), Err(Error::SecondObserver)));
    for _ in 0..7 {
        dequantizer.run(&matrix, &mut values)?;
    }
    monitor.pause(true);
    dequantizer.run(&matrix, &mut values)?;
    monitor.pause(false);

    let options = LinearOptions::default();
    let layer = Linear::new(&toy::REGISTRY, &matrix, &options, &threads)?;
    let mut workspace = layer.workspace(32, &threads)?;
    let x = toy::noise(32 * 8, 3);
    let mut y = vec![0.0; 32 * 4];
    for m in [1, 1, 1, 32] {
        layer.forward(Input::F32(&x[..m * 8]), m, None, &mut y[..m * 4], &mut workspace, &threads)?;
    }
    // A number that is not finite ends quantizing the activations in a fault, and no product is launched.
    let mut bad = x[..8].to_vec();
    bad[5] = f32::NAN;
    let refused = layer.forward(Input::F32(&bad), 1, None, &mut y[..4], &mut workspace, &threads);
    assert!(matches!(refused, Err(Error::NonFinite { row: 0, column: 5 })), "{refused:?}");

    // There is no kernel of a GPU here, so the policy runs something else.
    let options = LinearOptions { device: Device::cuda(0), policy: Policy::Cpu, ..LinearOptions::default() };
    let moved = Linear::new(&toy::REGISTRY, &matrix, &options, &threads)?;
    for _ in 0..2 {
        moved.forward(Input::F32(&x[..8]), 1, None, &mut y[..4], &mut workspace, &threads)?;
    }

    // A kernel that the program does not trust any more.
    let guard = GuardOptions::default();
    let quarantine = guard.quarantine.clone();
    let weights = QuantizedBuf::new(&toy::FORMATS[toy::TAIL2], 4, 8, toy::tail2(4, 8))?;
    let guarded = GuardedLinear::new(&toy::REGISTRY, weights, &LinearOptions::default(), guard, &threads)?;
    quarantine.add(KernelId(0x1001), "not trusted");
    guarded.forward(Input::F32(&x[..8]), 1, None, &mut y[..4], &mut workspace, &threads)?;
    guarded.forward(Input::F32(&x[..8]), 1, None, &mut y[..4], &mut workspace, &threads)?;

    let snapshot = monitor.snapshot();
    // Nobody gave the program a name.
    assert!(snapshot.program.as_deref().is_some_and(|program| program.starts_with("monitor-")));
    let [recovery] = snapshot.recoveries.as_slice() else { return Err("one step".into()) };
    assert_eq!((recovery.step.as_str(), recovery.count, recovery.success), ("decided-again", 1, true));
    let [kernel, reason] = [&recovery.kernel, &recovery.reason].map(String::as_str);
    assert_eq!((kernel, reason), ("matmul.tail2.avx2.decode", "not trusted"));
    assert_eq!(recovery.then.as_deref(), Some("matmul.tail2.scalar"));
    let dequantize = load(&snapshot, "dequantize.tiny8.scalar", 1).ok_or("it was launched")?;
    assert_eq!((dequantize.launches, dequantize.bytes_in, dequantize.bytes_out), (7, 7 * 48, 7 * 128));
    assert_eq!(dequantize.faults, Some(0));
    let time = dequantize.time.as_ref().ok_or("two of seven were timed")?;
    assert_eq!((time.samples, time.bytes_in), (2, 2 * 48));
    assert_eq!(time.threads, None, "nobody asked for it");
    assert!(time.min_ns <= time.p50_ns && time.p50_ns <= time.p99_ns && time.p99_ns <= time.max_ns);
    assert!(time.min_ns + time.max_ns == time.sum_ns);

    // Three of the layer and two of the one that was moved; those with 32 tokens are of another class.
    let product = load(&snapshot, "matmul.tiny8.scalar", 1).ok_or("it was launched")?;
    assert_eq!((product.launches, product.bytes_out), (5, 5 * 16));
    let product = load(&snapshot, "matmul.tiny8.scalar", 32).ok_or("it was launched")?;
    assert_eq!((product.launches, product.bytes_out, product.tokens), (1, 32 * 16, (17, Some(64))));
    assert_eq!(product.time, None, "the first of a class is not timed");
    let activations = load(&snapshot, "quantize_activations.step4.scalar", 1).ok_or("it was launched")?;
    assert_eq!((activations.launches, activations.faults), (6, Some(1)));
    assert_eq!(load(&snapshot, "matmul.tail2.avx2.decode", 1), None, "what was not launched is absent");

    let [fallback] = snapshot.fallbacks.as_slice() else { return Err("one fallback".into()) };
    assert_eq!((fallback.runs, fallback.device.as_str(), fallback.format.as_str()), (2, "cuda:0", "tiny8"));
    assert_eq!(fallback.instead, "a kernel on the processor");

    let json: Snapshot = serde_json::from_str(&snapshot.to_json())?;
    assert_eq!(json, snapshot);
    let absent: serde_json::Value = serde_json::from_str(&snapshot.to_json())?;
    let untimed =
        absent["kernels"].as_array().into_iter().flatten().filter(|load| load.get("time").is_none());
    assert_eq!(untimed.count(), snapshot.kernels.iter().filter(|load| load.time.is_none()).count());

    let text = snapshot.to_prometheus();
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned())))?;
    let of = |kernel| [("kernel", kernel), ("tokens_le", "1")];
    let dequantized = of("dequantize.tiny8.scalar");
    assert_eq!(scraped(&scrape, "gristmill_launches_total", &dequantized), Some(7.0));
    assert_eq!(scraped(&scrape, "gristmill_read_bytes_total", &dequantized), Some(336.0));
    let faults = scraped(&scrape, "gristmill_faults_total", &of("quantize_activations.step4.scalar"));
    assert_eq!(faults, Some(1.0));
    assert_eq!(scraped(&scrape, "gristmill_fallbacks_total", &[("policy", "cpu")]), Some(2.0));
    let step = [("step", "decided-again"), ("kernel", "matmul.tail2.avx2.decode"), ("success", "true")];
    assert_eq!(scraped(&scrape, "gristmill_recoveries_total", &step), Some(1.0));
    let histograms: Vec<_> = scrape
        .samples
        .iter()
        .filter_map(|sample| match &sample.value {
            Value::Histogram(buckets) if sample.labels.get("kernel") == Some("dequantize.tiny8.scalar") => {
                Some(buckets)
            }
            _ => None,
        })
        .collect();
    let [buckets] = histograms.as_slice() else { return Err(format!("one histogram: {text}").into()) };
    assert_eq!(buckets.last().map(|bucket| (bucket.less_than, bucket.count)), Some((f64::INFINITY, 2.0)));
    assert!(buckets.windows(2).all(|pair| pair[0].count <= pair[1].count));
    Ok(())
}
