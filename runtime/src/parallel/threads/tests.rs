use super::divide::SomeThreads;
use super::*;
use crate::parallel::division::split_range;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[test]
fn every_piece_is_run_once() -> Result<(), Error> {
    for count in [1, 2, 5] {
        let threads = Threads::new(count)?.with_grain(1);
        assert_eq!(threads.count(), count);
        for pieces in [0usize, 1, 2, 7, 100] {
            let seen = Mutex::new(vec![0; pieces]);
            let run = |job: Range<usize>| -> Result<(), Error> {
                let mut seen = seen.lock().expect("no thread panics");
                job.for_each(|i| seen[i] += 1);
                Ok(())
            };
            threads.divide(threads.parts(1 << 20, pieces), 0..pieces, &split_range, &run)?;
            assert!(seen.lock().expect("no thread panics").iter().all(|times| *times == 1));
        }
    }
    Ok(())
}

#[test]
fn the_first_error_wins() -> Result<(), Error> {
    let threads = Threads::new(4)?.with_grain(1);
    let outcome = threads.divide(16, 0..16usize, &split_range, &|job: Range<usize>| {
        if job.start >= 5 { Err(job.start) } else { Ok(()) }
    });
    assert_eq!(outcome, Err(5));
    Ok(())
}

#[test]
fn items_are_run_once_each_and_the_first_error_wins() -> Result<(), Error> {
    for count in [1, 2, 5] {
        let threads = Threads::new(count)?;
        let mut items: Vec<usize> = (0..200).collect();
        let run = |item: &mut usize| {
            *item += 1000;
            if *item % 100 == 57 { Err(*item) } else { Ok(()) }
        };
        assert_eq!(threads.awake(|| threads.each(&mut items, run)), Err(1057));
        // One thread stops at an error; with several, the others go on.
        let done = if count == 1 { 58 } else { 200 };
        assert!(items.iter().take(done).enumerate().all(|(i, item)| *item == i + 1000), "{items:?}");
        assert_eq!(threads.each(&mut [] as &mut [usize], run), Ok(()));
    }
    Ok(())
}

/// Each item waits for as many others as there are threads: of parts of equal cost, ten would go to five threads.
#[test]
fn items_that_differ_are_for_all_threads() -> Result<(), Error> {
    let threads = Threads::new(8)?;
    assert_eq!(division::places(10, 8), 5);
    let waiting = || {
        let begun = std::sync::atomic::AtomicUsize::new(0);
        move || -> Result<(), usize> {
            use std::sync::atomic::Ordering::Relaxed;
            begun.fetch_add(1, Relaxed);
            let started = std::time::Instant::now();
            while begun.load(Relaxed) < 8 && started.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
            let begun = begun.load(Relaxed);
            if begun < 8 { Err(begun) } else { Ok(()) }
        }
    };
    let wait = waiting();
    assert_eq!(threads.each(&mut [0; 10], |_| wait()), Ok(()));
    let wait = waiting();
    assert_eq!(threads.chunks(&mut [0; 10], 1, |_, _| wait()), Ok(()));
    Ok(())
}

#[test]
fn chunks_and_items_come_with_their_numbers_once_each() -> Result<(), Error> {
    for count in [1, 2, 5, 40] {
        let threads = Threads::new(count)?;
        for length in [0usize, 1, 7, 64, 1000] {
            for size in [0, 1, 3, 64, usize::MAX] {
                let mut items = vec![usize::MAX; length];
                let run = |index: usize, chunk: &mut [usize]| -> Result<(), Error> {
                    assert!(!chunk.is_empty() && chunk.len() <= size.max(1));
                    for (place, item) in chunk.iter_mut().enumerate() {
                        assert_eq!(*item, usize::MAX, "run twice");
                        *item = index * size.max(1) + place;
                    }
                    Ok(())
                };
                threads.chunks(&mut items, size, run)?;
                assert!(items.iter().enumerate().all(|(i, item)| i == *item), "{count} {length} {size}");
            }
            let mut items = vec![0; length];
            threads.indexed(&mut items, |index, item| -> Result<(), Error> {
                *item += index + 1;
                Ok(())
            })?;
            assert!(items.iter().enumerate().all(|(i, item)| i + 1 == *item), "{count} {length}");
        }
        let fails = |index: usize, _: &mut u8| if index % 100 == 57 { Err(index) } else { Ok(()) };
        assert_eq!(threads.indexed(&mut [0; 200], fails), Err(57));
    }
    Ok(())
}

#[test]
fn a_processor_that_is_not_there_is_an_error() {
    let options = ThreadOptions { count: 2, cpus: vec![usize::MAX], ..ThreadOptions::default() };
    assert!(matches!(Threads::with_options(&options), Err(Error::Threads { count: 2, .. })));
}

