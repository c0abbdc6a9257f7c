//! How a job is divided among threads, and the parts of it that they run.

use super::{GRAIN, Others, Threads};
use crate::parallel::division::{self, PARTS_PER_THREAD};
use crate::parallel::thread_use::Watch;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

/// Work for which sleeping threads are not woken: waking them takes longer than doing it.
const WORTH_WAKING: u64 = 1 << 21;

/// Parts for which a job needs no memory but the stack.
pub(super) const PARTS_ON_STACK: usize = 64;

impl Threads {
    /// Into how many parts a job of `work` goes that can be cut in `granules` pieces; at least 1.
    pub(crate) fn parts(&self, work: u64, granules: usize) -> usize {
        if self.count <= 1 {
            return 1;
        }
        if work < WORTH_WAKING
            && self.grain.is_none()
            && matches!(&self.others, Others::Pool(pool) if pool.sleeps())
        {
            return 1;
        }
        self.divided(work, granules)
    }

    fn grain(&self) -> u64 {
        self.grain.unwrap_or(GRAIN)
    }

    /// [`Threads::parts`] for threads that are awake.
    pub(super) fn divided(&self, work: u64, granules: usize) -> usize {
        let wanted = usize::try_from(work / self.grain()).unwrap_or(usize::MAX);
        division::parts(self.count, wanted, granules)
    }

    /// [`Threads::parts`] of `rows` rows of `k` values that are converted to or from f32.
    pub(crate) fn parts_of_rows(&self, rows: usize, k: usize) -> usize {
        self.parts(work_of_rows(rows, k), rows)
    }

    /// The most parts that [`Threads::parts`] gives.
    pub(crate) fn most_parts(&self) -> usize {
        most_parts(self.count)
    }

    /// These threads, or so many of them where that is fewer.
    pub(crate) fn at_most(&self, most: Option<usize>) -> SomeThreads<'_> {
        SomeThreads { threads: self, count: most.map_or(self.count, |most| most.clamp(1, self.count)) }
    }

    /// Runs `job` in `parts` parts of equal cost. `split(job, left, all)` cuts off the first `left` of `all` parts.
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
        self.divide_at(parts, division::places(parts, self.count), job, split, run)
    }

    /// As [`divide`](Threads::divide), where so many threads have parts of their own. Those that have none do nothing.
    pub(super) fn divide_at<J, E>(
        &self,
        parts: usize,
        places: usize,
        job: J,
        split: &(impl Fn(J, usize, usize) -> (J, J) + Sync),
        run: &(impl Fn(J) -> Result<(), E> + Sync),
    ) -> Result<(), E>
    where
        J: Send,
        E: Send,
    {
        if parts <= 1 || matches!(self.others, Others::None) {
            let Some(watch) = Watch::begin(1) else { return run(job) };
            let outcome = watch.part(0, || run(job));
            watch.end(self.count);
            return outcome;
        }
        if parts <= PARTS_ON_STACK {
            // On the stack, so that a run allocates nothing.
            let pieces: [Mutex<Option<J>>; PARTS_ON_STACK] = [const { Mutex::new(None) }; PARTS_ON_STACK];
            return spread(&self.others, [places, self.count], &pieces[..parts], job, split, run);
        }
        let pieces: Vec<Mutex<Option<J>>> = (0..parts).map(|_| Mutex::new(None)).collect();
        spread(&self.others, [places, self.count], &pieces, job, split, run)
    }

    /// As [`divide`](Threads::divide) for a job that can't fail.
    pub(crate) fn divide_all<J: Send>(
        &self,
        parts: usize,
        job: J,
        split: &(impl Fn(J, usize, usize) -> (J, J) + Sync),
        run: &(impl Fn(J) + Sync),
    ) {
        self.at_most(None).divide_all(parts, job, split, run);
    }
}

/// Some of the threads that there are, for one job.
#[derive(Clone, Copy)]
pub(crate) struct SomeThreads<'t> {
    threads: &'t Threads,
    count: usize,
}

