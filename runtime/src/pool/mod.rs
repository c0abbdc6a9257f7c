//! Threads that wait for the next job by spinning, for a while.
//!
//! A product of one token takes some ten microseconds, a sleeping thread needs five to be woken, and then often gets
//! the very processor that the waking one is busy on. So workers look for the next job for a while before they
//! sleep, and the calling thread never waits for one to wake up: it takes parts itself until none is left, then
//! closes the job and waits only for those who are in the middle of a part. Sleepers are woken in a tree, as many as there are
//! parts for: the calling thread wakes two, each of them two more.
//!
//! Each thread begins with parts of its own, the same ones in each job of as many parts, so that it finds in its caches, and on
//! several NUMA nodes in its own memory, what it read the time before. Who has done them takes what others have not begun, those of
//! its own node first. (docs/architecture.md has the comparison with other pools.)

use crate::affinity::stay_on;
use crate::division::{of_place, place_of, places, thread_at};
use crate::fork::Process;
use crate::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Builder, Cell, JoinHandle, Ordering, SPINS, Thread, WAKES, channel,
    fence, park, spin_loop, yield_now,
};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// [`Shared::state`]: workers inside the job in the low bits, then whether it may be entered, then its number.
const INSIDE: u64 = OPEN - 1;
const OPEN: u64 = 1 << 16;
const NUMBER: u64 = OPEN << 1;

/// [`Shared::begun`]: the bits below a job's number.
const TIMES: u64 = NUMBER - 1;

/// The most workers that a pool may have: as many as can be counted inside a job.
pub(crate) const MOST_WORKERS: u64 = INSIDE;

/// Where the threads of a pool are to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seats {
    /// For each worker the processors that it stays on; where there is none, it runs where the system puts it.
    pub(crate) workers: Vec<Seat>,
    /// The NUMA node of each thread, the calling one first, those of a node side by side unless somebody wants it otherwise. Empty: all are
    /// on one.
    pub(crate) nodes: Vec<usize>,
}

/// Where a worker is to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seat {
    /// Processors; none: anywhere.
    pub(crate) cpus: Vec<usize>,
    /// Whether a pool without it is none.
    pub(crate) must: bool,
}

/// What workers do with a part.
type Work<'w> = dyn Fn(usize) + Sync + 'w;

/// Workers, and the job that they share with the calling thread.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// In a process that was forked there are no workers, whatever the memory says: nobody may wait for one there.
const FORKED: &str =
    "the process forked in the middle of a job: what other threads had begun of it is not done here";

/// What threads write, on cache lines of its own: who waits for one word is not disturbed by who writes another. Processors fetch
/// lines of 64 bytes in pairs.
#[repr(align(128))]
struct Padded<T>(T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

struct Shared {
    /// The process that has the workers.
    process: Process,
    state: Padded<AtomicU64>,
    /// The job. Written only by the holder of `taken` while the job is closed and nobody inside.
    job: Cell<Option<Job>>,
    /// For each place the number of the last job in which a part of its own was begun, and in the low bits how often one was.
    begun: Box<[Padded<AtomicU64>]>,
    /// Places that have parts which nobody has begun.
    left: Padded<AtomicUsize>,
    /// As [`Seats::nodes`].
    nodes: Box<[usize]>,
    /// A caller has a job here.
    taken: Padded<AtomicBool>,
    /// A part ended in a panic.
    panicked: AtomicBool,
    /// For each worker, whether it sleeps or is about to.
    asleep: Box<[Padded<AtomicBool>]>,
    /// Threads that the last job has parts for, the calling one included. Only waking asks for it.
    wanted: Padded<AtomicUsize>,
    /// The workers, for each other to wake; set when all have started.
    workers: OnceLock<Box<[Thread]>>,
    /// Callers that want workers to stay awake.
    awake: Padded<AtomicUsize>,
    stop: AtomicBool,
    spin: Duration,
}

#[derive(Clone, Copy)]
struct Job {
    work: *const Work<'static>,
    parts: usize,
    /// Threads that have parts of their own.
    places: usize,
}

// SAFETY: `job` is written by one caller while the job is closed and no worker inside, and read by workers only
// while they are inside (`enter`). What it points to is `Sync`, and outlives the job: `Pool::run` does not return, and
// does not unwind, before the job is closed and everybody has left.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is not bound to a thread.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({} workers)", self.asleep.len())
    }
}

