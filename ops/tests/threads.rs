//! The use of threads as a monitor sees it, in a process of its own because a program has one observer.

#[path = "../../runtime/tests/toy/mod.rs"]
mod toy;

use gristmill_ops::{Monitor, MonitorOptions, Snapshot, ThreadLoad};
use gristmill_runtime::{Batch, Input, Linear, LinearOptions, Output, QuantizedMatrix, Threads, Workspace};
use prometheus_parse::{Scrape, Value};

#[test]
fn the_use_of_threads_is_measured_where_it_is_asked_for() -> Result<(), Box<dyn std::error::Error>> {
    let options = MonitorOptions { sample_every: 1, threads: true, ..MonitorOptions::default() };
    let monitor = Monitor::start(&toy::REGISTRY, options)?;
    let (n, k, runs) = (512, 64, 20);
    let bytes = toy::tiny8(n, k);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TINY8], n, k, &bytes)?;
    let threads = Threads::new(3)?.with_grain(1);
    let layer = Linear::new(&toy::REGISTRY, &matrix, &LinearOptions::default(), &threads)?;
    let mut workspace = layer.workspace(1, &threads)?;
    let (x, mut y) = (toy::noise(k, 3), vec![0.0; n]);
    threads.awake(|| {
        (0..runs).try_for_each(|_| {
            layer.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads).map(drop)
        })
    })?;

    let snapshot = monitor.snapshot();
    let product =
        snapshot.kernels.iter().find(|load| load.kernel == "matmul.tiny8.scalar").ok_or("it ran")?;
    let time = product.time.as_ref().ok_or("every launch was timed")?;
    let seen = time.threads.as_ref().ok_or("the use of threads was asked for")?;
    assert_eq!((seen.samples, seen.most_threads), (runs, 3));
    assert!(seen.busy_ns > 0 && seen.busy_ns <= seen.available_ns, "{seen:?}");
    assert!(seen.longest_ns <= seen.busy_ns && seen.longest_ns <= time.sum_ns, "{seen:?}");
    // Jobs lie within their launches.
    assert!(seen.available_ns <= 3 * time.sum_ns, "{seen:?} of {}", time.sum_ns);
    assert!(seen.utilisation().is_some_and(|part| (0.0..=1.0).contains(&part)), "{seen:?}");
    assert!(seen.imbalance().is_some_and(|times| (0.99..=3.01).contains(&times)), "{seen:?}");
    assert_eq!(ThreadLoad::default().utilisation(), None);

    assert_eq!(snapshot.batches, None, "none ran");
    batches(&layer, &x, &threads, &mut workspace)?;
    let snapshot = monitor.snapshot();
    let load = snapshot.batches.clone().ok_or("batches ran")?;
    assert_eq!((load.batches, load.products, load.samples), (20, 60, 20));
    let (sum, seen) = (load.sum_ns.ok_or("timed")?, load.threads.ok_or("asked for")?);
    assert_eq!((seen.samples, seen.most_threads), (20, 3));
    assert!(
        seen.busy_ns > 0 && seen.busy_ns <= seen.available_ns && seen.available_ns <= 3 * sum,
        "{seen:?}"
    );
    assert!(seen.imbalance().is_some_and(|times| (0.99..=3.01).contains(&times)), "{seen:?}");
    // An empty one is none.
    Batch::new().run(&threads);
    assert_eq!(monitor.snapshot().batches.map(|load| load.batches), Some(20));

    let json: Snapshot = serde_json::from_str(&snapshot.to_json())?;
    assert_eq!(json, snapshot);
    let text = snapshot.to_prometheus();
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned())))?;
    let batch = |metric: &str| {
        let metric = format!("gristmill_batch{metric}_total");
        let found = scrape.samples.iter().find(|sample| sample.metric == metric)?;
        match found.value {
            Value::Counter(found) => Some(found),
            _ => None,
        }
    };
    assert_eq!((batch("es"), batch("_products"), batch("_samples")), (Some(20.0), Some(60.0), Some(20.0)));
    let busy = batch("_threads_busy_seconds").ok_or("the use of threads")?;
    assert!((busy - seen.busy_ns as f64 / 1e9).abs() < 1e-12, "{busy}");
    let seen = time.threads.as_ref().ok_or("the use of threads was asked for")?;
    for (metric, right) in [
        ("available", seen.available_ns),
        ("busy", seen.busy_ns),
        ("longest", seen.longest_ns),
        ("mean", seen.mean_ns),
    ] {
        let metric = format!("gristmill_threads_{metric}_seconds_total");
        let sample = scrape
            .samples
            .iter()
            .find(|sample| {
                sample.metric == metric && sample.labels.get("kernel") == Some("matmul.tiny8.scalar")
            })
            .ok_or(metric)?;
        let Value::Counter(found) = sample.value else { return Err("a counter".into()) };
        assert!((found - right as f64 / 1e9).abs() < 1e-12, "{}: {found}", sample.metric);
    }
    Ok(())
}

/// Twenty batches of three products.
fn batches(
    layer: &Linear,
    x: &[f32],
    threads: &Threads,
    workspace: &mut Workspace,
) -> Result<(), gristmill_runtime::Error> {
    let x = layer.quantize(Input::F32(x), 1, workspace, threads)?;
    for _ in 0..20 {
        let mut outputs = [(); 3].map(|()| vec![0.0; layer.n()]);
        let mut batch = Batch::new();
        for y in &mut outputs {
            batch.push(layer.product_of(&x), Output::F32(y))?;
        }
        batch.run(threads);
    }
    Ok(())
}
