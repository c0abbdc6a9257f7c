//! Reports: what is planted in records is in them, with its numbers, and a page stands alone.

use gristmill_ops::report::{Finding, Report};
use gristmill_ops::{
    Bucket, CacheLoad, Clock, Fallback, Host, HugePages, KernelLoad, PoolLoad, Record, Records,
    RecoveryCount, Sampled, Serves, Snapshot, Source, ThreadLoad, TransferLoad, Work,
};
use gristmill_runtime::RecoveryStep;
use std::collections::HashSet;
use std::error::Error;

/// A kernel that was launched `launches` times, with a median of 10 us and a mean of 20.
fn load(kernel: &str, launches: u64, p99_us: u64, faults: u64) -> KernelLoad {
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
        faults: Some(faults),
        time: Some(Sampled {
            threads: None,
            samples: 200,
            sum_ns: 200 * 20_000,
            bytes_in: 200 * 80_000,
            min_ns: 5_000,
            p50_ns: 10_000,
            p90_ns: 11_000,
            p99_ns: 1000 * p99_us,
            max_ns: 1000 * p99_us,
            buckets: vec![Bucket { le_ns: 1000 * p99_us, count: 200 }],
        }),
    }
}

/// A machine on which so much of 1000 MiB lies on huge pages, throttled so often, with a clock of 3000 MHz.
fn host(mode: &str, huge_mib: u64, [throttled, allowed]: [u64; 2]) -> Host {
    let pages = HugePages { mode: mode.to_owned(), asked_bytes: 1000 << 20, huge_bytes: huge_mib << 20 };
    let clock = Clock { throttled: Some(throttled), allowed_mhz: Some(allowed), highest_mhz: Some(3000) };
    Host { huge_pages: Some(pages), clock: Some(clock) }
}

fn snapshot(at: u64, kernels: Vec<KernelLoad>) -> Snapshot {
    Snapshot {
        schema: Snapshot::SCHEMA.to_owned(),
        at,
        seconds: 60.0,
        machine: "machine <1> & \"co\"".to_owned(),
        gpus: Vec::new(),
        compiler: None,
        package: "toy".to_owned(),
        program: None,
        sampled_every: 61,
        lost_samples: 0,
        host: Some(host("madvise", 900, [0, 3000])),
        kernels,
        batches: None,
        transfers: Vec::new(),
        pools: Vec::new(),
        caches: Vec::new(),
        fallbacks: vec![Fallback {
            policy: "cpu".to_owned(),
            op: "matmul".to_owned(),
            format: "q9".to_owned(),
            device: "cuda:0".to_owned(),
            reason: "<script>alert(1)</script>".to_owned(),
            instead: "a kernel on the processor".to_owned(),
            runs: 41,
        }],
        recoveries: vec![
            RecoveryCount {
                step: "quarantined".to_owned(),
                kernel: "matmul.q9.avx512".to_owned(),
                id: "1234".to_owned(),
                format: "q9".to_owned(),
                success: true,
                reason: "it panicked: <b>".to_owned(),
                then: None,
                count: 3,
                seconds: 0.25,
            },
            RecoveryCount {
                step: "taken-over".to_owned(),
                kernel: "matmul.q9.cuda.mma".to_owned(),
                id: "5678".to_owned(),
                format: "q9".to_owned(),
                success: false,
                reason: "cuda:1 was lost".to_owned(),
                then: None,
                count: 1,
                seconds: 0.5,
            },
            RecoveryCount {
                step: "moved-to-processor".to_owned(),
                kernel: "matmul.q9.cuda.mma".to_owned(),
                id: "5678".to_owned(),
                format: "q9".to_owned(),
                success: true,
                reason: "cuda:0: launching: CUDA_ERROR_ILLEGAL_ADDRESS (700)".to_owned(),
                then: None,
                count: 2,
                seconds: 0.75,
            },
        ],
    }
}