#[test]
fn the_calling_thread_can_be_pinned() {
    let allowed = || core_affinity::get_core_ids().unwrap_or_default();
    for cpu in [1023, 1024, usize::MAX] {
        assert_eq!(Threads::pin_caller(cpu), Err(Error::Processor { cpu }));
    }
    let Some(last) = allowed().last().copied() else {
        eprintln!("skipped: the system names no processors");
        return;
    };
    // Tests share a process and not a thread.
    std::thread::spawn(move || {
        assert_eq!(Threads::pin_caller(last.id), Ok(()));
        if cfg!(target_os = "linux") {
            assert_eq!(allowed(), [last], "the system knows");
        }
    })
    .join()
    .expect("pinned");
}

#[test]
fn threads_stay_where_their_caller_is_kept() {
    let here = affinity::of_caller().unwrap_or_default();
    // So that the profile is older than what follows.
    let all: usize = CpuProfile::detect().topology.cores.iter().map(Vec::len).sum();
    if !cfg!(target_os = "linux") || here.len() < 2 || all < 2 {
        eprintln!("skipped: fewer than two processors, or the system does not say");
        return;
    }
    std::thread::spawn(move || {
        assert_eq!(Threads::pin_caller(here[0]), Ok(()));
        let Topology { nodes, cores, .. } = ThreadOptions::default().topology;
        assert_eq!(cores, [[here[0]]]);
        assert!(nodes.iter().flat_map(|node| &node.cpus).all(|cpu| *cpu == here[0]), "{nodes:?}");
    })
    .join()
    .expect("kept there");
}

#[test]
fn a_node_that_is_not_there_is_named() -> Result<(), Error> {
    let node =
        |id: usize| crate::device::Node { id, cpus: vec![900 + 2 * id, 901 + 2 * id], ..Default::default() };
    let topology = Topology { nodes: vec![node(3), node(5)], ..Topology::default() };
    let options = ThreadOptions { count: 2, topology, ..ThreadOptions::default() };
    let outcome = Threads::with_options(&options)?.keep_caller_near();
    match affinity::KNOWS_SEVERAL {
        true => assert_eq!(outcome, Err(Error::NodeProcessors { node: 3, cpus: vec![906, 907] })),
        false => assert_eq!(outcome, Ok(())),
    }
    Ok(())
}

#[test]
fn more_threads_than_can_be_counted_are_refused() {
    for count in [MAX_THREADS + 1, 1 << 16, 1 << 62, usize::MAX] {
        let refused = Error::TooManyThreads { count, most: MAX_THREADS };
        assert_eq!(Threads::new(count).expect_err("too many"), refused);
    }
}

/// Each part as often as the function says, in reverse.
struct Times(fn(usize) -> usize);

impl Executor for Times {
    fn count(&self) -> usize {
        3
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        for index in (0..parts + 5).rev() {
            (0..self.0(index)).for_each(|_| part(index));
        }
    }
}

#[test]
fn an_executor_that_forgets_or_repeats_parts_changes_nothing() -> Result<(), Error> {
    for times in [(|_| 1) as fn(usize) -> usize, |_| 0, |_| 2, |index| index % 3] {
        let threads = Threads::lent(Times(times))?.with_grain(1);
        assert_eq!((threads.count(), threads.parts(u64::MAX, 100)), (3, 12));
        for length in [0, 1, 7, 1000] {
            let mut items = vec![0; length];
            let add = |index: usize, item: &mut usize| {
                *item += index + 1;
                if index == 500 { Err(index) } else { Ok(()) }
            };
            let outcome = threads.awake(|| threads.indexed(&mut items, add));
            assert_eq!(outcome, if length > 500 { Err(500) } else { Ok(()) });
            assert!(items.iter().take(500).enumerate().all(|(i, item)| i + 1 == *item), "{length}");
        }
    }
    Ok(())
}

#[test]
fn executors_say_how_many_threads_they_have() -> Result<(), Error> {
    struct Count(usize);
    impl Executor for Count {
        fn count(&self) -> usize {
            self.0
        }
        fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
            (0..parts).for_each(part);
        }
    }
    assert_eq!(Threads::lent(Count(0))?.count(), 1);
    assert_eq!(Threads::lent(Count(MAX_THREADS))?.count(), MAX_THREADS);
    let refused = Error::TooManyThreads { count: usize::MAX, most: MAX_THREADS };
    assert_eq!(Threads::lent(Count(usize::MAX)).expect_err("too many"), refused);
    Ok(())
}