impl Pool {
    /// Starts `workers` workers, no more than [`MOST_WORKERS`], on their seats.
    ///
    /// # Errors
    /// What the system said, if it refused a thread or a processor.
    pub(crate) fn new(workers: usize, seats: &Seats, spin: Duration) -> Result<Pool, String> {
        let shared = Arc::new(Shared {
            process: Process::this()?,
            state: Padded(AtomicU64::new(0)),
            job: Cell::new(None),
            begun: (0..workers + 1).map(|_| Padded(AtomicU64::new(0))).collect(),
            left: Padded(AtomicUsize::new(0)),
            nodes: seats.nodes.as_slice().into(),
            taken: Padded(AtomicBool::new(false)),
            panicked: AtomicBool::new(false),
            asleep: (0..workers).map(|_| Padded(AtomicBool::new(false))).collect(),
            wanted: Padded(AtomicUsize::new(0)),
            workers: OnceLock::new(),
            awake: Padded(AtomicUsize::new(0)),
            stop: AtomicBool::new(false),
            spin,
        });
        // Dropped on an error, which ends the workers that have started.
        let mut pool = Pool { shared, workers: Vec::with_capacity(workers) };
        for index in 0..workers {
            let seat = seats.workers.get(index).cloned().unwrap_or_default();
            let cpu = seat.cpus.first().copied().unwrap_or_default();
            let shared = Arc::clone(&pool.shared);
            let (tell, told) = channel();
            let run = move || {
                // The caller waits for this word; were it gone, there would be nobody to tell.
                let _ = tell.send(seat.cpus.is_empty() || stay_on(&seat.cpus) || !seat.must);
                shared.serve(index);
            };
            let thread = Builder::new().name(format!("gristmill-{}", index + 1)).spawn(run);
            pool.workers.push(thread.map_err(|error| error.to_string())?);
            if !told.recv().unwrap_or(false) {
                return Err(format!("processor {cpu} is not one that this program may use"));
            }
        }
        let workers = pool.workers.iter().map(|worker| worker.thread().clone()).collect();
        // Nobody else sets it.
        let _ = pool.shared.workers.set(workers);
        Ok(pool)
    }

    /// Whether every worker sleeps: waking them costs more than a small job.
    pub(crate) fn sleeps(&self) -> bool {
        self.shared.asleep.iter().all(|asleep| asleep.load(Ordering::Relaxed))
    }

    /// Keeps workers from falling asleep for as long as the returned value lives.
    pub(crate) fn stay_awake(&self) -> Awake<'_> {
        self.shared.awake.fetch_add(1, Ordering::SeqCst);
        self.shared.wake(CALLER);
        Awake(&self.shared)
    }

    /// Does `work` for each number below `parts`, on this thread and on workers that are free. While another thread
    /// has a job here (or a part of this very job asks), this thread does all of it; so it does in a process that was
    /// forked from the one that has the workers.
    ///
    /// # Panics
    /// If `work` does; in a process that was forked by a part of this job, if a worker was in the middle of another part.
    #[allow(dead_code, reason = "for this pool's tests and its model")]
    pub(crate) fn run(&self, parts: usize, work: &Work<'_>) {
        self.run_at(parts, places(parts, self.shared.begun.len()), work);
    }

    /// As [`run`](Pool::run), where so many threads have parts of their own: at most as many as there are.
    pub(crate) fn run_at(&self, parts: usize, places: usize, work: &Work<'_>) {
        let shared = &*self.shared;
        if !shared.process.is_this() || shared.taken.swap(true, Ordering::Acquire) {
            (0..parts).for_each(work);
            return;
        }
        let work: *const Work<'_> = work;
        // SAFETY: only the lifetime changes; `Closing` sees to it that nobody uses it after this call.
        let work: *const Work<'static> = unsafe { std::mem::transmute(work) };
        let job = Job { work, parts, places: places.min(shared.begun.len()) };
        // SAFETY: the job is closed with nobody inside, since `taken` was free, and it is ours now.
        shared.job.with_mut(|place| unsafe { *place = Some(job) });
        shared.left.store(job.places, Ordering::Relaxed);
        shared.wanted.store(job.places, Ordering::Relaxed);
        let number = (shared.state.load(Ordering::Relaxed) & !(OPEN | INSIDE)).wrapping_add(NUMBER);
        let closing = Closing(shared);
        shared.state.store(number | OPEN, Ordering::SeqCst);
        shared.wake(CALLER);
        shared.take_parts(&job, number, CALLER);
        drop(closing);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.shared.process.is_this() {
            // They are in the process that started them: here their handles name nothing, and what they had is left.
            self.workers.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in &self.workers {
            worker.thread().unpark();
        }
        for worker in self.workers.drain(..) {
            // Panics of parts are caught; a worker itself has nothing that panics.
            let _ = worker.join();
        }
    }
}

