//! The threads that kernels may use.

pub(crate) mod divide;
mod items;
#[cfg(test)]
mod tests;

use crate::device::{CpuProfile, Topology};
use crate::error::Error;
use crate::executor::Executor;
use crate::memory::homes::{Homes, Share, merged, seats};
use crate::parallel::affinity;
use crate::parallel::division;
use crate::parallel::pool::{MOST_WORKERS, Pool};
use crate::run::launch::NodeOrder;
use std::fmt;
use std::time::Duration;

/// Multiply-accumulates (or bytes) that are worth a part of their own: about a microsecond of one core, twice what
/// handing it over costs.
const GRAIN: u64 = 1 << 19;

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
        let topology = topology.clone().allowed(affinity::of_caller().as_deref());
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
    /// The work below which a job is not divided further, where somebody has set it.
    grain: Option<u64>,
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
        Threads { others: Others::None, count: 1, grain: None, homes: None }
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
        Ok(Threads { others: Others::Lent(Box::new(executor)), count, grain: None, homes: None })
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
        Ok(Threads { others, count, grain: None, homes })
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

    /// Sets the work, in multiply-accumulates, below which a job is not divided further: 2^19 without it. What is set goes
    /// before the rule that threads which sleep are not woken for little work.
    pub fn with_grain(self, grain: u64) -> Threads {
        Threads { grain: Some(grain.max(1)), ..self }
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
}