#[test]
fn chunks_are_for_all_threads() -> Result<(), Error> {
    struct Parts(usize, Arc<AtomicUsize>);
    impl Executor for Parts {
        fn count(&self) -> usize {
            self.0
        }
        fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
            self.1.store(parts, Ordering::Relaxed);
            (0..parts).for_each(part);
        }
    }
    // Four to a thread as long as they need no memory.
    for (count, expected) in [(2, 8), (16, 64), (40, 64), (96, 96)] {
        let seen = Arc::default();
        let threads = Threads::lent(Parts(count, Arc::clone(&seen)))?;
        let mut items = vec![0; 1000];
        let add = |chunk: usize, items: &mut [usize]| -> Result<(), Error> {
            items.iter_mut().for_each(|item| *item += chunk + 1);
            Ok(())
        };
        threads.chunks(&mut items, 3, add)?;
        assert!(items.iter().enumerate().all(|(i, item)| i / 3 + 1 == *item), "{count}");
        assert_eq!(seen.load(Ordering::Relaxed), expected, "{count}");
    }
    Ok(())
}

#[test]
fn the_use_of_threads_is_known_where_it_is_asked_for() -> Result<(), Error> {
    use crate::parallel::thread_use::measured;
    let threads = Threads::new(3)?.with_grain(1);
    // Nobody is done before all three have begun, so that each has something to do.
    let begun = std::sync::atomic::AtomicUsize::new(0);
    let wait = |_: usize, _: &mut [u8]| -> Result<(), Error> {
        use std::sync::atomic::Ordering::Relaxed;
        begun.fetch_add(1, Relaxed);
        let started = std::time::Instant::now();
        while begun.load(Relaxed) < 3 && started.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        Ok(())
    };
    let (outcome, seen) = measured(|| threads.chunks(&mut [0; 12], 1, wait));
    outcome?;
    let seen = seen.expect("it was asked for");
    assert_eq!((seen.threads, seen.worked, seen.parts), (3, 3, 12));
    assert!(seen.longest <= seen.busy && seen.busy <= 3 * seen.wall && seen.longest <= seen.wall, "{seen:?}");
    // Not divided: one of three.
    let (_, seen) = measured(|| threads.chunks(&mut [0; 1], 1, |_, _: &mut [u8]| Ok::<(), Error>(())));
    let seen = seen.expect("it was asked for");
    assert_eq!((seen.threads, seen.worked, seen.parts), (3, 1, 1));
    Ok(())
}

#[test]
fn small_work_stays_together() -> Result<(), Error> {
    let threads = Threads::new(2)?;
    assert_eq!(threads.parts(1000, 100), 1);
    // Awake or asleep after a moment, when the system has let the thread come that far.
    let becomes = |parts| {
        let started = std::time::Instant::now();
        while threads.parts(1 << 20, 100) != parts && started.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        threads.parts(1 << 20, 100) == parts
    };
    assert!(threads.awake(|| becomes(2)), "worth a part each where nobody is to be woken");
    assert!(becomes(1), "not worth waking threads up for");
    assert_eq!(threads.parts(u64::MAX, 100), 8);
    assert_eq!(threads.parts(u64::MAX, 3), 2);
    assert_eq!(threads.parts(u64::MAX, 0), 1);
    assert_eq!(Threads::single().parts(u64::MAX, 100), 1);
    Ok(())
}

/// Distinct threads that take parts of a job.
fn takers(threads: SomeThreads<'_>) -> usize {
    let seen = Mutex::new(std::collections::BTreeSet::new());
    let parts = threads.parts(1 << 40, 64);
    threads.divide_all(parts, 0..64, &split_range, &|_| {
        let name = format!("{:?}", std::thread::current().id());
        seen.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
        // Long enough that everybody who may comes.
        std::thread::sleep(Duration::from_millis(2));
    });
    seen.into_inner().unwrap_or_else(PoisonError::into_inner).len()
}

#[test]
fn no_more_threads_work_than_are_asked_for() {
    let threads = Threads::new(4).expect("threads");
    // Busy machines may start fewer of them in time, so the best of some tries counts.
    let most = |limit| (0..20).map(|_| takers(threads.at_most(limit))).max();
    assert_eq!(most(Some(1)), Some(1));
    assert!(most(Some(2)) <= Some(2));
    assert!(most(None) > Some(2));
    assert_eq!(threads.at_most(Some(9)).count(), 4);
    assert_eq!(threads.at_most(Some(0)).count(), 1);
    // All rows are converted, whoever does it.
    let mut rows = vec![0u32; 999];
    let done = threads.at_most(Some(2)).converted_rows(&mut rows, 3, 1 << 20, |row, items| {
        items.fill(row as u32 + 1);
        Ok::<(), Infallible>(())
    });
    assert!(done.is_ok() && rows.iter().enumerate().all(|(at, row)| *row == at as u32 / 3 + 1));
}
