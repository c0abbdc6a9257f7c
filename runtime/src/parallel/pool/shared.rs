//! What the threads of a pool share: a job, who is inside it, which parts of it nobody has begun, and who sleeps.

use crate::parallel::division::{of_place, place_of, thread_at};
use crate::parallel::fork::Process;
use crate::parallel::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Cell, Ordering, SPINS, Thread, WAKES, fence, park, spin_loop,
    yield_now,
};
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// [`Shared::state`]: workers inside the job in the low bits, then whether it may be entered, then its number.
pub(super) const INSIDE: u64 = OPEN - 1;
pub(super) const OPEN: u64 = 1 << 16;
pub(super) const NUMBER: u64 = OPEN << 1;

/// [`Shared::begun`]: the bits below a job's number.
pub(super) const TIMES: u64 = NUMBER - 1;

/// What workers do with a part.
pub(super) type Work<'w> = dyn Fn(usize) + Sync + 'w;

/// What threads write, on cache lines of its own: who waits for one word is not disturbed by who writes another. Processors fetch
/// lines of 64 bytes in pairs.
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

pub(super) struct Shared {
    /// The process that has the workers.
    pub(super) process: Process,
    pub(super) state: Padded<AtomicU64>,
    /// The job. Written only by the holder of `taken` while the job is closed and nobody inside.
    pub(super) job: Cell<Option<Job>>,
    /// For each place the number of the last job in which a part of its own was begun, and in the low bits how often one was.
    pub(super) begun: Box<[Padded<AtomicU64>]>,
    /// Places that have parts which nobody has begun.
    pub(super) left: Padded<AtomicUsize>,
    /// For each thread its NUMA node, the calling one first; none: all are on one.
    nodes: Box<[usize]>,
    /// A caller has a job here.
    pub(super) taken: Padded<AtomicBool>,
    /// A part ended in a panic on a worker.
    pub(super) panicked: AtomicBool,
    /// What the first of those panicked with. Written by who sets `panicked`, inside the job; read when nobody is inside.
    pub(super) payload: Cell<Option<Box<dyn Any + Send>>>,
    /// For each worker, whether it sleeps or is about to.
    pub(super) asleep: Box<[Padded<AtomicBool>]>,
    /// Threads that the last job has parts for, the calling one included. Only waking asks for it.
    pub(super) wanted: Padded<AtomicUsize>,
    /// The workers, for each other to wake; set when all have started.
    pub(super) workers: OnceLock<Box<[Thread]>>,
    /// Callers that want workers to stay awake.
    pub(super) awake: Padded<AtomicUsize>,
    pub(super) stop: AtomicBool,
    spin: Duration,
}

#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) work: *const Work<'static>,
    pub(super) parts: usize,
    /// Threads that have parts of their own.
    pub(super) places: usize,
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

/// Waits a moment.
pub(super) fn pause(spins: &mut u32) {
    *spins = spins.saturating_add(1);
    match *spins < SPINS {
        true => spin_loop(),
        // What is waited for may be waiting for this processor.
        false => yield_now(),
    }
}

/// The calling thread's number, and its place in every job; the number of worker `index` is `index + 1`.
pub(super) const CALLER: usize = 0;

/// Workers that the thread of this place wakes, among `workers`.
pub(super) fn woken_by(place: usize, workers: usize) -> Range<usize> {
    let first = place.saturating_mul(WAKES);
    first.min(workers)..first.saturating_add(WAKES).min(workers)
}

impl Shared {
    /// With no job so far, for so many workers on these nodes.
    ///
    /// # Errors
    /// What the system said, if it does not tell processes apart.
    pub(super) fn new(workers: usize, nodes: Box<[usize]>, spin: Duration) -> Result<Shared, String> {
        Ok(Shared {
            process: Process::this()?,
            state: Padded(AtomicU64::new(0)),
            job: Cell::new(None),
            begun: (0..workers + 1).map(|_| Padded(AtomicU64::new(0))).collect(),
            left: Padded(AtomicUsize::new(0)),
            nodes,
            taken: Padded(AtomicBool::new(false)),
            panicked: AtomicBool::new(false),
            payload: Cell::new(None),
            asleep: (0..workers).map(|_| Padded(AtomicBool::new(false))).collect(),
            wanted: Padded(AtomicUsize::new(0)),
            workers: OnceLock::new(),
            awake: Padded(AtomicUsize::new(0)),
            stop: AtomicBool::new(false),
            spin,
        })
    }

    /// Which thread has a place.
    fn thread_at(&self, place: usize, places: usize) -> usize {
        thread_at(place, places, self.begun.len(), !self.nodes.is_empty())
    }

    /// The place of a thread, if it has one.
    fn place_of(&self, thread: usize, places: usize) -> Option<usize> {
        place_of(thread, places, self.begun.len(), !self.nodes.is_empty())
    }

    /// Wakes the sleepers that this thread is to wake, of those that have something to do.
    pub(super) fn wake(&self, thread: usize) {
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
    pub(super) fn take_parts(&self, job: &Job, number: u64, thread: usize) {
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
    pub(super) fn serve(&self, index: usize) {
        // The job that this worker has seen to its end.
        let mut done = 0;
        while let Some(number) = self.wait(index, done) {
            if self.enter(number) {
                self.wake(index + 1);
                // SAFETY: written before the job was opened, and not again before we leave.
                if let Some(job) = self.job.with(|place| unsafe { *place })
                    && let Err(payload) =
                        catch_unwind(AssertUnwindSafe(|| self.take_parts(&job, number, index + 1)))
                {
                    if self.panicked.swap(true, Ordering::Relaxed) {
                        // Dropping it may panic, and then nobody would leave the job.
                        std::mem::forget(payload);
                    } else {
                        // SAFETY: nobody else comes here in this job, and the caller looks at it when all have left.
                        self.payload.with_mut(|place| unsafe { *place = Some(payload) });
                    }
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
pub(super) fn is_new(state: u64, done: u64) -> bool {
    state & OPEN != 0 && state & !(OPEN | INSIDE) != done
}
