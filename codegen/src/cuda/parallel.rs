//! Work that is done by several threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many compilations run at once in a build script: what cargo was given, else the number of processors.
pub fn jobs() -> usize {
    std::env::var("NUM_JOBS")
        .ok()
        .and_then(|value| value.parse().ok())
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
        .unwrap_or(1)
}

/// What `f` makes of each item, in their order, by at most `jobs` threads, which take the next one when they are done.
pub(super) fn in_parallel<T: Sync, R: Send>(jobs: usize, items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, f(item)));
        }
    };
    let mut all = std::thread::scope(|scope| {
        let others: Vec<_> = (1..jobs.clamp(1, items.len().max(1))).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, made)| made).collect()
}
