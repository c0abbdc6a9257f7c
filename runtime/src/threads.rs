//! The threads that kernels may use, and how a job is divided among them.

use crate::affinity;
use crate::device::{CpuProfile, Topology};
use crate::division::{self, PARTS_PER_THREAD};
use crate::error::Error;
use crate::executor::Executor;
use crate::homes::{Homes, Share, merged, seats};
use crate::launch::NodeOrder;
use crate::pool::{MOST_WORKERS, Pool};
use crate::thread_use::Watch;
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Multiply-accumulates (or bytes) that are worth a part of their own: about a microsecond of one core, twice what
/// handing it over costs.
const GRAIN: u64 = 1 << 19;

/// Work for which sleeping threads are not woken: waking them takes longer than doing it.
const WORTH_WAKING: u64 = 1 << 21;

/// Parts for which a job needs no memory but the stack.
const PARTS_ON_STACK: usize = 64;

/// The most threads that can be asked for, the calling one included.
pub const MAX_THREADS: usize = 1 << 15;

const _: () = assert!(MAX_THREADS as u64 <= MOST_WORKERS + 1, "each must be counted inside a job");

/// How long a thread looks for the next job before it sleeps, if nothing else is said: what a decoder does between
/// two products takes less.
const SPIN: Duration = Duration::from_micros(100);

/// How threads are to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadOptions {
    /// Threads that work on a job, the calling one included, up to [`MAX_THREADS`]. 1 (or 0) is the calling thread alone.
    pub count: usize,
    /// Processors (as the system numbers them) for the threads besides the calling one, one each; those without
    /// one run where the system puts them. [`Threads::pin_caller`] pins the calling thread.
    pub cpus: Vec<usize>,
    /// How long a thread looks for the next job, keeping its processor busy, before it sleeps.
    pub spin: Duration,
    /// The machine's NUMA nodes. Where there are several, threads are dealt to them by their cores; those without a processor in `cpus` stay on
    /// their node's, and weights that are packed with these threads lie on the nodes of those who read them. With one node, or
    /// [`Topology::default`], nothing of this is done.
    pub topology: Topology,
}

impl Default for ThreadOptions {
    /// A thread for each physical core that this program may use, pinned nowhere, 100 microseconds awake. (Two hardware threads of
    /// a core share what kernels are limited by.) The topology has the processors on which the calling thread may be now.
    fn default() -> ThreadOptions {
        let CpuProfile { physical_cores, topology, .. } = CpuProfile::detect();
        // Workers are not to leave processors that the caller was kept on since the program began.
        let allowed = affinity::of_caller();
        let topology = match allowed.is_empty() {
            true => topology.clone(),
            false => topology.clone().restricted_to(&allowed),
        };
        ThreadOptions { count: *physical_cores, cpus: Vec::new(), spin: SPIN, topology }
    }
}

/// The threads that a kernel may use. Made once and passed to each run. May be shared: of several callers at a time,
/// one gets the other threads and the rest work alone.
///
/// Where a process forks, the child has no other threads, whatever [`count`](Threads::count) says: there the calling thread does
/// all the work, and dropping waits for nobody and leaves the memory of the parent's threads as it is. Threads of its own are
/// to be had by [`Threads::new`]. A job in which a part forks while another thread is in the middle of one can't be ended in the
/// child: it panics there.
#[derive(Debug)]
pub struct Threads {
    others: Others,
    count: usize,
    grain: u64,
    /// On several NUMA nodes, where threads are.
    homes: Option<Homes>,
}

/// Who works besides the calling thread.
enum Others {
    None,
    Pool(Pool),
    Lent(Box<dyn Executor>),
}

impl fmt::Debug for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Others::None => f.write_str("None"),
            Others::Pool(pool) => pool.fmt(f),
            Others::Lent(_) => f.write_str("Lent"),
        }
    }
}