fn bench(kernel: &str, at: u64, us: f64, percent: f64) -> Record {
    Record {
        source: Source::Bench,
        at,
        machine: "machine <1> & \"co\"".to_owned(),
        compiler: None,
        kernel: kernel.to_owned(),
        id: "an id".to_owned(),
        work: Work::Shape {
            m: 1,
            n: 2,
            k: 3,
            threads: 1,
            memory: "hot".to_owned(),
            quantizes: Some(true),
            input: None,
        },
        us: Some(us),
        rounds_us: (0..7).map(|round| us * (1.0 + 0.001 * f64::from(round))).collect(),
        percent: Some(percent),
        ceiling: Some("read".to_owned()),
        memory_gb_s: None,
        serves: None,
        load: None,
        program: None,
    }
}

fn records() -> Records {
    // What an earlier look saw is in the later one too, and must not be counted twice.
    let mut all = Records::of_snapshot(snapshot(50, vec![load("matmul.slow", 5, 12, 0)]));
    let later = snapshot(100, vec![load("matmul.slow", 3_000, 12, 0), load("matmul.tail", 1_000, 90, 7)]);
    let later = Records::of_snapshot(later);
    all.records.extend(later.records);
    all.watches.extend(later.watches);
    for at in 0..4 {
        all.records.push(bench("matmul.steady", at, 100.0, 90.0));
        // Slower by a quarter at last, on a machine that is as fast as before: its part of the ceiling falls as much.
        let (us, percent) = if at == 3 { (125.0, 40.0) } else { (100.0, 50.0) };
        all.records.push(bench("matmul.fallen", at, us, percent));
        all.records.push(bench("matmul.poor", at, 10.0, 12.0));
    }
    all
}

#[test]
fn what_is_planted_is_found_with_its_numbers() {
    let report = Report::of(&records());
    let cost: Vec<(&str, f64, f64)> = report
        .cost
        .iter()
        .map(|cost| (cost.kernel.as_str(), (cost.seconds * 1e3).round(), cost.percent.round()))
        .collect();
    assert_eq!(cost, [("matmul.slow", 60.0, 75.0), ("matmul.tail", 20.0, 25.0)]);
    assert!((report.cost[0].gb_s - 4.0).abs() < 1e-9);

    // Nothing says what memory gives; of 16 GB/s the kernel's 4 are a quarter.
    assert_eq!(report.cost[0].percent_of_memory, None);
    let mut more = records();
    more.records.push(Record { memory_gb_s: Some(16.0), ..bench("matmul.poor", 4, 10.0, 12.0) });
    let with_memory = Report::of(&more);
    assert_eq!(with_memory.cost[0].percent_of_memory, Some(25.0));
    assert!(with_memory.to_text().contains("4.0 GB/s (25 % of what memory gives)"));

    let [fallen] = report.changes.as_slice() else { panic!("{:?}", report.changes) };
    assert_eq!((fallen.kernel.as_str(), fallen.slower, fallen.rebuilt), ("matmul.fallen", true, false));
    assert_eq!(
        report.trends.first().map(|trend| (trend.kernel.as_str(), trend.ratio)),
        Some(("matmul.fallen", 1.25))
    );

    let about: Vec<&str> = report.anomalies.iter().map(|finding| finding.what.as_str()).collect();
    let expected = [
        "matmul.fallen became slower at",
        "matmul.tail refused its input",
        "matmul.tail has a long tail",
        "matmul of q9 did not run on cuda:0",
        "matmul.q9.avx512 is used no more on machine",
        "a GPU was lost on machine",
        "a layer of q9 left its GPU on machine",
        "matmul.poor is far below its ceiling",
    ];
    assert_eq!(about.len(), expected.len(), "{about:?}");
    for (found, expected) in about.iter().zip(expected) {
        assert!(found.starts_with(expected), "{about:?}");
    }
    // One for each, and that nothing is tuned.
    assert_eq!(report.recommendations.len(), expected.len() + 1);
    let cites = |what: &str, numbers: &[&str]| {
        let finding = report.recommendations.iter().find(|finding| finding.because.contains(what));
        let finding = finding.unwrap_or_else(|| panic!("nothing about {what}: {:?}", report.recommendations));
        for number in numbers {
            assert!(finding.because.contains(number), "{finding:?}");
        }
    };
    cites("became slower", &["100.3", "125.3", "1.25 times", "21 rounds", "7 rounds"]);
    cites("refused its input", &["7 of 1000 launches"]);
    cites("long tail", &["90.0 us", "10.0 us", "9.0 times", "200 samples"]);
    cites("did not run on", &["41 runs"]);
    cites("q9.avx512 is used no more", &["quarantined 3 times", "0.250 s", "was good: it panicked"]);
    cites("a GPU was lost", &["taken-over 1 times", "0.500 s", "did not help: cuda:1 was lost"]);
    cites(
        "a layer of q9 left its GPU",
        &["moved-to-processor 2 times", "0.750 s", "CUDA_ERROR_ILLEGAL_ADDRESS"],
    );
    cites("far below", &["12 %", "10.0 us"]);
    cites("no tuning of", &["75 %", "3000 launches"]);
    assert!(report.absent.is_empty(), "{:?}", report.absent);
}