/// See [`Pool::stay_awake`].
pub(crate) struct Awake<'p>(&'p Shared);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.awake.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends a job, whether the caller returns or unwinds.
struct Closing<'s>(&'s Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        shared.state.fetch_and(!OPEN, Ordering::Relaxed);
        let mut spins = 0;
        // Acquire: what workers wrote before they left is seen from here on.
        while shared.state.load(Ordering::Acquire) & INSIDE != 0 {
            if !shared.process.is_this() {
                // Nobody will leave. Nobody reads the job either.
                if !std::thread::panicking() {
                    panic!("{FORKED}");
                }
                return;
            }
            pause(&mut spins);
        }
        let panicked = shared.panicked.swap(false, Ordering::Relaxed);
        shared.taken.store(false, Ordering::Release);
        if panicked && !std::thread::panicking() {
            panic!("a part of a job panicked on another thread");
        }
    }
}

/// Waits a moment.
fn pause(spins: &mut u32) {
    *spins = spins.saturating_add(1);
    match *spins < SPINS {
        true => spin_loop(),
        // What is waited for may be waiting for this processor.
        false => yield_now(),
    }
}

/// The calling thread's number, and its place in every job; the number of worker `index` is `index + 1`.
const CALLER: usize = 0;

/// Workers that the thread of this place wakes, among `workers`.
fn woken_by(place: usize, workers: usize) -> Range<usize> {
    let first = place.saturating_mul(WAKES);
    first.min(workers)..first.saturating_add(WAKES).min(workers)
}

impl Shared {
    /// Which thread has a place.
    fn thread_at(&self, place: usize, places: usize) -> usize {
        thread_at(place, places, self.begun.len(), !self.nodes.is_empty())
    }

    /// The place of a thread, if it has one.
    fn place_of(&self, thread: usize, places: usize) -> Option<usize> {
        place_of(thread, places, self.begun.len(), !self.nodes.is_empty())
    }

    /// Wakes the sleepers that this thread is to wake, of those that have something to do.
    fn wake(&self, thread: usize) {
        let Some(workers) = self.workers.get() else { return };
        let places = match self.awake.load(Ordering::Relaxed) {
            0 => self.wanted.load(Ordering::Relaxed).min(workers.len() + 1),
            _ => workers.len() + 1,
        };
        let Some(place) = self.place_of(thread, places) else { return };
        let mine = woken_by(place, places.saturating_sub(1));
        if mine.is_empty() {
            return;
        }
        // With the fence in `sleep`: either we see the flag, or the worker sees the job (or `awake`) that we have seen or made.
        fence(Ordering::SeqCst);
        for index in mine.map(|index| self.thread_at(index + 1, places) - 1) {
            if let (Some(worker), Some(asleep)) = (workers.get(index), self.asleep.get(index))
                && asleep.load(Ordering::Relaxed)
            {
                worker.unpark();
            }
        }
    }

    /// Does the parts of this thread, then those that others have not begun, until none is left. A thread without a place has
    /// nothing to do: where there is one, parts take as long each, and fewer threads are done with them as early.
    fn take_parts(&self, job: &Job, number: u64, thread: usize) {
        let Some(place) = self.place_of(thread, job.places) else { return };
        self.take_parts_of(place, job, number);
        let node = |place: usize| self.nodes.get(self.thread_at(place, job.places));
        for of_my_node in [true, false] {
            for other in (place + 1..job.places).chain(0..place) {
                if self.left.load(Ordering::Relaxed) == 0 {
                    return;
                }
                if (node(other) == node(place)) == of_my_node {
                    self.take_parts_of(other, job, number);
                }
            }
            if self.nodes.is_empty() {
                return;
            }
        }
    }