impl Others {
    fn run(&self, parts: usize, places: usize, part: &(dyn Fn(usize) + Sync)) {
        match self {
            Others::None => (0..parts).for_each(part),
            Others::Pool(pool) => pool.run_at(parts, places, part),
            Others::Lent(executor) => executor.run(parts, part),
        }
    }
}

impl Threads {
    /// The calling thread alone. Runs neither allocate nor lock.
    pub const fn single() -> Threads {
        Threads { others: Others::None, count: 1, grain: GRAIN, homes: None }
    }

    /// The threads of the program itself. Results have the same bits as with any others.
    ///
    /// Each job goes through [`Executor::run`]; [`with_grain`](Threads::with_grain) states how much work is worth that.
    /// [`awake`](Threads::awake) has no effect on them.
    ///
    /// # Errors
    /// [`Error::TooManyThreads`] beyond [`MAX_THREADS`].
    pub fn lent(executor: impl Executor + 'static) -> Result<Threads, Error> {
        let count = executor.count().max(1);
        if count > MAX_THREADS {
            return Err(Error::TooManyThreads { count, most: MAX_THREADS });
        }
        Ok(Threads { others: Others::Lent(Box::new(executor)), count, grain: GRAIN, homes: None })
    }

    /// `count` threads, the calling one included; 1 (or 0) is the calling thread alone.
    ///
    /// # Errors
    /// [`Error::TooManyThreads`] beyond [`MAX_THREADS`]; [`Error::Threads`] if the system refuses one. None is left running.
    pub fn new(count: usize) -> Result<Threads, Error> {
        Threads::with_options(&ThreadOptions { count, ..ThreadOptions::default() })
    }

    /// Threads as they are asked for.
    ///
    /// # Errors
    /// [`Error::TooManyThreads`] beyond [`MAX_THREADS`]; [`Error::Threads`] if the system refuses a thread, or a processor is
    /// not one that this program may use.
    pub fn with_options(options: &ThreadOptions) -> Result<Threads, Error> {
        let count = options.count.max(1);
        if count > MAX_THREADS {
            return Err(Error::TooManyThreads { count, most: MAX_THREADS });
        }
        let (seats, homes) = seats(&options.topology, count, &options.cpus);
        let others = match count {
            1 => Others::None,
            _ => {
                let pool = Pool::new(count - 1, &seats, options.spin);
                Others::Pool(pool.map_err(|why| Error::Threads { count, why })?)
            }
        };
        Ok(Threads { others, count, grain: GRAIN, homes })
    }

    /// The NUMA node that each thread is on, the calling one first; `None` where all are on one, or it is not known (of lent threads).
    pub fn nodes(&self) -> Option<Vec<usize>> {
        self.homes.as_ref().map(|homes| homes.threads.iter().map(|home| home.node).collect())
    }

    /// Keeps the thread that calls this on the processors of the first node of [`nodes`](Threads::nodes), also after its jobs: the others stay on
    /// theirs in any case. Does nothing where there is one node, and where the system keeps no thread on several processors, as on Windows and
    /// macOS.
    ///
    /// # Errors
    /// [`Error::NodeProcessors`] if the system does not let it stay there.
    pub fn keep_caller_near(&self) -> Result<(), Error> {
        let Some(home) = self.homes.as_ref().and_then(|homes| homes.threads.first()) else { return Ok(()) };
        if affinity::stay_on(&home.cpus) || !affinity::KNOWS_SEVERAL {
            return Ok(());
        }
        Err(Error::NodeProcessors { node: home.node, cpus: home.cpus.clone() })
    }

    /// Whose panels, of `panel` rows each, are whose in a product of one token with `n` rows of `k`: that is when weights come from memory.
    /// None where all threads are on one node.
    pub(crate) fn shares(&self, n: usize, panel: usize, k: usize) -> Vec<Share> {
        let Some(homes) = &self.homes else { return Vec::new() };
        let panel = panel.max(1);
        let granule = division::granule_rows(n, panel, self.most_parts(), self.count);
        let parts = self.divided((n as u64).saturating_mul(k as u64), n.div_ceil(granule));
        let places = division::places(parts, self.count);
        merged((0..places).filter_map(|place| {
            let rows = division::rows_of_place(n, granule, places, place);
            let home = homes.threads.get(division::thread_at(place, places, self.count, true))?;
            Some(Share { panels: rows.start / panel..rows.end.div_ceil(panel), home: home.clone() })
        }))
    }

