//! A monitor that is told launches of one kernel on several devices, in a process of its own because a program has one observer.

#[path = "../../runtime/tests/toy/mod.rs"]
mod toy;

mod metrics;

use gristmill_ops::{Monitor, MonitorOptions};
use gristmill_runtime::observe::{Launch, Observer as _};
use gristmill_runtime::registry::{
    Code, CudaCode, CudaImage, CudaLaunch, Entry, EntryFacts, Registry, RegistryFacts,
};
use gristmill_runtime::vocab::{CudaAlgorithm, DType, DeviceKind, Op};
use gristmill_runtime::{Device, Shape};
use metrics::scraped;
use prometheus_parse::Scrape;
use std::time::Duration;

/// Nothing that could be loaded.
static IMAGES: [CudaImage; 0] = [];

// SAFETY: it has no image, so nothing is ever launched: the monitor is told launches that there were not.
static ENTRIES: [Entry; 1] = unsafe {
    [Entry::new(EntryFacts {
        device: DeviceKind::Cuda,
        isa: None,
        ..toy::entry(
            0,
            "dequantize.tail2.cuda",
            Op::Dequantize,
            toy::TAIL2,
            Code::Cuda(CudaCode {
                images: &IMAGES,
                min_cc: (7, 5),
                algorithm: CudaAlgorithm::Blocks,
                overlaps: false,
                launch: CudaLaunch::Elements {
                    op: Op::Dequantize,
                    function: "dequantize_tail2",
                    threads: 128,
                    per_thread: 4,
                },
            }),
        )
    })]
};

fn candidates(_: Op, _: usize, _: DType, _: DeviceKind) -> &'static [u16] {
    &[]
}

// SAFETY: as of its entry.
static REGISTRY: Registry = unsafe {
    Registry::new(RegistryFacts { package: "of a GPU", entries: &ENTRIES, candidates, ..toy::TABLES })
};

#[test]
fn devices_are_told_apart() -> Result<(), Box<dyn std::error::Error>> {
    let options = MonitorOptions { sample_every: 3, ..MonitorOptions::default() };
    let monitor = Monitor::start(&REGISTRY, options)?;
    let shape = Shape::new(1, 8, 16);
    let on = |index, time| Launch {
        registry: &REGISTRY,
        index: 0,
        entry: &REGISTRY.entries[0],
        device: Device::cuda(index),
        shape,
        bytes_in: 10,
        bytes_out: 1,
        time,
        threads: None,
        fault: None,
    };
    let wants = |index| monitor.wants_time(&REGISTRY, 0, shape, Device::cuda(index));
    for _ in 0..2 {
        assert!(!wants(0));
        monitor.launched(&on(0, None));
    }
    // The third one there is timed; on the other one nothing was launched yet.
    assert!(wants(0) && !wants(1));
    monitor.launched(&on(0, Some(Duration::from_micros(5))));
    for _ in 0..5 {
        monitor.launched(&on(1, None));
    }
    // A time that comes later.
    monitor.timed(&on(1, Some(Duration::from_micros(50))));
    let snapshot = monitor.snapshot();
    let seen: Vec<_> = snapshot
        .kernels
        .iter()
        .map(|load| {
            let time = load.time.as_ref().map(|time| (time.samples, time.max_ns));
            (load.device.as_str(), load.launches, load.bytes_in, time)
        })
        .collect();
    assert_eq!(seen, [("cuda:0", 3, 30, Some((1, 5_000))), ("cuda:1", 5, 50, Some((1, 50_000)))]);
    // There is none that could be asked for its name.
    let gpus: Vec<_> = snapshot.kernels.iter().filter_map(|load| load.gpu.as_deref()).collect();
    assert_eq!(gpus, ["gpu cuda:0", "gpu cuda:1"]);
    let scrape = Scrape::parse(snapshot.to_prometheus().lines().map(|line| Ok(line.to_owned())))?;
    let launches = |device| scraped(&scrape, "gristmill_launches_total", &[("device", device)]);
    assert_eq!([launches("cuda:0"), launches("cuda:1")], [Some(3.0), Some(5.0)]);
    Ok(())
}