/// Snapshots of a service that was looked at for weeks: only the newest counts, and it is found once, not anew for each record.
#[test]
fn a_long_history_is_reported() {
    const KERNELS: usize = 50;
    const LOOKS: u64 = 900;
    let mut all = Records::default();
    for at in 1..=LOOKS {
        let kernels = (0..KERNELS).map(|kernel| load(&format!("matmul.{kernel}"), at, 12, 0)).collect();
        let seen = Records::of_snapshot(snapshot(at, kernels));
        all.records.extend(seen.records);
        all.watches.extend(seen.watches);
    }
    let report = Report::of(&all);
    assert_eq!(report.records, KERNELS * LOOKS as usize);
    assert!(!report.cost.is_empty() && report.cost.iter().all(|cost| cost.launches == LOOKS));
}

/// What a younger look at one program shows does not hide what went wrong in another on the same machine.
#[test]
fn programs_of_one_machine_are_kept_apart() -> Result<(), Box<dyn Error>> {
    let of = |at: u64, program: Option<&str>, format: &str| {
        let mut seen = snapshot(at, vec![load(&format!("matmul.{format}"), at, 12, 0)]);
        seen.program = program.map(str::to_owned);
        seen.recoveries.clear();
        seen.fallbacks[0].format = format.to_owned();
        Records::of_snapshot(seen)
    };
    // The last one is what an older version kept, which names no program.
    let mut unnamed = of(1, None, "q7");
    assert_eq!(unnamed.watches[0].program.as_deref(), Some("toy"), "the crate, where nothing else is known");
    let mut old = serde_json::to_value(&unnamed.watches[0])?;
    old.as_object_mut().ok_or("an object")?.remove("program");
    unnamed.watches = vec![serde_json::from_value(old)?];
    let mut old = serde_json::to_value(&unnamed.records[0])?;
    old.as_object_mut().ok_or("an object")?.remove("program");
    unnamed.records = vec![serde_json::from_value(old)?];

    let seen_of = |parts: &[&Records]| {
        let mut all = Records::default();
        for part in parts {
            all.records.extend(part.records.clone());
            all.watches.extend(part.watches.clone());
        }
        let report = Report::of(&all);
        let kernels: Vec<String> = report.cost.iter().map(|cost| cost.kernel.clone()).collect();
        let fell_back = report.anomalies.iter().map(|finding| finding.what.clone());
        (kernels, fell_back.filter(|what| what.contains("did not run on")).collect::<Vec<_>>())
    };
    let [first, second, again] = [(2, "a", "q1"), (3, "b", "q2"), (4, "a", "q3")]
        .map(|(at, program, format)| of(at, Some(program), format));
    let (kernels, fell_back) = seen_of(&[&first, &second]);
    assert_eq!(kernels, ["matmul.q2", "matmul.q1"]);
    let [one, two] = fell_back.as_slice() else { panic!("{fell_back:?}") };
    assert!(one.ends_with("\" (a)") && two.ends_with("\" (b)"), "{fell_back:?}");
    assert_eq!(seen_of(&[&first, &second, &again]).0, ["matmul.q3", "matmul.q2"], "a program's last look");
    assert_eq!(seen_of(&[&unnamed]).0, ["matmul.q7"]);
    assert_eq!(seen_of(&[&unnamed, &first]).0, ["matmul.q1"], "an older look at whatever it was");
    // The same snapshot, kept by both versions, counts once.
    assert_eq!(seen_of(&[&unnamed, &of(1, None, "q7")]).0, ["matmul.q7"]);
    Ok(())
}

