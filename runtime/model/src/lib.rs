//! The runtime's pool (`runtime/src/parallel/pool`, the same files) over loom's atomics and threads.
//!
//! Loom runs a scenario once for each order in which its threads can run and see each other's writes, up to a number
//! of preemptions. `tests/pool.rs` runs the scenarios below.

mod parallel;

use loom::sync::{Condvar, Mutex};
use loom::thread;
use parallel::pool::{Pool, Seats};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A pool whose workers sleep as soon as they find no job.
fn pool(workers: usize) -> Pool {
    on_nodes(workers, &[])
}

/// The same with the threads on these NUMA nodes.
fn on_nodes(workers: usize, nodes: &[usize]) -> Pool {
    let seats = Seats { nodes: nodes.to_vec(), ..Seats::default() };
    Pool::new(workers, &seats, Duration::ZERO).expect("loom refuses no thread")
}

/// What the parts of a job write, without any synchronization of their own. Loom ends a model in which two of these
/// accesses are not ordered by something else.
struct Places {
    places: Vec<loom::cell::UnsafeCell<u32>>,
    /// Whether the caller has returned. Of std, so that it adds no order that the pool does not make.
    over: AtomicBool,
}

// SAFETY: each place is written by the part of its number, and read when the job is over; that this is so is what
// the model shows, and loom panics where it is not.
unsafe impl Sync for Places {}

impl Places {
    fn new(parts: usize) -> Places {
        let places = (0..parts).map(|_| loom::cell::UnsafeCell::new(0)).collect();
        Places { places, over: AtomicBool::new(false) }
    }

    fn write(&self, part: usize) {
        assert!(!self.over.load(Ordering::SeqCst), "a part began after its job was over");
        // SAFETY: as above.
        self.places[part].with_mut(|place| unsafe { *place += 1 });
        assert!(!self.over.load(Ordering::SeqCst), "a part ended after its job was over");
    }

    /// Each part has run so often, and none runs any more.
    fn expect(&self, times: u32) {
        self.over.store(true, Ordering::SeqCst);
        for (part, place) in self.places.iter().enumerate() {
            // SAFETY: as above.
            let found = place.with(|place| unsafe { *place });
            assert_eq!(found, times, "runs of part {part}");
        }
    }
}

/// Each part of each job runs exactly once; what it writes is seen when the job is over; nobody is inside by then;
/// dropping the pool ends its workers.
pub fn every_part_runs_once(workers: usize, jobs: &[usize]) {
    let pool = pool(workers);
    for parts in jobs {
        let places = Places::new(*parts);
        pool.run(*parts, &|part| places.write(part));
        places.expect(1);
    }
}

/// The same on several NUMA nodes, with fewer parts than threads: another worker than the first has one.
pub fn every_part_runs_once_on_two_nodes() {
    let pool = on_nodes(2, &[0, 1, 1]);
    let places = Places::new(2);
    pool.run(2, &|part| places.write(part));
    places.expect(1);
}

/// A worker that sleeps, or is about to, comes to a job that can't be done without it: each of its two parts waits
/// until the other has begun.
pub fn a_sleeping_worker_is_woken(jobs: usize) {
    let pool = pool(1);
    for _ in 0..jobs {
        let (begun, more) = (Mutex::new(0), Condvar::new());
        pool.run(2, &|_| {
            let mut begun = begun.lock().expect("no part panics");
            *begun += 1;
            more.notify_all();
            while *begun < 2 {
                begun = more.wait(begun).expect("no part panics");
            }
        });
    }
}

/// Workers that are to stay awake are woken, and may sleep again afterwards.
pub fn workers_stay_awake_and_sleep_again() {
    let pool = pool(1);
    let awake = pool.stay_awake();
    let places = Places::new(2);
    pool.run(2, &|part| places.write(part));
    places.expect(1);
    drop(awake);
    let places = Places::new(1);
    pool.run(1, &|part| places.write(part));
    places.expect(1);
}

/// Two callers at a time: one gets the worker, both get their work done.
pub fn two_callers() {
    let pool = Arc::new(pool(1));
    let other = {
        let pool = Arc::clone(&pool);
        thread::spawn(move || {
            let places = Places::new(1);
            pool.run(1, &|part| places.write(part));
            places.expect(1);
        })
    };
    let places = Places::new(2);
    pool.run(2, &|part| places.write(part));
    places.expect(1);
    other.join().expect("it does not panic");
}

/// A part that gives the pool a job of its own.
pub fn a_job_inside_a_job() {
    let pool = pool(1);
    let (outer, inner) = (Places::new(2), Places::new(1));
    pool.run(2, &|part| {
        outer.write(part);
        if part == 1 {
            pool.run(1, &|part| inner.write(part));
        }
    });
    outer.expect(1);
    inner.expect(1);
}

/// A part that panics, on whichever thread: the caller hears of it, not before nobody is inside, and the next job is
/// like any other.
pub fn a_panic_reaches_the_caller(panicking: usize) {
    let pool = pool(1);
    let places = Places::new(2);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        pool.run(2, &|part| {
            places.write(part);
            if part == panicking {
                // Without the message of a panic, some thousand times.
                resume_unwind(Box::new("on purpose"));
            }
        });
    }));
    assert!(outcome.is_err(), "the panic did not reach the caller");
    places.over.store(true, Ordering::SeqCst);
    let places = Places::new(2);
    pool.run(2, &|part| places.write(part));
    places.expect(1);
}
