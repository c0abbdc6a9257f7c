//! A pool and its jobs, with threads that the system runs in whatever order.

use super::shared::{CALLER, NUMBER, OPEN, TIMES, is_new, woken_by};
use super::{Pool, Seat, Seats};
use crate::parallel::division::of_place;
use crate::parallel::sync::{AtomicBool, AtomicUsize, Ordering, yield_now};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SPIN: Duration = Duration::from_micros(50);
/// Jobs are divided by this: Miri runs some ten a second.
const FEWER: usize = if cfg!(miri) { 50 } else { 1 };

fn pool(workers: usize) -> Pool {
    Pool::new(workers, &Seats::default(), SPIN).expect("threads")
}

#[test]
fn every_part_is_done_once_in_every_job() {
    for workers in [0, 1, 3] {
        let pool = pool(workers);
        for job in 0..2000 / FEWER {
            let parts = job % 9;
            let done: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
            pool.run(parts, &|part| {
                done[part].fetch_add(1, Ordering::Relaxed);
            });
            assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1), "job {job}");
            if job % 500 == 0 {
                // Long enough for workers to fall asleep.
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

#[test]
fn what_parts_write_is_seen_when_the_job_is_over() {
    let pool = pool(2);
    let mut numbers = vec![0usize; 64];
    for job in 1..500 / FEWER {
        let places: Vec<Mutex<&mut usize>> = numbers.iter_mut().map(Mutex::new).collect();
        pool.run(places.len(), &|part| **places[part].lock().expect("nobody panics") += part);
        drop(places);
        assert!(numbers.iter().enumerate().all(|(i, number)| *number == i * job), "job {job}");
    }
}

#[test]
fn workers_take_parts() {
    let pool = pool(1);
    let _awake = pool.stay_awake();
    let names = Mutex::new(std::collections::BTreeSet::new());
    // A worker that the system holds up comes late; so we wait for it in the part of this thread.
    let started = Instant::now();
    while names.lock().expect("nobody panics").len() < 2 && started.elapsed() < Duration::from_secs(20) {
        pool.run(2, &|_| {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            names.lock().expect("nobody panics").insert(name);
            std::thread::sleep(Duration::from_millis(1));
        });
    }
    assert!(names.lock().expect("nobody panics").contains("gristmill-1"));
}

#[test]
fn several_callers_and_callers_inside_jobs_get_their_work_done() {
    let pool = pool(2);
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 / FEWER {
                    pool.run(3, &|_| {
                        pool.run(2, &|_| {
                            count.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 4 * (200 / FEWER) * 3 * 2);
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let pool = pool(2);
    // Miri takes most of a minute to print where each one stood.
    for panicking in 0..if cfg!(miri) { 1 } else { 8 } {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(8, &|part| assert!(part != panicking, "on purpose"));
        }));
        // With what it said, whichever thread the part was on.
        let payload = outcome.expect_err("a panic");
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"on purpose"));
        let done = AtomicUsize::new(0);
        pool.run(8, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 8);
    }
}

#[test]
fn the_tree_has_every_worker_once_and_few_levels() {
    for workers in 0..200 {
        let mut level = vec![CALLER];
        let (mut seen, mut levels) = (Vec::new(), 0u32);
        while !level.is_empty() {
            level = level.iter().flat_map(|place| woken_by(*place, workers)).map(|index| index + 1).collect();
            seen.extend_from_slice(&level);
            levels += 1;
        }
        assert_eq!(seen, (1..=workers).collect::<Vec<_>>());
        assert!(levels <= workers.checked_ilog2().unwrap_or(0) + 2, "{levels} levels for {workers}");
    }
    assert_eq!(woken_by(usize::MAX, 4), 4..4);
}

#[test]
fn sleepers_wake_each_other() {
    let pool = pool(7);
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    for _ in 0..3 {
        until("all fall asleep", &|| pool.sleeps());
        let awake = pool.stay_awake();
        let asleep = &pool.shared.asleep;
        until("all wake up", &|| !asleep.iter().any(|asleep| asleep.load(Ordering::Relaxed)));
        drop(awake);
        until("all fall asleep again", &|| pool.sleeps());
        // Each part waits for the others, so that nobody takes two.
        let begun = AtomicUsize::new(0);
        pool.run(8, &|_| {
            begun.fetch_add(1, Ordering::Relaxed);
            until("a sleeper for each part", &|| begun.load(Ordering::Relaxed) == 8);
        });
    }
}

#[test]
fn a_job_is_new_while_it_is_open_and_not_done() {
    let (first, second) = (NUMBER, 2 * NUMBER);
    for inside in [0, 1, 5] {
        assert!(is_new(second | OPEN | inside, first));
        assert!(!is_new(second | OPEN | inside, second), "done by this worker");
        assert!(!is_new(second | inside, first), "closed");
    }
}

#[test]
fn workers_end_with_their_pool() {
    let pool = pool(3);
    let shared = Arc::clone(&pool.shared);
    drop(pool);
    assert_eq!(Arc::strong_count(&shared), 1, "a worker lives on");
}

#[test]
fn a_thread_begins_with_the_same_parts_in_each_job() {
    for nodes in [vec![], vec![0, 0, 1, 1]] {
        let pool = Pool::new(3, &Seats { nodes, ..Seats::default() }, SPIN).expect("threads");
        let _awake = pool.stay_awake();
        for parts in [4, 8, 14] {
            for _ in 0..(20 / FEWER).max(1) {
                let did: Vec<Mutex<String>> = (0..parts).map(|_| Mutex::default()).collect();
                let begun = AtomicUsize::new(0);
                pool.run(parts, &|part| {
                    let name = std::thread::current().name().unwrap_or_default().to_owned();
                    *did[part].lock().expect("nobody panics") = name;
                    // Nobody is done with the first of his own before everybody has begun one.
                    begun.fetch_add(1, Ordering::Relaxed);
                    let started = Instant::now();
                    while begun.load(Ordering::Relaxed) < 4 {
                        assert!(started.elapsed() < Duration::from_secs(20), "somebody did not come");
                        yield_now();
                    }
                });
                for worker in 0..3 {
                    let first = of_place(parts, 4, worker + 1).start;
                    assert_eq!(
                        *did[first].lock().expect("nobody panics"),
                        format!("gristmill-{}", worker + 1)
                    );
                }
            }
        }
    }
}

#[test]
fn more_parts_than_can_be_counted_one_by_one_are_done_all_the_same() {
    let pool = pool(1);
    let parts = if cfg!(miri) { 100 } else { 3 * TIMES as usize + 5 };
    let done: Vec<AtomicBool> = (0..parts).map(|_| AtomicBool::new(false)).collect();
    pool.run(parts, &|part| assert!(!done[part].swap(true, Ordering::Relaxed), "{part} twice"));
    assert!(done.iter().all(|done| done.load(Ordering::Relaxed)));
}

#[test]
fn pinned_workers_work() {
    let Some(cpu) = core_affinity::get_core_ids().and_then(|ids| ids.last().copied()) else {
        eprintln!("skipped: the system names no processors");
        return;
    };
    let seat = |cpu, must| Seats { workers: vec![Seat { cpus: vec![cpu], must }], ..Seats::default() };
    let refused = Pool::new(1, &seat(usize::MAX, true), SPIN).expect_err("no such processor");
    assert!(refused.contains("not one that this program may use"), "{refused}");
    for seats in [seat(cpu.id, true), seat(usize::MAX, false)] {
        let pool = Pool::new(1, &seats, SPIN).expect("a seat that is there, or need not be");
        let done = AtomicUsize::new(0);
        pool.run(5, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 5);
    }
}
