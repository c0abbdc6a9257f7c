//! What kernels do between two looks, of planted snapshots; and a file that is kept up to date.

#[path = "../../runtime/tests/toy/mod.rs"]
mod toy;

use gristmill_ops::{
    KernelLoad, Live, Monitor, MonitorOptions, Sampled, Snapshot, SnapshotFile, ThreadLoad, TransferLoad,
    read,
};
use gristmill_runtime::{Dequantizer, QuantizedMatrix, Request};
use std::time::{Duration, Instant};

fn load(kernel: &str, launches: u64, samples: u64, mean_ns: u64, busy: u64) -> KernelLoad {
    KernelLoad {
        kernel: kernel.to_owned(),
        id: format!("id of {kernel}"),
        device: "cpu".to_owned(),
        gpu: None,
        tokens: (1, Some(1)),
        weights: (0, Some(1 << 20)),
        launches,
        bytes_in: 0,
        bytes_out: 0,
        faults: Some(launches / 1000),
        time: (samples > 0).then(|| Sampled {
            samples,
            sum_ns: samples * mean_ns,
            bytes_in: samples * 80_000,
            min_ns: 1,
            p50_ns: mean_ns,
            p90_ns: mean_ns,
            p99_ns: 2 * mean_ns,
            max_ns: 2 * mean_ns,
            threads: Some(ThreadLoad {
                samples,
                most_threads: 2,
                available_ns: 2 * samples * mean_ns,
                busy_ns: busy,
                longest_ns: busy,
                mean_ns: busy / 2,
            }),
            buckets: Vec::new(),
        }),
    }
}

fn snapshot(at: u64, seconds: f64, kernels: Vec<KernelLoad>) -> Snapshot {
    Snapshot {
        schema: Snapshot::SCHEMA.to_owned(),
        at,
        seconds,
        machine: "a machine".to_owned(),
        gpus: Vec::new(),
        compiler: None,
        package: "toy".to_owned(),
        program: None,
        sampled_every: 61,
        lost_samples: 0,
        host: None,
        kernels,
        batches: None,
        transfers: Vec::new(),
        pools: Vec::new(),
        caches: Vec::new(),
        fallbacks: Vec::new(),
        recoveries: Vec::new(),
    }
}

#[test]
fn two_gpus_of_one_host_have_rows_of_their_own() {
    let on = |index: u32, launches| KernelLoad {
        device: format!("cuda:{index}"),
        gpu: Some("gpu A".to_owned()),
        ..load("matmul.a.cuda", launches, 0, 1, 0)
    };
    let before = snapshot(10, 10.0, vec![on(0, 100), on(1, 900)]);
    let now = snapshot(20, 20.0, vec![on(0, 150), on(1, 1000)]);
    let live = Live::between(Some(&before), &now);
    assert!(!live.since_begin);
    let mut rows: Vec<(String, f64)> =
        live.rows.iter().map(|row| (row.work.clone(), row.per_second)).collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(rows.iter().map(|row| row.1).collect::<Vec<_>>(), [5.0, 10.0]);
    assert!(rows[1].0.ends_with(" on cuda:1"), "{rows:?}");
    assert!(live.to_text(10).contains(" on cuda:0"), "{}", live.to_text(10));
}

