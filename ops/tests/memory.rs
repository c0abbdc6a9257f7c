//! What a monitor counts of memory: workspaces of a known sequence of calls, and what is told of devices, which are not here; in a process of
//! its own because a program has one observer.

#[path = "../../runtime/tests/toy/mod.rs"]
mod toy;

mod metrics;

use gristmill_ops::{CacheLoad, Live, Monitor, MonitorOptions, PoolLoad, Snapshot};
use gristmill_runtime::observe::{Allocation, Cache, Lookup, Observer, Transfer, TransferKind};
use gristmill_runtime::tuning::{Measured, ShapeClass, cpu};
use gristmill_runtime::vocab::Op;
use gristmill_runtime::{
    CpuProfile, Device, Input, Linear, LinearOptions, QuantizedMatrix, Request, Restrict, Shape, Threads,
    Tuning, Workspace,
};
use metrics::scraped;
use prometheus_parse::{Scrape, Value};
use std::time::Duration;

type Tested = Result<(), Box<dyn std::error::Error>>;

fn cache<'s>(snapshot: &'s Snapshot, cache: &str, device: &str) -> Option<&'s CacheLoad> {
    snapshot.caches.iter().find(|load| load.cache == cache && load.device == device)
}

fn looks(snapshot: &Snapshot, name: &str) -> Option<(u64, u64)> {
    cache(snapshot, name, "cpu").map(|load| (load.hits, load.misses))
}

#[test]
fn memory_is_counted_as_it_was_used() -> Tested {
    let threads = Threads::single();
    let weights = toy::tiny8(4, 8);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TINY8], 4, 8, &weights)?;
    let layer = Linear::new(&toy::REGISTRY, &matrix, &LinearOptions::default(), &threads)?;
    let mut workspace = layer.workspace(1, &threads)?;
    let x = toy::noise(32 * 8, 3);
    let mut y = vec![0.0; 32 * 4];
    let options = MonitorOptions { sample_every: 2, ..MonitorOptions::default() };
    let monitor = Monitor::start(&toy::REGISTRY, options)?;
    let nothing = monitor.snapshot();
    assert!(nothing.transfers.is_empty() && nothing.pools.is_empty() && nothing.caches.is_empty());
    assert!(!nothing.to_json().contains("caches") && !nothing.to_prometheus().contains("cache"));

    // Three runs in memory that was there; one that is refused and then has its memory.
    let mut forward = |workspace: &mut Workspace, m: usize| {
        layer.forward(Input::F32(&x[..m * 8]), m, None, &mut y[..m * 4], workspace, &threads)
    };
    for _ in 0..3 {
        forward(&mut workspace, 1)?;
    }
    assert!(forward(&mut workspace, 32).is_err());
    assert_eq!(looks(&monitor.snapshot(), "workspace"), Some((3, 0)));
    workspace.grow(layer.workspace_size(32, &threads)?)?;
    forward(&mut workspace, 32)?;
    // Large enough by now, and an empty one.
    workspace.grow(layer.workspace_size(2, &threads)?)?;
    let _ = Workspace::new();
    assert_eq!(looks(&monitor.snapshot(), "workspace"), Some((4, 1)));

    // A tuning has times for one op of one format; without a tuning nothing is looked for.
    let shape = Shape { m: 1, n: 4, k: 8 };
    let class = ShapeClass::of(shape);
    let mut entries = toy::REGISTRY.entries.iter();
    let entry = entries.find(|entry| entry.name == "matmul.tiny8.scalar").ok_or("it is there")?;
    let measured = Measured {
        on: cpu().to_owned(),
        op: Op::Matmul,
        format: "tiny8".to_owned(),
        quantizer: None,
        class,
        threads: 1,
        order: vec![(entry.id, 1.0)],
    };
    let tuning = Tuning::of(vec![measured]);
    let prepare = |request: &Request<'_>, tuning: &Tuning| {
        toy::REGISTRY.prepare_tuned(request, CpuProfile::detect(), &Restrict::default(), tuning)
    };
    prepare(&Request::matmul("tiny8", shape), &Tuning::none())?;
    assert_eq!(looks(&monitor.snapshot(), "tuning"), None);
    prepare(&Request::matmul("tiny8", shape), &tuning)?;
    prepare(&Request::dequantize("tiny8", 4, 8), &tuning)?;
    prepare(&Request::dequantize("tiny8", 4, 8), &tuning)?;
    assert_eq!(looks(&monitor.snapshot(), "tuning"), Some((1, 2)));
    told(monitor)
}