    /// In which order rows of several matrices are divided.
    pub(crate) fn node_order(&self) -> NodeOrder {
        NodeOrder::of(self.homes.as_ref())
    }

    /// Keeps the thread that calls this on processor `cpu` (as the system numbers them), also after its jobs:
    /// [`ThreadOptions::cpus`] are those of the others.
    ///
    /// # Errors
    /// [`Error::Processor`] if it is not one that this program may use; the thread then stays where it was.
    pub fn pin_caller(cpu: usize) -> Result<(), Error> {
        if affinity::pin(cpu) { Ok(()) } else { Err(Error::Processor { cpu }) }
    }

    /// Sets the work, in multiply-accumulates, below which a job is not divided further.
    pub fn with_grain(self, grain: u64) -> Threads {
        Threads { grain: grain.max(1), ..self }
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Runs `work` while the other threads stay awake, so that the first of the jobs in it need not wake them: put a
    /// whole forward pass in one. They keep their processors busy all the while.
    pub fn awake<R>(&self, work: impl FnOnce() -> R) -> R {
        let _awake = match &self.others {
            Others::Pool(pool) => Some(pool.stay_awake()),
            Others::None | Others::Lent(_) => None,
        };
        work()
    }

    /// Runs `run` on each item, on whatever threads are free: for many matrices that are too small to be divided.
    /// Kernels inside may be given these threads too; they will find them busy and work alone.
    ///
    /// # Errors
    /// Of several errors, that of the first item.
    pub fn each<T, E>(&self, items: &mut [T], run: impl Fn(&mut T) -> Result<(), E> + Sync) -> Result<(), E>
    where
        T: Send,
        E: Send,
    {
        fn split<T>(items: &mut [T], left: usize, all: usize) -> (&mut [T], &mut [T]) {
            let mid = share(items.len(), left, all);
            items.split_at_mut(mid)
        }
        let parts = if self.count <= 1 { 1 } else { items.len() };
        let places = division::places_of_unequal(parts, self.count);
        let run = |items: &mut [T]| items.iter_mut().try_for_each(&run);
        self.divide_at(parts, places, items, &split::<T>, &run)
    }

    /// As [`each`](Threads::each) with the index of each item, for many small items: neighbours go to a thread together, so
    /// nothing is allocated and nothing locked for an item.
    ///
    /// # Errors
    /// Of several errors, that of the first item. Items that were to be run behind one that failed, by the same thread, may not
    /// be run.
    pub fn indexed<T, E>(
        &self,
        items: &mut [T],
        run: impl Fn(usize, &mut T) -> Result<(), E> + Sync,
    ) -> Result<(), E>
    where
        T: Send,
        E: Send,
    {
        self.chunks(items, 1, |index, items| items.iter_mut().try_for_each(|item| run(index, item)))
    }

    /// Runs `run` on chunks of `size` items (the last may be shorter; 0 counts as 1) with the number of each, chunk `i` from
    /// item `i * size` on: the rows of a matrix, say. Neighbours go to a thread together, so nothing is allocated and nothing
    /// locked for a chunk.
    ///
    /// # Errors
    /// Of several errors, that of the first chunk. Chunks that were to be run behind one that failed, by the same thread, may
    /// not be run.
    pub fn chunks<T, E>(
        &self,
        items: &mut [T],
        size: usize,
        run: impl Fn(usize, &mut [T]) -> Result<(), E> + Sync,
    ) -> Result<(), E>
    where
        T: Send,
        E: Send,
    {
        let chunks = items.len().div_ceil(size.max(1));
        let parts = self.most_parts().min(PARTS_ON_STACK).min(chunks).max(1);
        self.chunks_in(parts, division::places_of_unequal(parts, self.count), items, size, run)
    }

    /// As [`chunks`](Threads::chunks), for rows of `k` values that are converted to or from f32, of `size` items each: little work
    /// is not divided.
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
        self.at_most(None).converted_rows(items, size, k, run)
    }

