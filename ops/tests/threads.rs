//! The use of threads as a monitor sees it, in a process of its own because a program has one observer.

#[path = "../../runtime/tests/toy/mod.rs"]
mod toy;

use gristmill_ops::{Monitor, MonitorOptions, Snapshot, ThreadLoad};
use gristmill_runtime::{Input, Linear, LinearOptions, QuantizedMatrix, Threads};
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

    let json: Snapshot = serde_json::from_str(&snapshot.to_json())?;
    assert_eq!(json, snapshot);
    let text = snapshot.to_prometheus();
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned())))?;
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
