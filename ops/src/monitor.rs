//! An observer of launches that counts them and keeps times of some.
//!
//! A launch costs four additions to counters of its kernel and class of shapes. One of [`MonitorOptions::sample_every`] also costs two
//! readings of the clock and an entry in a histogram. Nothing waits: where two threads have a time for one histogram at once, one
//! of them is left out and counted as lost. `cargo bench -p gristmill-ops` measures what this is beside the product.

use crate::gpus::Gpus;
use crate::host::Host;
use crate::memory::Memory;
use crate::rows::Rows;
use crate::snapshot::{BatchLoad, KernelLoad, RecoveryCount, Snapshot};
use crate::times::Times;
use gristmill_records::receipt::Fallback;
use gristmill_runtime::observe::{
    Allocation, FellBack, Launch, Lookup, Observer, RanBatch, Transfer, observe, set_observing,
};
use gristmill_runtime::tuning::{ShapeClass, cpu};
use gristmill_runtime::vocab::{DeviceKind, Op};
use gristmill_runtime::{Device, Error, Recovery, Registry, Shape};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// What the system says of the machine is asked for so rarely that it takes one part in so many of the time at most: of a program with
/// much memory on small pages it takes long.
const PATIENCE: u32 = 500;

/// How a monitor works.
#[derive(Clone, Debug)]
pub struct MonitorOptions {
    /// The time of one of so many launches of a kernel and class is taken. A prime number, so that launches which come in the order of a
    /// model's layers are sampled in turn.
    pub sample_every: u64,
    /// Whether the use of threads is measured too, of the launches whose time is taken: two readings of the clock for each part of a job, and an
    /// allocation for each job.
    pub threads: bool,
    /// What the kernels were compiled with (`gristmill::kernels::COMPILER`), for the history.
    pub compiler: Option<String>,
    /// What the program is called in reports, which keep those of one machine apart by it; where that is not said, as its executable's file.
    /// Programs that an interpreter runs have that one's name.
    pub program: Option<String>,
}

impl Default for MonitorOptions {
    fn default() -> MonitorOptions {
        MonitorOptions { sample_every: 61, threads: false, compiler: None, program: None }
    }
}

/// Watches the launches of one registry's kernels, from [`start`](Monitor::start) on.
#[derive(Debug)]
pub struct Monitor {
    registry: &'static Registry,
    options: MonitorOptions,
    began: Instant,
    /// A place for each entry and class, with what it did on each device, by the device's number; what was never launched has none.
    cells: Box<[Rows<u32, Cell>]>,
    fallbacks: Mutex<Vec<Taken>>,
    recoveries: Mutex<Vec<RecoveryCount>>,
    batches: Mutex<BatchLoad>,
    memory: Memory,
    gpus: Gpus,
    lost: AtomicU64,
    /// What the system said of the machine when the monitor began.
    host_at_first: Host,
    host: Mutex<Seen>,
}

/// What the system said last.
#[derive(Debug)]
struct Seen {
    host: Host,
    /// When it is asked again.
    until: Instant,
}

#[derive(Debug, Default)]
struct Cell {
    launches: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    faults: AtomicU64,
    times: Times,
}

/// A fallback that was taken.
#[derive(Debug)]
struct Taken {
    policy: &'static str,
    op: Op,
    format: String,
    device: Device,
    reason: String,
    instead: &'static str,
    runs: u64,
}

impl Taken {
    fn seen(&self) -> FellBack<'_> {
        let Taken { policy, op, format, device, reason, instead, .. } = self;
        FellBack { policy, op: *op, format, device: *device, reason, instead }
    }

    fn count(&self) -> Fallback {
        Fallback {
            policy: self.policy.to_owned(),
            op: self.op.name().to_owned(),
            format: self.format.clone(),
            device: self.device.to_string(),
            reason: self.reason.clone(),
            instead: self.instead.to_owned(),
            runs: self.runs,
        }
    }
}

