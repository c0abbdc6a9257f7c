//! How the threads of a job were used: how long each worked while it lasted. Measured where an observer asks for it, for the launches whose time
//! is taken.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How the threads of a launch were used; of several jobs in one launch all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadUse {
    /// Threads that there were.
    pub threads: usize,
    /// Threads of these that did something.
    pub worked: usize,
    /// Parts that the job was divided into.
    pub parts: usize,
    /// How long it lasted.
    pub wall: Duration,
    /// How long all threads together worked on parts.
    pub busy: Duration,
    /// How long the one did that worked longest.
    pub longest: Duration,
}

impl ThreadUse {
    /// The part of the time of all threads that they worked: 1 if nobody waited.
    pub fn utilisation(&self) -> Option<f64> {
        let available = self.wall.as_secs_f64() * self.threads as f64;
        (available > 0.0).then(|| self.busy.as_secs_f64() / available)
    }

    /// How much longer the busiest thread worked than the mean of all: 1 if all worked as long, as many as there are threads if one did
    /// everything.
    pub fn imbalance(&self) -> Option<f64> {
        let mean = self.busy.as_secs_f64() / self.threads.max(1) as f64;
        (mean > 0.0).then(|| self.longest.as_secs_f64() / mean)
    }

    /// One job behind another.
    fn and(self, other: ThreadUse) -> ThreadUse {
        ThreadUse {
            threads: self.threads.max(other.threads),
            worked: self.worked.max(other.worked),
            parts: self.parts + other.parts,
            wall: self.wall + other.wall,
            busy: self.busy + other.busy,
            longest: self.longest + other.longest,
        }
    }
}

/// What the thread that launches asks of the jobs in the launch.
#[derive(Clone, Copy)]
enum Asked {
    Nothing,
    /// Their use of threads, and what they said so far.
    Use(Option<ThreadUse>),
}

thread_local! {
    static ASKED: Cell<Asked> = const { Cell::new(Asked::Nothing) };
}

/// Runs `run`, and says how the threads of the jobs were used that this thread started in it; `None` if it started none.
pub(crate) fn measured<R>(run: impl FnOnce() -> R) -> (R, Option<ThreadUse>) {
    /// Puts back what was asked before, also where `run` panics.
    struct Before(Asked);
    impl Drop for Before {
        fn drop(&mut self) {
            ASKED.set(self.0);
        }
    }
    let before = Before(ASKED.replace(Asked::Use(None)));
    let outcome = run();
    let said = match ASKED.get() {
        Asked::Use(said) => said,
        Asked::Nothing => None,
    };
    drop(before);
    (outcome, said)
}

/// A job of which somebody wants to know how its threads are used.
pub(crate) struct Watch {
    began: Instant,
    parts: Vec<PartTime>,
}

#[derive(Default)]
struct PartTime {
    nanoseconds: AtomicU64,
    thread: AtomicUsize,
}

impl Watch {
    /// Begins to watch a job of so many parts, if the thread that calls this was asked to.
    pub(crate) fn begin(parts: usize) -> Option<Watch> {
        match ASKED.get() {
            Asked::Nothing => None,
            Asked::Use(_) => Some(Watch {
                began: Instant::now(),
                parts: (0..parts).map(|_| PartTime::default()).collect(),
            }),
        }
    }

    /// Does a part and keeps how long that took.
    pub(crate) fn part<R>(&self, part: usize, run: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let outcome = run();
        if let Some(place) = self.parts.get(part) {
            let nanoseconds = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            // Relaxed: they are read when the job is over, which orders them.
            place.nanoseconds.store(nanoseconds, Ordering::Relaxed);
            place.thread.store(this_thread(), Ordering::Relaxed);
        }
        outcome
    }

    /// The job is over: keeps for [`measured`] how its threads were used, of `threads`.
    pub(crate) fn end(self, threads: usize) {
        let wall = self.began.elapsed();
        let times =
            self.parts.into_iter().map(|part| (part.thread.into_inner(), part.nanoseconds.into_inner()));
        let own = of_parts(times.collect(), threads, wall);
        if let Asked::Use(said) = ASKED.get() {
            ASKED.set(Asked::Use(Some(said.map_or(own, |said| said.and(own)))));
        }
    }
}

/// A number that no other living thread has, other than 0.
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

/// From the thread and the nanoseconds of each part; thread 0 is none.
fn of_parts(mut times: Vec<(usize, u64)>, threads: usize, wall: Duration) -> ThreadUse {
    let parts = times.len();
    times.retain(|(thread, _)| *thread != 0);
    times.sort_unstable();
    let of_threads =
        times.chunk_by(|a, b| a.0 == b.0).map(|of_one| of_one.iter().map(|(_, time)| time).sum::<u64>());
    let (mut worked, mut busy, mut longest) = (0, 0, 0);
    for time in of_threads {
        worked += 1;
        busy += time;
        longest = longest.max(time);
    }
    ThreadUse {
        // Lent threads can be more than was said.
        threads: threads.max(worked),
        worked,
        parts,
        wall,
        busy: Duration::from_nanos(busy),
        longest: Duration::from_nanos(longest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_parts_are_added_up_by_thread() {
        let wall = Duration::from_nanos(100);
        let use_of = |times: &[(usize, u64)], threads| of_parts(times.to_vec(), threads, wall);
        let uneven = use_of(&[(7, 30), (9, 10), (7, 50), (9, 10)], 4);
        assert_eq!((uneven.threads, uneven.worked, uneven.parts), (4, 2, 4));
        assert_eq!((uneven.busy.as_nanos(), uneven.longest.as_nanos()), (100, 80));
        assert_eq!((uneven.utilisation(), uneven.imbalance()), (Some(0.25), Some(3.2)));
        let even = use_of(&[(7, 100), (9, 100)], 2);
        assert_eq!((even.utilisation(), even.imbalance()), (Some(1.0), Some(1.0)));
        // A part that did not come to its end.
        assert_eq!(use_of(&[(0, 0), (7, 10)], 2).worked, 1);
        let nobody = use_of(&[], 2);
        assert_eq!((nobody.worked, nobody.imbalance()), (0, None));
        assert_eq!(use_of(&[(1, 1), (2, 1), (3, 1)], 2).threads, 3, "lent threads");
        let both = uneven.and(even);
        assert_eq!((both.threads, both.parts, both.busy.as_nanos()), (4, 6, 300));
    }

    #[test]
    fn nothing_is_measured_unless_it_is_asked_for() {
        assert!(Watch::begin(3).is_none());
        let (inner, outer) = measured(|| {
            let watch = Watch::begin(2).expect("asked for");
            watch.part(0, || ());
            let (_, inner) = measured(|| Watch::begin(1).expect("asked for too").end(5));
            watch.end(2);
            inner
        });
        assert_eq!(inner.map(|inner| (inner.threads, inner.worked)), Some((5, 0)));
        assert_eq!(outer.map(|outer| (outer.threads, outer.worked, outer.parts)), Some((2, 1, 2)));
        assert_eq!(measured(|| 3), (3, None));
        let _ = std::panic::catch_unwind(|| measured(|| panic!("on purpose")));
        assert!(Watch::begin(3).is_none());
    }
}
