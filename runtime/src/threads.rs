//! Threads for one job: a pool of its own or none, and how a job is divided among them.

use crate::error::Error;

/// Multiply-accumulates (or bytes) that are worth a thread of their own. Waking a pool costs some
/// microseconds, in which one core does about a million.
const GRAIN: u64 = 1 << 19;

/// Parts handed out for each thread, so that a thread that the system held up is helped by the others.
const PARTS_PER_THREAD: usize = 4;

/// The threads that a kernel may use. Made once and passed to each run.
#[derive(Debug)]
pub struct Threads {
    pool: Option<rayon::ThreadPool>,
    count: usize,
    grain: u64,
}

impl Threads {
    /// The calling thread alone. Runs neither allocate nor lock.
    pub const fn single() -> Threads {
        Threads { pool: None, count: 1, grain: GRAIN }
    }

    /// A pool of `count` threads; 1 (or 0) is the calling thread alone.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system refuses.
    pub fn new(count: usize) -> Result<Threads, Error> {
        if count <= 1 {
            return Ok(Threads::single());
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|index| format!("gristmill-{index}"))
            .build()
            .map_err(|error| Error::Threads { count, why: error.to_string() })?;
        Ok(Threads::from_pool(pool))
    }

    /// A pool that the caller made (for pinned threads, say).
    pub fn from_pool(pool: rayon::ThreadPool) -> Threads {
        let count = pool.current_num_threads();
        Threads { pool: Some(pool), count, grain: GRAIN }
    }

    /// Sets the work, in multiply-accumulates, below which a job is not divided further.
    pub fn with_grain(self, grain: u64) -> Threads {
        Threads { grain: grain.max(1), ..self }
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Runs `work` on a thread of the pool (without one, right here). Runs of kernels inside it save the
    /// hand-over from the calling thread, some microseconds each: put a whole forward pass in one.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Into how many parts a job of `work` goes that can be cut in `granules` pieces; at least 1.
    pub(crate) fn parts(&self, work: u64, granules: usize) -> usize {
        if self.count <= 1 {
            return 1;
        }
        let wanted = work / self.grain;
        let most = self.count.saturating_mul(PARTS_PER_THREAD).min(granules);
        usize::try_from(wanted).unwrap_or(usize::MAX).clamp(1, most.max(1))
    }

    /// The most parts that [`Threads::parts`] gives.
    pub(crate) fn most_parts(&self) -> usize {
        if self.count <= 1 { 1 } else { self.count.saturating_mul(PARTS_PER_THREAD) }
    }

    /// Runs `job` in `parts` parts. `split(job, left, all)` cuts off the first `left` of `all` parts.
    /// Of several errors the one of the first part is given back.
    pub(crate) fn divide<J, E>(
        &self,
        parts: usize,
        job: J,
        split: &(impl Fn(J, usize, usize) -> (J, J) + Sync),
        run: &(impl Fn(J) -> Result<(), E> + Sync),
    ) -> Result<(), E>
    where
        J: Send,
        E: Send,
    {
        match &self.pool {
            Some(pool) if parts > 1 => pool.install(|| halve(parts, job, split, run)),
            Some(_) | None => run(job),
        }
    }
}

/// `rayon::join` all the way down: jobs live on the stack, so nothing is allocated for them.
fn halve<J, E>(
    parts: usize,
    job: J,
    split: &(impl Fn(J, usize, usize) -> (J, J) + Sync),
    run: &(impl Fn(J) -> Result<(), E> + Sync),
) -> Result<(), E>
where
    J: Send,
    E: Send,
{
    if parts <= 1 {
        return run(job);
    }
    let left = parts / 2;
    let (first, second) = split(job, left, parts);
    let (first, second) =
        rayon::join(|| halve(left, first, split, run), || halve(parts - left, second, split, run));
    first.and(second)
}

/// How many of `pieces` go to the first `left` of `all` parts.
pub(crate) fn share(pieces: usize, left: usize, all: usize) -> usize {
    // u128: the product of two lengths.
    let share = pieces as u128 * left as u128 / all.max(1) as u128;
    usize::try_from(share).unwrap_or(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;
    use std::sync::Mutex;

    #[test]
    fn every_piece_is_run_once() -> Result<(), Error> {
        for count in [1, 2, 5] {
            let threads = Threads::new(count)?.with_grain(1);
            for pieces in [0usize, 1, 2, 7, 100] {
                let seen = Mutex::new(vec![0; pieces]);
                let split = |job: Range<usize>, left, all| {
                    let mid = job.start + share(job.len(), left, all);
                    (job.start..mid, mid..job.end)
                };
                let run = |job: Range<usize>| -> Result<(), Error> {
                    let mut seen = seen.lock().expect("no thread panics");
                    job.for_each(|i| seen[i] += 1);
                    Ok(())
                };
                threads.divide(threads.parts(1 << 20, pieces), 0..pieces, &split, &run)?;
                assert!(seen.lock().expect("no thread panics").iter().all(|times| *times == 1));
            }
        }
        Ok(())
    }

    #[test]
    fn the_first_error_wins() -> Result<(), Error> {
        let threads = Threads::new(4)?.with_grain(1);
        let split = |job: Range<usize>, left, all| {
            let mid = job.start + share(job.len(), left, all);
            (job.start..mid, mid..job.end)
        };
        let outcome = threads
            .divide(16, 0..16usize, &split, &|job| if job.start >= 5 { Err(job.start) } else { Ok(()) });
        assert_eq!(outcome, Err(5));
        Ok(())
    }

    #[test]
    fn installed_work_runs_in_the_pool() -> Result<(), Error> {
        let name = || std::thread::current().name().map(str::to_owned);
        assert!(Threads::new(2)?.install(name).is_some_and(|name| name.starts_with("gristmill-")));
        assert_eq!(Threads::single().install(name), name());
        Ok(())
    }

    #[test]
    fn small_work_stays_together() -> Result<(), Error> {
        let threads = Threads::new(2)?;
        assert_eq!(threads.parts(1000, 100), 1);
        assert_eq!(threads.parts(u64::MAX, 100), 8);
        assert_eq!(threads.parts(u64::MAX, 3), 3);
        assert_eq!(threads.parts(u64::MAX, 0), 1);
        assert_eq!(Threads::single().parts(u64::MAX, 100), 1);
        Ok(())
    }
}