/// A GPU's records are its own, whatever processor it is plugged in beside, and are still those of their monitor.
#[test]
fn what_ran_on_a_gpu_is_kept_under_its_name() {
    let on = |at: u64, gpus: &[&str], p50_ns: u64| {
        let mut slow = load("matmul.q9.cuda.mma", 3_000, 12, 0);
        slow.device = "cuda".to_owned();
        slow.time.as_mut().expect("timed").p50_ns = p50_ns;
        let gpus = gpus.iter().map(|name| (*name).to_owned()).collect();
        Snapshot { gpus, ..snapshot(at, vec![slow, load("matmul.q9.avx512", 10, 12, 0)]) }
    };
    let machines = |records: &Records| -> Vec<String> {
        records.records.iter().map(|record| record.machine.clone()).collect()
    };
    let processor = snapshot(1, Vec::new()).machine;
    let mut all = Records::of_snapshot(on(1, &["gpu A 9.0 driver 13.0"], 1_000));
    assert_eq!(machines(&all), ["gpu A 9.0 driver 13.0", processor.as_str()]);
    let both = Records::of_snapshot(on(2, &["gpu A 9.0 driver 13.0", "gpu B 8.0 driver 13.0"], 9_000));
    assert_eq!(machines(&both)[0], "gpu A 9.0 driver 13.0 + gpu B 8.0 driver 13.0");
    // What an older monitor wrote does not say.
    assert_eq!(machines(&Records::of_snapshot(on(2, &[], 9_000)))[0], processor);
    all.records.extend(both.records);
    all.watches.extend(both.watches);
    // Another GPU is no regression, and both kernels of the newest look are in the report.
    let report = Report::of(&all);
    assert!(report.changes.is_empty(), "{:?}", report.changes);
    let kernels: Vec<&str> = report.cost.iter().map(|cost| cost.kernel.as_str()).collect();
    assert_eq!(kernels, ["matmul.q9.cuda.mma", "matmul.q9.avx512"]);
}

/// Two GPUs of one host, of one kind or of two, are told apart.
#[test]
fn gpus_of_one_host_have_rows_of_their_own() {
    for names in [["gpu A 9.0 driver 13.0"; 2], ["gpu A 9.0 driver 13.0", "gpu B 8.0 driver 13.0"]] {
        let on = |index: usize, p99_us: u64| KernelLoad {
            device: format!("cuda:{index}"),
            gpu: Some(names[index].to_owned()),
            ..load("matmul.q9.cuda.mma", 3_000, p99_us, 0)
        };
        let mut gpus = names.map(str::to_owned).to_vec();
        gpus.dedup();
        // The second one has times that are far from its median.
        let seen = Snapshot { gpus, ..snapshot(1, vec![on(0, 12), on(1, 500)]) };
        let records = Records::of_snapshot(seen);
        let machines: Vec<&str> = records.records.iter().map(|record| record.machine.as_str()).collect();
        assert_eq!(machines, names);
        let report = Report::of(&records);
        let mut work: Vec<&str> = report.cost.iter().map(|cost| cost.work.as_str()).collect();
        work.sort_unstable();
        assert_eq!(work, ["m=1 weights=0-1048576 on cuda:0", "m=1 weights=0-1048576 on cuda:1"]);
        let tails: Vec<&str> = report
            .anomalies
            .iter()
            .map(|finding| finding.what.as_str())
            .filter(|what| what.contains("long tail"))
            .collect();
        assert_eq!(tails, ["matmul.q9.cuda.mma has a long tail at m=1 weights=0-1048576 on cuda:1"]);
        assert!(report.to_text().contains("on cuda:1"), "{}", report.to_text());
        // A monitor of another host has another GPU.
        let mut others = records.clone();
        others.watches[0].gpus = vec!["gpu C 9.0 driver 13.0".to_owned()];
        assert!(Report::of(&others).cost.is_empty());
    }
}

