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

mod shared;
#[cfg(test)]
mod tests;

use crate::parallel::affinity::stay_on;
use crate::parallel::division::places;
use crate::parallel::sync::{Builder, JoinHandle, Ordering, channel};
use shared::{CALLER, INSIDE, Job, NUMBER, OPEN, Shared, Work, pause};
use std::sync::Arc;
use std::time::Duration;

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

/// Workers, and the job that they share with the calling thread.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// In a process that was forked there are no workers, whatever the memory says: nobody may wait for one there.
const FORKED: &str =
    "the process forked in the middle of a job: what other threads had begun of it is not done here";

impl Pool {
    /// Starts `workers` workers, no more than [`MOST_WORKERS`], on their seats.
    ///
    /// # Errors
    /// What the system said, if it refused a thread or a processor.
    pub(crate) fn new(workers: usize, seats: &Seats, spin: Duration) -> Result<Pool, String> {
        let shared = Arc::new(Shared::new(workers, seats.nodes.as_slice().into(), spin)?);
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
        let payload = match shared.panicked.swap(false, Ordering::Relaxed) {
            // SAFETY: who wrote it has left, and the job is still this caller's.
            true => shared.payload.with_mut(|place| unsafe { (*place).take() }),
            false => None,
        };
        shared.taken.store(false, Ordering::Release);
        match payload {
            // With what it said: a worker's panic is the caller's.
            Some(payload) if !std::thread::panicking() => std::panic::resume_unwind(payload),
            // Dropping it may panic too, which would end the program.
            payload => std::mem::forget(payload),
        }
    }
}