impl SomeThreads<'_> {
    /// How many they are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// As [`Threads::most_parts`].
    pub(crate) fn most_parts(&self) -> usize {
        most_parts(self.count)
    }

    /// As [`Threads::parts`].
    pub(crate) fn parts(&self, work: u64, granules: usize) -> usize {
        let parts = self.threads.parts(work, granules);
        if self.count == self.threads.count || parts <= 1 {
            return parts;
        }
        let wanted = usize::try_from(work / self.threads.grain()).unwrap_or(usize::MAX);
        let parts = division::parts(self.count, wanted, granules);
        match self.threads.others {
            // All of them take parts, so there are no more than threads.
            Others::Lent(_) => parts.min(self.count),
            Others::None | Others::Pool(_) => parts,
        }
    }

    /// As [`Threads::divide_all`].
    pub(crate) fn divide_all<J: Send>(
        &self,
        parts: usize,
        job: J,
        split: &(impl Fn(J, usize, usize) -> (J, J) + Sync),
        run: &(impl Fn(J) + Sync),
    ) {
        let run = |job| -> Result<(), Infallible> {
            run(job);
            Ok(())
        };
        match self.threads.divide_at(parts, division::places(parts, self.count), job, split, &run) {
            Ok(()) => {}
            Err(never) => match never {},
        }
    }

    /// As [`Threads::converted_rows`].
    pub(crate) fn converted_rows<T, E>(
        &self,
        items: &mut [T],
        size: usize,
        k: usize,
        run: impl Fn(usize, &mut [T]) -> Result<(), E> + Sync,
    ) -> Result<(), E>
    where
        T: Send,
        E: Send,
    {
        let rows = items.len() / size.max(1);
        let parts = self.parts(work_of_rows(rows, k), rows);
        self.threads.chunks_in(parts, division::places(parts, self.count), items, size, run)
    }
}

/// The work of converting rows of `k` values: quantizing a value of f32 costs about as much as sixteen multiply-accumulates of a product.
fn work_of_rows(rows: usize, k: usize) -> u64 {
    (rows as u64).saturating_mul(k as u64).saturating_mul(16)
}

/// The most parts that so many threads get.
fn most_parts(count: usize) -> usize {
    if count <= 1 { 1 } else { count.saturating_mul(PARTS_PER_THREAD) }
}

/// The first `left` of `all` equal shares of what is there, which stays without them.
fn cut<J>(
    rest: &mut Option<J>,
    left: usize,
    all: usize,
    split: &impl Fn(J, usize, usize) -> (J, J),
) -> Option<J> {
    let job = rest.take()?;
    if left >= all {
        return Some(job);
    }
    let (piece, after) = split(job, left, all);
    *rest = Some(after);
    Some(piece)
}

/// Cuts `job` into as many pieces as there is room for, and runs them on `count` threads, of which `places` have parts of their own.
fn spread<J, E>(
    others: &Others,
    [places, count]: [usize; 2],
    pieces: &[Mutex<Option<J>>],
    job: J,
    split: &(impl Fn(J, usize, usize) -> (J, J) + Sync),
    run: &(impl Fn(J) -> Result<(), E> + Sync),
) -> Result<(), E>
where
    J: Send,
    E: Send,
{
    let mut rest = Some(job);
    for place in 0..places {
        // First what each place has, which is then the same for any number of parts; of that the parts.
        let parts = division::of_place(pieces.len(), places, place);
        let mut own = cut(&mut rest, parts.len(), pieces.len() - parts.start, split);
        for part in parts.clone() {
            if let (Some(place), Some(piece)) = (pieces.get(part), cut(&mut own, 1, parts.end - part, split))
            {
                put(place, piece);
            }
        }
    }
    let failed: Mutex<Option<(usize, E)>> = Mutex::new(None);
    let watch = Watch::begin(pieces.len());
    let part = |part: usize| {
        let Some(piece) = pieces.get(part).and_then(take) else { return };
        let outcome = match &watch {
            None => run(piece),
            Some(watch) => watch.part(part, || run(piece)),
        };
        if let Err(error) = outcome {
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            if failed.as_ref().is_none_or(|(first, _)| part < *first) {
                *failed = Some((part, error));
            }
        }
    };
    others.run(pieces.len(), places, &part);
    if let Others::Lent(_) = others {
        // What it left out.
        (0..pieces.len()).for_each(part);
    }
    if let Some(watch) = watch {
        watch.end(count);
    }
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

// Nothing panics while one of these locks is held, so poison means nothing.
fn put<J>(place: &Mutex<Option<J>>, piece: J) {
    *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(piece);
}

fn take<J>(place: &Mutex<Option<J>>) -> Option<J> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}
