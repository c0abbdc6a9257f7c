//! Threads of the program around the library, lent to its kernels.

/// Threads that somebody else owns: an engine's own, say, or rayon's (`rayon::ThreadPool`, with the feature `rayon`).
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
    /// a thread, of at least some microseconds each; what handing one over costs is paid for each.
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync));
}

/// Handing over a part costs about what it costs `rayon::join`; a job allocates, and wakes threads that sleep. A call from a
/// thread of another pool waits for the job without working on it.
#[cfg(feature = "rayon")]
impl Executor for rayon::ThreadPool {
    fn count(&self) -> usize {
        self.current_num_threads()
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        use rayon::prelude::*;
        self.install(|| (0..parts).into_par_iter().with_max_len(1).for_each(part));
    }
}