    /// Does parts of one place until all of them were begun.
    fn take_parts_of(&self, place: usize, job: &Job, number: u64) {
        let Some(begun) = self.begun.get(place) else { return };
        // SAFETY: the caller is inside the job, or is who made it; so the work is alive.
        let work = unsafe { &*job.work };
        let own = of_place(job.parts, job.places, place);
        // As many at a time as make their number fit into the low bits: one, in any job whose parts are worth it.
        let at_once = own.len().div_ceil(TIMES as usize).max(1);
        let times = own.len().div_ceil(at_once) as u64;
        let mut seen = begun.load(Ordering::Relaxed);
        loop {
            // What another job has left stands for nothing.
            let before = if seen & !TIMES == number { seen & TIMES } else { 0 };
            if before >= times {
                return;
            }
            // Relaxed: only who takes which part is decided here; what parts write is ordered by `state`.
            let taken = number | (before + 1);
            if let Err(now) = begun.compare_exchange_weak(seen, taken, Ordering::Relaxed, Ordering::Relaxed) {
                seen = now;
                continue;
            }
            if before + 1 == times {
                self.left.fetch_sub(1, Ordering::Relaxed);
            }
            let first = own.start + before as usize * at_once;
            (first..(first + at_once).min(own.end)).for_each(work);
            seen = begun.load(Ordering::Relaxed);
        }
    }

    /// A worker's life.
    fn serve(&self, index: usize) {
        // The job that this worker has seen to its end.
        let mut done = 0;
        while let Some(number) = self.wait(index, done) {
            if self.enter(number) {
                self.wake(index + 1);
                // SAFETY: written before the job was opened, and not again before we leave.
                if let Some(job) = self.job.with(|place| unsafe { *place })
                    && catch_unwind(AssertUnwindSafe(|| self.take_parts(&job, number, index + 1))).is_err()
                {
                    self.panicked.store(true, Ordering::Relaxed);
                }
                // Release: what the parts wrote is seen by who waits for us to leave.
                self.state.fetch_sub(1, Ordering::Release);
            }
            done = number;
        }
    }

    /// Waits for a job other than `done`; `None` if it is time to end.
    fn wait(&self, index: usize, done: u64) -> Option<u64> {
        let mut since: Option<Instant> = None;
        let mut spins = 0;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let state = self.state.load(Ordering::Relaxed);
            if is_new(state, done) {
                return Some(state & !(OPEN | INSIDE));
            }
            pause(&mut spins);
            if spins >= SPINS
                && self.awake.load(Ordering::Relaxed) == 0
                && since.get_or_insert_with(Instant::now).elapsed() >= self.spin
            {
                self.sleep(index, done);
                (since, spins) = (None, 0);
            }
        }
    }

    fn sleep(&self, index: usize, done: u64) {
        let Some(asleep) = self.asleep.get(index) else { return };
        asleep.store(true, Ordering::Relaxed);
        // With the fence in `wake`: see there.
        fence(Ordering::SeqCst);
        let wanted = self.stop.load(Ordering::Relaxed)
            || self.awake.load(Ordering::Relaxed) > 0
            || is_new(self.state.load(Ordering::Relaxed), done);
        if !wanted {
            // It may return for no reason; `wait` looks again.
            park();
        }
        asleep.store(false, Ordering::Relaxed);
        if self.awake.load(Ordering::Relaxed) > 0 {
            self.wake(index + 1);
        }
    }

    /// Goes inside the job of this number, if it is still open.
    fn enter(&self, number: u64) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        while state & !INSIDE == number | OPEN {
            // Acquire: the job is read after this.
            match self.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }
}

/// Whether a state is that of an open job other than `done`.
fn is_new(state: u64, done: u64) -> bool {
    state & OPEN != 0 && state & !(OPEN | INSIDE) != done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

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
            assert!(outcome.is_err());
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
                level =
                    level.iter().flat_map(|place| woken_by(*place, workers)).map(|index| index + 1).collect();
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
}