    fn chunks_in<T, E>(
        &self,
        parts: usize,
        places: usize,
        items: &mut [T],
        size: usize,
        run: impl Fn(usize, &mut [T]) -> Result<(), E> + Sync,
    ) -> Result<(), E>
    where
        T: Send,
        E: Send,
    {
        let size = size.max(1);
        let split = |(first, items): (usize, _), left, all| {
            let items: &mut [T] = items;
            let chunks = share(items.len().div_ceil(size), left, all);
            // Only the last chunk is shorter, and it is not cut off the others unless they end before it.
            let mid = chunks.saturating_mul(size).min(items.len());
            let (before, behind) = items.split_at_mut(mid);
            ((first, before), (first + chunks, behind))
        };
        let run = |(first, items): (usize, &mut [T])| {
            items.chunks_mut(size).enumerate().try_for_each(|(index, chunk)| run(first + index, chunk))
        };
        self.divide_at(parts, places, (0, items), &split, &run)
    }

    /// Into how many parts a job of `work` goes that can be cut in `granules` pieces; at least 1.
    pub(crate) fn parts(&self, work: u64, granules: usize) -> usize {
        if self.count <= 1 {
            return 1;
        }
        if work < WORTH_WAKING
            && self.grain == GRAIN
            && matches!(&self.others, Others::Pool(pool) if pool.sleeps())
        {
            return 1;
        }
        self.divided(work, granules)
    }

