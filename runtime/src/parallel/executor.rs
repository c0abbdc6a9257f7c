//! Threads of the program around the library, lent to its kernels.

use std::sync::Arc;

/// Threads that somebody else owns: an engine's own, say, or rayon's (`rayon::ThreadPool` and [`RayonGlobal`], with the feature
/// `rayon`). An [`Arc`] of an executor is one too, for a program that goes on using its threads.
/// [`Threads::lent`](crate::Threads::lent) makes kernels run on them, so that a program has no second pool of threads that
/// wait for work.
///
/// ```
/// use gristmill_runtime::{Executor, Threads};
///
/// /// Threads for each job, which cost some ten microseconds each to start.
/// struct Scoped;
///
/// impl Executor for Scoped {
///     fn count(&self) -> usize {
///         3
///     }
///
///     fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
///         std::thread::scope(|scope| {
///             for thread in 1..self.count() {
///                 scope.spawn(move || (thread..parts).step_by(3).for_each(part));
///             }
///             (0..parts).step_by(3).for_each(part);
///         });
///     }
/// }
///
/// let threads = Threads::lent(Scoped)?;
/// let mut squares = [0; 100];
/// threads.indexed(&mut squares, |index, square| {
///     *square = index * index;
///     Ok::<(), gristmill_runtime::Error>(())
/// })?;
/// assert_eq!(squares[99], 9801);
/// # Ok::<(), gristmill_runtime::Error>(())
/// ```
pub trait Executor: Send + Sync {
    /// Threads that work on a job, the calling one included if it works; 0 counts as 1.
    fn count(&self) -> usize;

    /// Calls `part` with each number below `parts` once, on any threads in any order, and returns when all calls have. What it
    /// leaves out is done by the calling thread afterwards, and a second call with a number does nothing. Jobs have up to four parts
    /// a thread, of at least some microseconds each, but those of [`Threads::each`](crate::Threads::each) one for each item; what handing one
    /// over costs is paid for each.
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync));
}

impl<E: Executor + ?Sized> Executor for Arc<E> {
    fn count(&self) -> usize {
        (**self).count()
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        (**self).run(parts, part);
    }
}

/// Handing over a part costs about what it costs `rayon::join`; a job allocates, and wakes threads that sleep. A call from a
/// thread of another pool waits for the job without working on it.
#[cfg(feature = "rayon")]
impl Executor for rayon::ThreadPool {
    fn count(&self) -> usize {
        self.current_num_threads()
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        self.install(|| on_rayon(parts, part));
    }
}

/// The threads that rayon's parallel iterators run on, those of `RAYON_NUM_THREADS`: candle and others work on them. A call from a
/// thread of another pool of rayon's runs on that pool. Costs are those of a `rayon::ThreadPool`.
///
/// ```
/// use gristmill_runtime::{RayonGlobal, Threads};
///
/// let threads = Threads::lent(RayonGlobal)?;
/// assert_eq!(threads.count(), rayon::current_num_threads());
/// # Ok::<(), gristmill_runtime::Error>(())
/// ```
#[cfg(feature = "rayon")]
#[derive(Clone, Copy, Debug)]
pub struct RayonGlobal;

#[cfg(feature = "rayon")]
impl Executor for RayonGlobal {
    fn count(&self) -> usize {
        rayon::current_num_threads()
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        on_rayon(parts, part);
    }
}

#[cfg(feature = "rayon")]
fn on_rayon(parts: usize, part: &(dyn Fn(usize) + Sync)) {
    use rayon::prelude::*;
    (0..parts).into_par_iter().with_max_len(1).for_each(part);
}

#[cfg(all(test, feature = "rayon"))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    #[test]
    fn parts_run_on_rayons_threads() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("two threads");
        let pool = Arc::new(pool);
        let executors: [(&dyn Executor, usize); 3] =
            [(&*pool, 2), (&pool, 2), (&RayonGlobal, rayon::current_num_threads())];
        for (executor, count) in executors {
            assert_eq!(executor.count(), count);
            let seen = Mutex::new(BTreeSet::new());
            executor.run(50, &|part| {
                assert!(rayon::current_thread_index().is_some(), "the calling thread is none of rayon's");
                assert!(seen.lock().expect("nothing panics").insert(part), "{part} twice");
            });
            assert_eq!(seen.into_inner().expect("nothing panics"), (0..50).collect());
        }
    }
}