/// Each step of recovery has a finding of its own, with its reason.
#[test]
fn every_step_of_recovery_is_told_by_what_it_was() {
    let mut steps: Vec<&str> = RecoveryStep::ALL.iter().map(|step| step.name()).collect();
    steps.push("a step of later");
    let mut told = HashSet::new();
    for step in steps {
        let mut watched = snapshot(1, Vec::new());
        watched.recoveries.truncate(1);
        watched.recoveries[0].step = step.to_owned();
        let report = Report::of(&Records::of_snapshot(watched));
        let of_step = |finding: &&Finding| finding.because.contains(&format!("{step} 3 times"));
        let [finding] = report.anomalies.iter().filter(of_step).collect::<Vec<_>>()[..] else {
            panic!("{step}: {:?}", report.anomalies)
        };
        assert!(finding.because.contains("it panicked: <b>"), "{finding:?}");
        assert!(told.insert(finding.what.clone()), "{step}: {}", finding.what);
    }
}

/// Threads that wait or work unevenly are told with the numbers that say so, where enough launches do.
#[test]
fn threads_that_wait_are_found() {
    let used = |samples: u64, busy: u64, longest: u64| {
        let mut load = load("matmul.threads", 3_000, 12, 0);
        let time = load.time.as_mut().expect("timed");
        time.threads = Some(ThreadLoad {
            samples,
            most_threads: 4,
            available_ns: 1000,
            busy_ns: busy,
            longest_ns: longest,
            mean_ns: busy / 4,
        });
        Report::of(&Records::of_snapshot(snapshot(1, vec![load])))
    };
    let found = |report: &Report, what: &str| {
        let finding = report.recommendations.iter().find(|finding| finding.because.contains(what));
        finding.map(|finding| (finding.what.clone(), finding.because.clone()))
    };
    let (advice, because) = found(&used(200, 300, 75), "wait at").expect("a finding");
    assert!(advice.contains("fewer threads") && advice.contains("gristmill tune"), "{advice}");
    assert!(because.ends_with("they work 30 % of the time, of 4 threads, 200 samples"), "{because}");
    assert_eq!(found(&used(200, 300, 75), "unevenly"), None);
    let (_, because) = found(&used(200, 800, 400), "unevenly").expect("a finding");
    assert!(
        because.ends_with("the busiest works 2.00 times as long as the mean, of 4 threads, 200 samples"),
        "{because}"
    );
    assert_eq!(found(&used(200, 800, 400), "wait at"), None);
    let few = used(99, 300, 400);
    assert_eq!((found(&few, "wait at"), found(&few, "unevenly")), (None, None));
}

/// The advice for a finding and its numbers, if there is one.
fn advice(report: &Report, what: &str) -> Option<(String, String)> {
    let finding = report.recommendations.iter().find(|finding| finding.because.starts_with(what))?;
    Some((finding.what.clone(), finding.because.clone()))
}