/// What runs on GPUs tell, told by hand.
fn told(monitor: &Monitor) -> Tested {
    let before = monitor.snapshot();
    let [gpu, other] = [0, 1].map(Device::cuda);
    let mut timed = 0;
    for (kind, device, source, bytes) in [
        (TransferKind::ToDevice, gpu, None, 100),
        (TransferKind::ToDevice, gpu, None, 200),
        (TransferKind::ToDevice, gpu, None, 300),
        (TransferKind::ToDevice, other, None, 7),
        (TransferKind::BetweenDevices, other, Some(gpu), 50),
        (TransferKind::BetweenDevices, gpu, Some(other), 60),
    ] {
        let transfer = Transfer { kind, device, source, bytes, time: None };
        let wanted = monitor.wants_transfer_time(&transfer);
        monitor.transferred(&transfer);
        if wanted {
            timed += 1;
            monitor.transfer_timed(&Transfer { time: Some(Duration::from_micros(5)), ..transfer });
        }
    }
    assert_eq!(timed, 1, "one of two of a kind and device");
    for (device, bytes, grown) in
        [(gpu, 10, Some(64)), (gpu, 20, Some(0)), (gpu, 30, Some(0)), (other, 5, None)]
    {
        monitor.allocated(&Allocation { device, bytes, grown });
    }
    for hit in [false, true, true] {
        monitor.looked_up(Lookup { cache: Cache::Graph, device: gpu, hit });
    }

    let snapshot = monitor.snapshot();
    let rows: Vec<(String, u64, u64)> =
        snapshot.transfers.iter().map(|load| (load.name(), load.copies, load.bytes)).collect();
    let row = |name: &str, copies, bytes| (name.to_owned(), copies, bytes);
    let expected = [
        row("to-device cuda:0", 3, 600),
        row("to-device cuda:1", 1, 7),
        row("between-devices cuda:1 to cuda:0", 1, 60),
        row("between-devices cuda:0 to cuda:1", 1, 50),
    ];
    assert_eq!(rows, expected);
    let time = snapshot.transfers[0].time.as_ref().ok_or("the second was timed")?;
    assert_eq!((time.samples, time.bytes_in, time.sum_ns), (1, 200, 5000));
    // 600 bytes at 200 in 5 us.
    let seconds = snapshot.transfers[0].estimated_seconds().ok_or("timed")?;
    assert!((seconds - 15e-6).abs() < 1e-12, "{seconds}");
    assert_eq!(snapshot.transfers[1].time, None);
    let pool = |device: &str, allocations, bytes, grew, grown_bytes| PoolLoad {
        device: device.to_owned(),
        allocations,
        bytes,
        grew,
        grown_bytes,
        held_bytes: None,
        reserved_bytes: None,
    };
    assert_eq!(snapshot.pools, [pool("cuda:0", 3, 60, Some(1), Some(64)), pool("cuda:1", 1, 5, None, None)]);
    assert_eq!(cache(&snapshot, "graph", "cuda:0").map(|load| (load.hits, load.misses)), Some((2, 1)));

    let json: Snapshot = serde_json::from_str(&snapshot.to_json())?;
    assert_eq!(json, snapshot);
    let text = snapshot.to_prometheus();
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned())))?;
    let to_device = [("kind", "to-device"), ("device", "cuda:0")];
    assert_eq!(scraped(&scrape, "gristmill_transfers_total", &to_device), Some(3.0));
    assert_eq!(scraped(&scrape, "gristmill_transfer_bytes_total", &to_device), Some(600.0));
    let between = [("kind", "between-devices"), ("device", "cuda:1"), ("source", "cuda:0")];
    assert_eq!(scraped(&scrape, "gristmill_transfer_bytes_total", &between), Some(50.0));
    let times = scrape.samples.iter().filter(|sample| sample.metric == "gristmill_transfer_seconds");
    let times: Vec<&Value> = times.map(|sample| &sample.value).collect();
    let [Value::Histogram(buckets)] = times[..] else { return Err(format!("one histogram: {text}").into()) };
    assert_eq!(buckets.last().map(|bucket| (bucket.less_than, bucket.count)), Some((f64::INFINITY, 1.0)));
    let device = |device| [("device", device)];
    assert_eq!(scraped(&scrape, "gristmill_pool_grown_total", &device("cuda:0")), Some(1.0));
    assert_eq!(
        scraped(&scrape, "gristmill_pool_grown_total", &device("cuda:1")),
        None,
        "not known is not zero"
    );
    assert_eq!(scraped(&scrape, "gristmill_pool_allocations_total", &device("cuda:1")), Some(1.0));
    assert_eq!(scraped(&scrape, "gristmill_pool_held_bytes", &device("cuda:0")), None);
    let workspace = [("cache", "workspace"), ("device", "cpu")];
    assert_eq!(scraped(&scrape, "gristmill_cache_hits_total", &workspace), Some(4.0));
    assert_eq!(scraped(&scrape, "gristmill_cache_misses_total", &workspace), Some(1.0));

    // Between two looks: what was copied and missed meanwhile.
    let live = Live::between(Some(&before), &Snapshot { seconds: before.seconds + 2.0, ..snapshot });
    let shown = live.to_text(9);
    for said in ["to-device cuda:0: 1.5 copies/s, 0.0 MB/s", "graph for cuda:0: 1 miss\n"] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    assert!(!shown.contains("workspace"), "none was missed meanwhile: {shown}");
    Ok(())
}