    /// [`Threads::parts`] for threads that are awake.
    fn divided(&self, work: u64, granules: usize) -> usize {
        let wanted = usize::try_from(work / self.grain).unwrap_or(usize::MAX);
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
    fn divide_at<J, E>(
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
        let wanted = usize::try_from(work / self.threads.grain).unwrap_or(usize::MAX);
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

/// How many of `pieces` go to the first `left` of `all` parts.
pub(crate) fn share(pieces: usize, left: usize, all: usize) -> usize {
    // u128: the product of two lengths.
    let share = pieces as u128 * left as u128 / all.max(1) as u128;
    usize::try_from(share).unwrap_or(pieces)
}

/// [`share`] of a range of pieces, and what is left of it.
pub(crate) fn split_range(pieces: Range<usize>, left: usize, all: usize) -> (Range<usize>, Range<usize>) {
    let mid = pieces.start + share(pieces.len(), left, all);
    (pieces.start..mid, mid..pieces.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_piece_is_run_once() -> Result<(), Error> {
        for count in [1, 2, 5] {
            let threads = Threads::new(count)?.with_grain(1);
            assert_eq!(threads.count(), count);
            for pieces in [0usize, 1, 2, 7, 100] {
                let seen = Mutex::new(vec![0; pieces]);
                let run = |job: Range<usize>| -> Result<(), Error> {
                    let mut seen = seen.lock().expect("no thread panics");
                    job.for_each(|i| seen[i] += 1);
                    Ok(())
                };
                threads.divide(threads.parts(1 << 20, pieces), 0..pieces, &split_range, &run)?;
                assert!(seen.lock().expect("no thread panics").iter().all(|times| *times == 1));
            }
        }
        Ok(())
    }

    #[test]
    fn the_first_error_wins() -> Result<(), Error> {
        let threads = Threads::new(4)?.with_grain(1);
        let outcome = threads.divide(16, 0..16usize, &split_range, &|job: Range<usize>| {
            if job.start >= 5 { Err(job.start) } else { Ok(()) }
        });
        assert_eq!(outcome, Err(5));
        Ok(())
    }

    #[test]
    fn items_are_run_once_each_and_the_first_error_wins() -> Result<(), Error> {
        for count in [1, 2, 5] {
            let threads = Threads::new(count)?;
            let mut items: Vec<usize> = (0..200).collect();
            let run = |item: &mut usize| {
                *item += 1000;
                if *item % 100 == 57 { Err(*item) } else { Ok(()) }
            };
            assert_eq!(threads.awake(|| threads.each(&mut items, run)), Err(1057));
            // One thread stops at an error; with several, the others go on.
            let done = if count == 1 { 58 } else { 200 };
            assert!(items.iter().take(done).enumerate().all(|(i, item)| *item == i + 1000), "{items:?}");
            assert_eq!(threads.each(&mut [] as &mut [usize], run), Ok(()));
        }
        Ok(())
    }

    /// Each item waits for as many others as there are threads: of parts of equal cost, ten would go to five threads.
    #[test]
    fn items_that_differ_are_for_all_threads() -> Result<(), Error> {
        let threads = Threads::new(8)?;
        assert_eq!(division::places(10, 8), 5);
        let waiting = || {
            let begun = std::sync::atomic::AtomicUsize::new(0);
            move || -> Result<(), usize> {
                use std::sync::atomic::Ordering::Relaxed;
                begun.fetch_add(1, Relaxed);
                let started = std::time::Instant::now();
                while begun.load(Relaxed) < 8 && started.elapsed() < Duration::from_secs(20) {
                    std::thread::yield_now();
                }
                let begun = begun.load(Relaxed);
                if begun < 8 { Err(begun) } else { Ok(()) }
            }
        };
        let wait = waiting();
        assert_eq!(threads.each(&mut [0; 10], |_| wait()), Ok(()));
        let wait = waiting();
        assert_eq!(threads.chunks(&mut [0; 10], 1, |_, _| wait()), Ok(()));
        Ok(())
    }

    #[test]
    fn chunks_and_items_come_with_their_numbers_once_each() -> Result<(), Error> {
        for count in [1, 2, 5, 40] {
            let threads = Threads::new(count)?;
            for length in [0usize, 1, 7, 64, 1000] {
                for size in [0, 1, 3, 64, usize::MAX] {
                    let mut items = vec![usize::MAX; length];
                    let run = |index: usize, chunk: &mut [usize]| -> Result<(), Error> {
                        assert!(!chunk.is_empty() && chunk.len() <= size.max(1));
                        for (place, item) in chunk.iter_mut().enumerate() {
                            assert_eq!(*item, usize::MAX, "run twice");
                            *item = index * size.max(1) + place;
                        }
                        Ok(())
                    };
                    threads.chunks(&mut items, size, run)?;
                    assert!(items.iter().enumerate().all(|(i, item)| i == *item), "{count} {length} {size}");
                }
                let mut items = vec![0; length];
                threads.indexed(&mut items, |index, item| -> Result<(), Error> {
                    *item += index + 1;
                    Ok(())
                })?;
                assert!(items.iter().enumerate().all(|(i, item)| i + 1 == *item), "{count} {length}");
            }
            let fails = |index: usize, _: &mut u8| if index % 100 == 57 { Err(index) } else { Ok(()) };
            assert_eq!(threads.indexed(&mut [0; 200], fails), Err(57));
        }
        Ok(())
    }

    #[test]
    fn a_processor_that_is_not_there_is_an_error() {
        let options = ThreadOptions { count: 2, cpus: vec![usize::MAX], ..ThreadOptions::default() };
        assert!(matches!(Threads::with_options(&options), Err(Error::Threads { count: 2, .. })));
    }

    #[test]
    fn the_calling_thread_can_be_pinned() {
        let allowed = || core_affinity::get_core_ids().unwrap_or_default();
        for cpu in [1023, 1024, usize::MAX] {
            assert_eq!(Threads::pin_caller(cpu), Err(Error::Processor { cpu }));
        }
        let Some(last) = allowed().last().copied() else {
            eprintln!("skipped: the system names no processors");
            return;
        };
        // Tests share a process and not a thread.
        std::thread::spawn(move || {
            assert_eq!(Threads::pin_caller(last.id), Ok(()));
            if cfg!(target_os = "linux") {
                assert_eq!(allowed(), [last], "the system knows");
            }
        })
        .join()
        .expect("pinned");
    }

    #[test]
    fn threads_stay_where_their_caller_is_kept() {
        let here = affinity::of_caller();
        // So that the profile is older than what follows.
        let all: usize = CpuProfile::detect().topology.cores.iter().map(Vec::len).sum();
        if !cfg!(target_os = "linux") || here.len() < 2 || all < 2 {
            eprintln!("skipped: fewer than two processors, or the system does not say");
            return;
        }
        std::thread::spawn(move || {
            assert_eq!(Threads::pin_caller(here[0]), Ok(()));
            let Topology { nodes, cores, .. } = ThreadOptions::default().topology;
            assert_eq!(cores, [[here[0]]]);
            assert!(nodes.iter().flat_map(|node| &node.cpus).all(|cpu| *cpu == here[0]), "{nodes:?}");
        })
        .join()
        .expect("kept there");
    }

    #[test]
    fn a_node_that_is_not_there_is_named() -> Result<(), Error> {
        let node = |id: usize| crate::device::Node {
            id,
            cpus: vec![900 + 2 * id, 901 + 2 * id],
            ..Default::default()
        };
        let topology = Topology { nodes: vec![node(3), node(5)], ..Topology::default() };
        let options = ThreadOptions { count: 2, topology, ..ThreadOptions::default() };
        let outcome = Threads::with_options(&options)?.keep_caller_near();
        match affinity::KNOWS_SEVERAL {
            true => assert_eq!(outcome, Err(Error::NodeProcessors { node: 3, cpus: vec![906, 907] })),
            false => assert_eq!(outcome, Ok(())),
        }
        Ok(())
    }

    #[test]
    fn more_threads_than_can_be_counted_are_refused() {
        for count in [MAX_THREADS + 1, 1 << 16, 1 << 62, usize::MAX] {
            let refused = Error::TooManyThreads { count, most: MAX_THREADS };
            assert_eq!(Threads::new(count).expect_err("too many"), refused);
        }
    }

    /// Each part as often as the function says, in reverse.
    struct Times(fn(usize) -> usize);

    impl Executor for Times {
        fn count(&self) -> usize {
            3
        }

        fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
            for index in (0..parts + 5).rev() {
                (0..self.0(index)).for_each(|_| part(index));
            }
        }
    }

    #[test]
    fn an_executor_that_forgets_or_repeats_parts_changes_nothing() -> Result<(), Error> {
        for times in [(|_| 1) as fn(usize) -> usize, |_| 0, |_| 2, |index| index % 3] {
            let threads = Threads::lent(Times(times))?.with_grain(1);
            assert_eq!((threads.count(), threads.parts(u64::MAX, 100)), (3, 12));
            for length in [0, 1, 7, 1000] {
                let mut items = vec![0; length];
                let add = |index: usize, item: &mut usize| {
                    *item += index + 1;
                    if index == 500 { Err(index) } else { Ok(()) }
                };
                let outcome = threads.awake(|| threads.indexed(&mut items, add));
                assert_eq!(outcome, if length > 500 { Err(500) } else { Ok(()) });
                assert!(items.iter().take(500).enumerate().all(|(i, item)| i + 1 == *item), "{length}");
            }
        }
        Ok(())
    }

    #[test]
    fn executors_say_how_many_threads_they_have() -> Result<(), Error> {
        struct Count(usize);
        impl Executor for Count {
            fn count(&self) -> usize {
                self.0
            }
            fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
                (0..parts).for_each(part);
            }
        }
        assert_eq!(Threads::lent(Count(0))?.count(), 1);
        assert_eq!(Threads::lent(Count(MAX_THREADS))?.count(), MAX_THREADS);
        let refused = Error::TooManyThreads { count: usize::MAX, most: MAX_THREADS };
        assert_eq!(Threads::lent(Count(usize::MAX)).expect_err("too many"), refused);
        Ok(())
    }

    #[test]
    fn the_use_of_threads_is_known_where_it_is_asked_for() -> Result<(), Error> {
        use crate::thread_use::measured;
        let threads = Threads::new(3)?.with_grain(1);
        // Nobody is done before all three have begun, so that each has something to do.
        let begun = std::sync::atomic::AtomicUsize::new(0);
        let wait = |_: usize, _: &mut [u8]| -> Result<(), Error> {
            use std::sync::atomic::Ordering::Relaxed;
            begun.fetch_add(1, Relaxed);
            let started = std::time::Instant::now();
            while begun.load(Relaxed) < 3 && started.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
            Ok(())
        };
        let (outcome, seen) = measured(|| threads.chunks(&mut [0; 12], 1, wait));
        outcome?;
        let seen = seen.expect("it was asked for");
        assert_eq!((seen.threads, seen.worked, seen.parts), (3, 3, 12));
        assert!(
            seen.longest <= seen.busy && seen.busy <= 3 * seen.wall && seen.longest <= seen.wall,
            "{seen:?}"
        );
        // Not divided: one of three.
        let (_, seen) = measured(|| threads.chunks(&mut [0; 1], 1, |_, _: &mut [u8]| Ok::<(), Error>(())));
        let seen = seen.expect("it was asked for");
        assert_eq!((seen.threads, seen.worked, seen.parts), (3, 1, 1));
        Ok(())
    }

    #[test]
    fn small_work_stays_together() -> Result<(), Error> {
        let threads = Threads::new(2)?;
        assert_eq!(threads.parts(1000, 100), 1);
        // Awake or asleep after a moment, when the system has let the thread come that far.
        let becomes = |parts| {
            let started = std::time::Instant::now();
            while threads.parts(1 << 20, 100) != parts && started.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            threads.parts(1 << 20, 100) == parts
        };
        assert!(threads.awake(|| becomes(2)), "worth a part each where nobody is to be woken");
        assert!(becomes(1), "not worth waking threads up for");
        assert_eq!(threads.parts(u64::MAX, 100), 8);
        assert_eq!(threads.parts(u64::MAX, 3), 2);
        assert_eq!(threads.parts(u64::MAX, 0), 1);
        assert_eq!(Threads::single().parts(u64::MAX, 100), 1);
        Ok(())
    }

    /// Distinct threads that take parts of a job.
    fn takers(threads: SomeThreads<'_>) -> usize {
        let seen = Mutex::new(std::collections::BTreeSet::new());
        let parts = threads.parts(1 << 40, 64);
        threads.divide_all(parts, 0..64, &split_range, &|_| {
            let name = format!("{:?}", std::thread::current().id());
            seen.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
            // Long enough that everybody who may comes.
            std::thread::sleep(Duration::from_millis(2));
        });
        seen.into_inner().unwrap_or_else(PoisonError::into_inner).len()
    }

    #[test]
    fn no_more_threads_work_than_are_asked_for() {
        let threads = Threads::new(4).expect("threads");
        // Busy machines may start fewer of them in time, so the best of some tries counts.
        let most = |limit| (0..20).map(|_| takers(threads.at_most(limit))).max();
        assert_eq!(most(Some(1)), Some(1));
        assert!(most(Some(2)) <= Some(2));
        assert!(most(None) > Some(2));
        assert_eq!(threads.at_most(Some(9)).count(), 4);
        assert_eq!(threads.at_most(Some(0)).count(), 1);
        // All rows are converted, whoever does it.
        let mut rows = vec![0u32; 999];
        let done = threads.at_most(Some(2)).converted_rows(&mut rows, 3, 1 << 20, |row, items| {
            items.fill(row as u32 + 1);
            Ok::<(), Infallible>(())
        });
        assert!(done.is_ok() && rows.iter().enumerate().all(|(at, row)| *row == at as u32 / 3 + 1));
    }
}