impl Monitor {
    /// Starts to watch. The monitor lasts as long as the program; [`pause`](Monitor::pause) turns it off and on.
    ///
    /// # Errors
    /// [`Error::SecondObserver`] where something watches already.
    pub fn start(registry: &'static Registry, options: MonitorOptions) -> Result<&'static Monitor, Error> {
        let places = registry.entries.len() * ShapeClass::COUNT;
        let monitor = Box::new(Monitor {
            registry,
            options: MonitorOptions {
                sample_every: options.sample_every.max(1),
                program: options.program.clone().or_else(executable),
                ..options
            },
            began: Instant::now(),
            cells: (0..places).map(|_| Rows::default()).collect(),
            fallbacks: Mutex::default(),
            recoveries: Mutex::default(),
            batches: Mutex::default(),
            memory: Memory::default(),
            gpus: Gpus::default(),
            lost: AtomicU64::new(0),
            host_at_first: Host::now(),
            host: Mutex::new(Seen { host: Host::default(), until: Instant::now() }),
        });
        let monitor: &'static Monitor = Box::leak(monitor);
        observe(monitor)?;
        Ok(monitor)
    }

    /// Stops to watch, or goes on. What was seen stays.
    pub fn pause(&self, paused: bool) {
        set_observing(!paused);
    }

    /// What was seen so far. Launches that end meanwhile are in it or are not.
    pub fn snapshot(&self) -> Snapshot {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let mut kernels = Vec::new();
        for (index, entry) in self.registry.entries.iter().enumerate() {
            for class in ShapeClass::all() {
                let of_class = self.cells.get(place(index, class)).into_iter();
                for (number, cell) in of_class.flat_map(Rows::sorted) {
                    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
                    let launches = read(&cell.launches);
                    if launches == 0 {
                        continue;
                    }
                    let (tokens, weights) = (class.tokens(), class.weights());
                    let device = Device { kind: entry.device, index: number };
                    kernels.push(KernelLoad {
                        kernel: entry.name.to_owned(),
                        id: entry.id.to_string(),
                        device: device.to_string(),
                        gpu: (device.kind == DeviceKind::Cuda).then(|| self.gpus.name(number)),
                        tokens: bounds(tokens),
                        weights: bounds(weights),
                        launches,
                        bytes_in: read(&cell.bytes_in),
                        bytes_out: read(&cell.bytes_out),
                        faults: (entry.device == DeviceKind::Cpu).then(|| read(&cell.faults)),
                        time: cell.times.sampled(),
                    });
                }
            }
        }
        let fallbacks = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        Snapshot {
            schema: Snapshot::SCHEMA.to_owned(),
            at: since.as_secs(),
            seconds: self.began.elapsed().as_secs_f64(),
            machine: cpu().to_owned(),
            gpus: self.gpus.names(),
            compiler: self.options.compiler.clone(),
            package: self.registry.package.to_owned(),
            program: self.options.program.clone(),
            sampled_every: self.options.sample_every,
            lost_samples: self.lost.load(Ordering::Relaxed),
            host: Some(self.host()).filter(|host| *host != Host::default()),
            kernels,
            batches: Some(self.batches.lock().unwrap_or_else(PoisonError::into_inner).clone())
                .filter(|load| load.batches > 0),
            transfers: self.memory.transfers(),
            pools: self.memory.pools(),
            caches: self.memory.caches(),
            fallbacks: fallbacks.iter().map(Taken::count).collect(),
            recoveries: self.recoveries.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// What the system says of the machine, or said a short while ago.
    fn host(&self) -> Host {
        let mut seen = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now >= seen.until {
            let host = Host::now().since(&self.host_at_first);
            let until = now + now.elapsed() * PATIENCE;
            *seen = Seen { host, until };
        }
        seen.host.clone()
    }

    fn cell(&self, registry: &'static Registry, index: usize, shape: Shape, device: Device) -> Option<&Cell> {
        if !std::ptr::eq(registry, self.registry) {
            return None;
        }
        Some(self.cells.get(place(index, ShapeClass::of(shape)))?.of(device.index))
    }
}

/// The name of this program's file.
fn executable() -> Option<String> {
    Some(std::env::current_exe().ok()?.file_name()?.to_string_lossy().into_owned())
}

fn place(index: usize, class: ShapeClass) -> usize {
    index * ShapeClass::COUNT + class.index()
}

fn bounds((from, to): (usize, usize)) -> (u64, Option<u64>) {
    (from as u64, (to != usize::MAX).then_some(to as u64))
}

impl Observer for Monitor {
    fn wants_time(&self, registry: &'static Registry, index: usize, shape: Shape, device: Device) -> bool {
        let every = self.options.sample_every;
        // The first launch is not timed unless all are: it brings weights into the caches.
        let wanted = self
            .cell(registry, index, shape, device)
            .is_some_and(|cell| cell.launches.load(Ordering::Relaxed) % every == every - 1);
        // What a GPU does has no end on this thread.
        #[cfg(feature = "tracing")]
        if wanted && registry.entries.get(index).is_some_and(|entry| entry.device == DeviceKind::Cpu) {
            crate::spans::begin(registry, index, shape);
        }
        wanted
    }

    fn wants_threads(&self) -> bool {
        self.options.threads
    }

    fn wants_batch(&self, _: usize) -> bool {
        let every = self.options.sample_every;
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).batches % every == every - 1
    }

    fn ran_batch(&self, batch: &RanBatch) {
        // Held for some additions, once for all products of a batch.
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).take(batch);
    }

    fn launched(&self, launch: &Launch) {
        #[cfg(feature = "tracing")]
        if launch.time.is_some() {
            crate::spans::end(launch);
        }
        let Launch { registry, index, shape, device, .. } = *launch;
        let Some(cell) = self.cell(registry, index, shape, device) else { return };
        cell.launches.fetch_add(1, Ordering::Relaxed);
        self.gpus.launched(launch.device);
        cell.bytes_in.fetch_add(launch.bytes_in as u64, Ordering::Relaxed);
        cell.bytes_out.fetch_add(launch.bytes_out as u64, Ordering::Relaxed);
        if launch.fault == Some(true) {
            cell.faults.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if launch.time.is_some() {
            self.timed(launch);
        }
    }

    fn timed(&self, launch: &Launch) {
        let Launch { registry, index, shape, device, .. } = *launch;
        let (Some(cell), Some(time)) = (self.cell(registry, index, shape, device), launch.time) else {
            return;
        };
        if !cell.times.take(time, launch.bytes_in as u64, launch.threads.as_ref()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn fell_back(&self, fallback: FellBack<'_>) {
        #[cfg(feature = "tracing")]
        crate::spans::fell_back(&fallback);
        let mut fallbacks = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = fallbacks.iter_mut().find(|taken| taken.seen() == fallback) {
            taken.runs += 1;
            return;
        }
        let FellBack { policy, op, format, device, reason, instead } = fallback;
        let (format, reason) = (format.to_owned(), reason.to_owned());
        fallbacks.push(Taken { policy, op, format, device, reason, instead, runs: 1 });
    }

    fn recovered(&self, recovery: &Recovery) {
        #[cfg(feature = "tracing")]
        crate::spans::recovered(recovery);
        let (step, id) = (recovery.step.name(), recovery.id.to_string());
        let (then, seconds) = (recovery.then.map(str::to_owned), recovery.time.as_secs_f64());
        let mut recoveries = self.recoveries.lock().unwrap_or_else(PoisonError::into_inner);
        // Reasons name outputs, so they don't tell one row from another.
        let same = |known: &&mut RecoveryCount| {
            known.step == step
                && known.id == id
                && known.format == recovery.format
                && known.success == recovery.success
        };
        if let Some(known) = recoveries.iter_mut().find(same) {
            known.count += 1;
            known.seconds += seconds;
            known.then = then;
            return;
        }
        recoveries.push(RecoveryCount {
            step: step.to_owned(),
            kernel: recovery.kernel.to_owned(),
            id,
            format: recovery.format.clone(),
            success: recovery.success,
            reason: recovery.reason.clone(),
            then,
            count: 1,
            seconds,
        });
    }

    fn wants_transfer_time(&self, transfer: &Transfer) -> bool {
        self.memory.is_sampled(transfer, self.options.sample_every)
    }

    fn transferred(&self, transfer: &Transfer) {
        self.memory.transferred(transfer);
    }

    fn transfer_timed(&self, transfer: &Transfer) {
        if !self.memory.timed(transfer) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn allocated(&self, allocation: &Allocation) {
        self.memory.allocated(allocation);
    }

    fn looked_up(&self, lookup: Lookup) {
        self.memory.looked_up(lookup);
    }
}