#[test]
fn machines_that_are_held_back_are_found() {
    let of = |host: Option<Host>| {
        let seen = Snapshot { host, ..snapshot(1, vec![load("matmul.slow", 10, 12, 0)]) };
        Report::of(&Records::of_snapshot(seen))
    };
    let (small, hot, slow) =
        ("packed weights lie on small pages", "a processor was throttled", "the clock is held back");
    let good = of(Some(host("madvise", 500, [0, 2999])));
    for what in [small, hot, slow] {
        assert_eq!(advice(&good, what), None);
    }
    let never = of(Some(host("never", 20, [7, 2400])));
    let (what, because) = advice(&never, small).expect("they do");
    assert!(what.contains("echo madvise"), "{what}");
    assert!(because.ends_with("20 MiB of 1000 MiB that huge pages were asked for lie on them (2 %); the system gives them out: never"), "{because}");
    let (_, because) = advice(&never, hot).expect("it was");
    assert!(because.ends_with("it was too hot 7 times in the 60 s of the monitor"), "{because}");
    let (_, because) = advice(&never, slow).expect("it is");
    assert!(because.ends_with("a processor may run at 2400 MHz of 3000 MHz (80 %)"), "{because}");
    for (mode, helps) in [("madvise", "compact_memory"), ("off for this program", "PR_SET_THP_DISABLE")] {
        let report = of(Some(host(mode, 20, [0, 3000])));
        assert!(advice(&report, small).is_some_and(|(what, _)| what.contains(helps)), "{mode}");
    }
    // Little memory is no matter.
    let mut little = host("never", 0, [0, 3000]);
    little.huge_pages.as_mut().expect("made so").asked_bytes = 60 << 20;
    assert_eq!(advice(&of(Some(little)), small), None);
    // What the system does not tell is not known, and nothing follows from it.
    let silent = of(None);
    assert!([small, hot, slow].iter().all(|what| advice(&silent, what).is_none()));
    let absent = |what: &str| silent.absent.iter().any(|absent| absent.starts_with(what));
    assert!(absent("whether weights lie on huge pages") && absent("the clock of"), "{:?}", silent.absent);

    // Multiply units that need 1.3 times as long as before, by two works of three; memory is as fast as before.
    let mut records = Vec::new();
    for at in 0..4 {
        let times = |slower: f64| if at == 3 { slower } else { 1.0 };
        for (kernel, slower) in [("a", 1.3), ("b", 1.3), ("c", 1.0)] {
            let ceiling = Some("multiply".to_owned());
            records.push(Record { ceiling, ..bench(kernel, at, 100.0 * times(slower), 50.0) });
        }
        records.push(bench("read", at, 100.0, 50.0));
    }
    let report = Report::of(&Records { records: records.clone(), ..Records::default() });
    let (what, because) = advice(&report, "the multiply units of machine").expect("they are slower");
    assert!(
        what.contains("throttled") && because.contains("1.30 times as long: the median of 3 works"),
        "{because}"
    );
    records.retain(|record| record.kernel != "a");
    let report = Report::of(&Records { records, ..Records::default() });
    assert!(advice(&report, "the multiply units").is_some_and(|(_, because)| because.contains("1.15 times")));
}

/// Copies of `bytes` in all, of which 200 with 1000 bytes each were timed, at 10 us.
fn copies(kind: &str, bytes: u64) -> TransferLoad {
    let time = load("", 1, 10, 0).time.map(|time| Sampled { sum_ns: 2_000_000, bytes_in: 200_000, ..time });
    let (kind, device) = (kind.to_owned(), "cuda:0".to_owned());
    TransferLoad { kind, device, source: None, copies: 400, bytes, time }
}