#[test]
fn rates_are_those_between_the_looks() {
    let before =
        snapshot(100, 10.0, vec![load("quick", 1000, 10, 10_000, 150_000), load("idle", 5, 0, 0, 0)]);
    // In two seconds 4000 launches of "quick", of which 40 were timed: 30 us each.
    let now = snapshot(
        102,
        12.0,
        vec![load("idle", 5, 0, 0, 0), load("new", 2, 0, 0, 0), {
            let mut quick = load("quick", 5000, 50, 26_000, 150_000 + 1_200_000);
            quick.time.as_mut().expect("timed").sum_ns = 10 * 10_000 + 40 * 30_000;
            quick.time.as_mut().expect("timed").threads.as_mut().expect("used").available_ns =
                2 * 10 * 10_000 + 2 * 40 * 30_000;
            quick
        }],
    );
    let live = Live::between(Some(&before), &now);
    assert_eq!((live.seconds, live.since_begin), (2.0, false));
    let names: Vec<&str> = live.rows.iter().map(|row| row.kernel.as_str()).collect();
    assert_eq!(names, ["quick", "new"], "what was not launched is not shown");
    let quick = &live.rows[0];
    assert_eq!((quick.per_second, quick.mean_us, quick.faults), (2000.0, Some(30.0), 4));
    let near = |found: Option<f64>, right: f64| found.is_some_and(|found| (found - right).abs() < 1e-9);
    assert!(near(quick.busy_percent, 6.0) && near(quick.threads_percent, 50.0), "{quick:?}");
    assert!(near(quick.gb_s, 80_000.0 / 30_000.0), "{quick:?}");
    // What was not timed has no times.
    assert_eq!((live.rows[1].per_second, live.rows[1].mean_us, live.rows[1].gb_s), (1.0, None, None));
    let text = live.to_text(1);
    for said in ["2.0 s, a machine", "2000.0", "30.0", "and 1 more", "quick refused its input 4 times"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    // A program that was started again, and the first look.
    let again = snapshot(110, 3.0, vec![load("quick", 30, 0, 0, 0)]);
    let live = Live::between(Some(&now), &again);
    assert_eq!((live.seconds, live.since_begin, live.rows[0].per_second), (3.0, true, 10.0));
    assert_eq!(Live::between(None, &again), live);
    let other = Snapshot { program: Some("another".to_owned()), ..again.clone() };
    assert!(
        !Live::between(Some(&again), &again).since_begin && Live::between(Some(&again), &other).since_begin
    );
    assert!(Live::between(Some(&again), &again).to_text(9).contains("no launches"));
}

/// Which of two equal rows counts on is not known, so files with such are refused; counts that fall are none below zero.
#[test]
fn rows_that_stand_twice_are_refused() -> Result<(), Box<dyn std::error::Error>> {
    let twice = |seconds: f64, launches: [u64; 2]| {
        snapshot(1, seconds, launches.map(|launches| load("twice", launches, 0, 0, 0)).to_vec())
    };
    for [before, now] in [[[5, 3], [6, 4]], [[3, 3], [2, 6]], [[3, 3], [6, 2]]] {
        Live::between(Some(&twice(1.0, before)), &twice(2.0, now));
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("seen.json");
    let copy = TransferLoad {
        kind: "to-device".to_owned(),
        device: "cuda:0".to_owned(),
        source: None,
        copies: 1,
        bytes: 1,
        time: None,
    };
    let other = TransferLoad { source: Some("cuda:1".to_owned()), ..copy.clone() };
    let once = Snapshot { transfers: vec![copy.clone(), other], ..twice(1.0, [1, 2]) };
    let cases = [
        (twice(1.0, [1, 2]), Some("a row of `kernels` stands there twice")),
        (
            Snapshot { kernels: Vec::new(), transfers: vec![copy.clone(), copy], ..once.clone() },
            Some("a row of `transfers` stands there twice"),
        ),
        (Snapshot { kernels: vec![load("once", 1, 0, 0, 0)], ..once }, None),
    ];
    for (seen, why) in cases {
        std::fs::write(&path, seen.to_json())?;
        let error = read::snapshot(&path).err().map(|error| error.to_string());
        assert_eq!(error.is_some(), why.is_some(), "{error:?}");
        assert!(why.is_none_or(|why| error.as_ref().is_some_and(|error| error.contains(why))), "{error:?}");
    }
    Ok(())
}

#[test]
fn a_file_is_kept_up_to_date() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("seen.json");
    let monitor = Monitor::start(&toy::REGISTRY, MonitorOptions::default())?;
    let file = SnapshotFile::start(monitor, &path, Duration::from_millis(5))?;
    assert!(read::snapshot(&path)?.kernels.is_empty());
    let weights = toy::tiny8(4, 8);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TINY8], 4, 8, &weights)?;
    let prepared = toy::REGISTRY.prepare(&Request::dequantize("tiny8", 4, 8))?;
    let dequantizer = Dequantizer::new(&prepared.decide_as_asked())?;
    let mut values = vec![0.0; 32];
    dequantizer.run(&matrix, &mut values)?;
    let started = Instant::now();
    // Whole at any time, and new soon.
    while read::snapshot(&path)?.kernels.is_empty() {
        assert!(started.elapsed() < Duration::from_secs(60), "nothing new");
    }
    dequantizer.run(&matrix, &mut values)?;
    file.finish()?;
    assert_eq!(read::snapshot(&path)?.kernels[0].launches, 2);
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1, "no part of a file is left");
    let nowhere = folder.path().join("no folder").join("seen.json");
    assert!(SnapshotFile::start(monitor, &nowhere, Duration::from_secs(1)).is_err());
    Ok(())
}