#[test]
fn what_memory_costs_is_found() {
    let looked = |cache: &str, hits, misses| CacheLoad {
        cache: cache.to_owned(),
        device: "cuda:0".to_owned(),
        hits,
        misses,
    };
    let of = |transfers: Vec<TransferLoad>, grew: Option<u64>, caches: Vec<CacheLoad>| {
        let pools = vec![PoolLoad {
            device: "cuda:0".to_owned(),
            allocations: 1000,
            bytes: 5000,
            grew,
            grown_bytes: grew.map(|grew| 10 * grew),
            held_bytes: Some(70),
            reserved_bytes: None,
        }];
        // 1000 launches of 20 us.
        let kernel = KernelLoad { device: "cuda".to_owned(), ..load("matmul.there", 1000, 12, 0) };
        let seen = Snapshot { transfers, pools, caches, ..snapshot(1, vec![kernel]) };
        Report::of(&Records::of_snapshot(seen))
    };
    let titles = [
        "copies take long beside the kernels of GPUs",
        "the memory pool of cuda:0 grows",
        "memory of workspaces for cuda:0 is made again",
        "graphs are captured and hardly launched",
        "the driver compiled kernels for cuda:0",
        "a tuning for cuda:0 has no times",
    ];
    // 4 ms of copies beside 20 of kernels, of weights as much as there may be; and what happens while a program begins.
    let caches = ["workspace", "graph", "tuning", "image"].map(|cache| looked(cache, 99, 99));
    let caches = caches.into_iter().filter(|load| load.cache != "tuning").chain([looked("tuning", 3, 0)]);
    let good = of(vec![copies("to-device", 400_000), copies("weights", 1 << 40)], Some(99), caches.collect());
    for title in titles {
        assert_eq!(advice(&good, title), None);
    }
    let text = good.to_text();
    for said in [
        "to-device cuda:0: 400 copies, 400000 bytes, 0.004 s, 0.1 GB/s",
        "cuda:0: 1000 allocations, 5000 bytes; the pool grew for 99 of them, by 990 bytes; 70 bytes held\n",
        "tuning for cuda:0: 3 hits, 0 misses",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let caches = vec![
        looked("workspace", 800, 200),
        looked("graph", 99, 100),
        looked("ptx", 5, 3),
        looked("tuning", 1, 2),
    ];
    let bad = of(vec![copies("to-device", 400_000), copies("from-device", 200_000)], Some(101), caches);
    for (title, numbers) in titles.into_iter().zip([
        "0.006 s of copies between processor and devices (400 timed), 0.020 s of kernels (200 timed), 30 %; 600 bytes for each of 1000 \
         products",
        "it grew for 101 of 1000 allocations, by 1010 bytes together",
        "200 times of 1000",
        "100 captures, 99 launches of graphs that had been launched before",
        "3 images were PTX",
        "none for 2 of 3 requests",
    ]) {
        let (_, because) = advice(&bad, title).unwrap_or_else(|| panic!("{title}: {:?}", bad.anomalies));
        assert!(because.contains(numbers), "{because}");
    }
    // Of what was not timed nothing follows, nor of pools that are not there.
    let untimed = TransferLoad { time: None, ..copies("to-device", 1 << 40) };
    let silent = of(vec![untimed], None, Vec::new());
    assert_eq!((advice(&silent, titles[0]), advice(&silent, titles[1])), (None, None));
    assert!(silent.to_text().contains("400 copies, 1099511627776 bytes\n"), "{}", silent.to_text());
    assert!(
        silent.transfers[0].seconds.is_none()
            && silent.to_html().is_ok_and(|page| page.contains("1099511627776"))
    );
}

#[test]
fn what_a_tuning_says_of_the_work_is_told() {
    let tuned = |id: &str, packing: &str, tokens: u64, threads: u64, us: f64| Record {
        source: Source::Tune,
        id: format!("id of {id}"),
        work: Work::Class {
            tokens: (tokens, Some(tokens)),
            weights: (0, Some(1 << 20)),
            threads: Some(threads),
        },
        us: Some(us),
        rounds_us: Vec::new(),
        serves: Some(Serves {
            op: "matmul".to_owned(),
            format: "q9".to_owned(),
            quantizer: None,
            packing: Some(packing.to_owned()),
        }),
        ..bench(id, 1, us, 0.0)
    };
    // The first packing is the faster one for one token, the other for many.
    let tuning = vec![
        tuned("decode", "wide", 1, 4, 10.0),
        tuned("prefill", "wide", 64, 4, 1000.0),
        tuned("dense", "dense", 1, 4, 12.0),
        tuned("dense", "dense", 64, 4, 500.0),
        tuned("decode", "wide", 1, 2, 8.0),
        tuned("decode", "wide", 1, 1, 15.0),
        // An older time, which counts for nothing.
        Record { at: 0, ..tuned("dense", "dense", 1, 4, 1.0) },
    ];
    let report = |decodes: u64, prefills: u64, threads: Option<u64>| {
        let mut loads = vec![load("decode", decodes, 12, 0), load("prefill", prefills, 12, 0)];
        loads[1].tokens = (64, Some(64));
        for load in &mut loads {
            let time = load.time.as_mut().expect("timed");
            time.threads = threads.map(|most_threads| ThreadLoad { most_threads, ..ThreadLoad::default() });
        }
        let mut records = Records::of_snapshot(snapshot(2, loads));
        records.records.extend(tuning.clone());
        Report::of(&records)
    };
    // 1000 decodes lose 2 ms by the other packing, ten prefills gain 5.
    let (what, because) = advice(&report(1000, 10, None), "another packing is faster").expect("it is");
    assert!(what.contains("GRISTMILL_PACKING=dense"), "{what}");
    let numbers = "1000 launches of decode at m=1, 10 launches of prefill at m=64 take 0.020 s by the times of the tuning, the fastest kernels \
                   of the packing `dense` 0.017 s (1.18 times as fast)";
    assert!(because.ends_with(numbers), "{because}");
    // With more decodes it is not.
    assert_eq!(advice(&report(10_000, 10, None), "another packing"), None);
    // Too few launches, or a kernel that no tuning has.
    assert_eq!(advice(&report(80, 10, None), "another packing"), None);
    // Fewer threads: of the four that it had, where that was measured.
    let (what, because) = advice(&report(10_000, 10, Some(4)), "fewer threads are faster").expect("they are");
    assert!(what.contains("make 2 threads"), "{what}");
    assert!(
        because.contains("decode takes 10.0 us on the 4 threads that it had in 10000 launches, and 8.0 us on 2 (1.25 times as fast)"),
        "{because}"
    );
    for threads in [None, Some(2), Some(3)] {
        assert_eq!(advice(&report(10_000, 10, threads), "fewer threads"), None, "{threads:?}");
    }
    // A tuning of the machine is there, so nobody is told to make one.
    assert_eq!(advice(&report(1000, 10, None), "no tuning"), None);
}

#[test]
fn of_nothing_nothing_follows() {
    let report = Report::of(&Records::default());
    assert!(report.anomalies.is_empty() && report.recommendations.is_empty() && report.cost.is_empty());
    assert_eq!(report.absent.len(), 3);
    assert!(report.to_text().contains("nothing was measured twice"));
    // Times that were not taken are not zero.
    let mut untimed = load("matmul.untimed", 10, 1, 0);
    untimed.time = None;
    let report = Report::of(&Records::of_snapshot(snapshot(1, vec![untimed])));
    assert!(report.cost.is_empty() && !report.to_text().contains("matmul.untimed"));
    assert!(
        report.absent.iter().any(|absent| absent.starts_with("1 kernels and classes")),
        "{:?}",
        report.absent
    );
}

#[test]
fn the_page_stands_alone_and_escapes_names() -> Result<(), Box<dyn Error>> {
    let report = Report::of(&records());
    let page = report.to_html()?;
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(&page, options)?;
    let named =
        |name: &'static str| document.descendants().filter(move |node| node.tag_name().name() == name);
    assert_eq!(named("script").chain(named("link")).chain(named("img")).chain(named("iframe")).count(), 0);
    let addresses = document.descendants().flat_map(|node| node.attributes()).filter(|attribute| {
        ["src", "href", "action"].contains(&attribute.name()) || attribute.value().contains("//")
    });
    assert_eq!(addresses.count(), 0);
    assert!(!page.contains("url(") && !page.contains("@import"));
    let text: String =
        document.descendants().filter(|node| node.is_text()).filter_map(|node| node.text()).collect();
    for said in ["machine <1> & \"co\"", "<script>alert(1)</script>", "matmul.slow", "7 of 1000 launches"] {
        assert!(text.contains(said), "{said}");
    }
    // A plot for each trend, with a point for each measurement, inside of it.
    let lines: Vec<Vec<(f64, f64)>> = named("polyline")
        .map(|line| {
            let points = line.attribute("points").unwrap_or("").split(' ');
            points
                .filter_map(|point| point.split_once(','))
                .filter_map(|(x, y)| Some((x.parse().ok()?, y.parse().ok()?)))
                .collect()
        })
        .collect();
    assert_eq!(lines.len(), report.trends.len());
    assert!(lines.iter().zip(&report.trends).all(|(line, trend)| line.len() == trend.points.len()));
    assert!(lines.iter().flatten().all(|(x, y)| (0.0..=240.0).contains(x) && (0.0..=40.0).contains(y)));
    // The one that fell: three at four fifths of the height, then the highest.
    assert_eq!(lines[0], [(0.0, 8.0), (80.0, 8.0), (160.0, 8.0), (240.0, 0.0)]);
    Ok(())
}
