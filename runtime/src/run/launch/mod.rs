//! The launch trampolines: the only callers of entry code, here and in the folder of a handle (`kernel/embed/`), and the only
//! writers of counters and ledgers.
//!
//! A [`Launcher`] exists only for an entry that this processor can run ([`admit`]); that, and the size
//! invariants of the types passed in, is what the unsafe calls below rest on. A registry itself is
//! trusted: its entries are generated together with the sizes that its formats state.

mod batch;
mod blocks;
mod distance;
mod grouped;
mod job;
mod order;
mod product;
mod prologue;
mod tally;

pub(crate) use batch::run_together;
pub(crate) use blocks::{ActivationCode, DequantizeCode, QuantizeCode, whole_blocks};
pub(crate) use grouped::{Group, GroupedWork};
pub(crate) use job::ProductJob;
pub(crate) use order::NodeOrder;
#[cfg(feature = "cuda")]
pub(crate) use product::unpack_panel;
pub(crate) use product::{MatmulCode, PanelSize, Panels, pack};
pub(crate) use prologue::{PrologueCode, PrologueRow};
#[cfg(feature = "cuda")]
pub(crate) use tally::Tally;

use crate::cuda::Place;
use crate::decide::Candidate;
use crate::device::{CpuProfile, Device};
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::observe::recovered;
use crate::observe::{Ending, Launch, asked, observer};
use crate::parallel::thread_use::measured;
use crate::quarantine::first_run;
use crate::receipt::{Ledger, Recording};
#[cfg(feature = "cuda")]
use crate::recovery::Recovery;
use crate::registry::{Code, Entry, Registry};
use crate::request::Shape;
use crate::stats::timing;
use gristmill_spec::vocab::{DeviceKind, Op};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tally::count;

/// Code that may run here, with its bookkeeping.
#[derive(Clone, Debug)]
pub(crate) struct Launcher<C> {
    pub(crate) entry: &'static Entry,
    index: usize,
    registry: &'static Registry,
    code: C,
    ledger: Option<Arc<Ledger>>,
}

/// Refuses an entry that can't run on this machine, whatever profile it was chosen for.
fn admit(entry: &Entry) -> Result<(), Error> {
    match entry.device {
        DeviceKind::Cpu => {}
        DeviceKind::Cuda | DeviceKind::Rocm | DeviceKind::Metal => return Err(cannot_drive(entry, 0)),
    }
    let missing = CpuProfile::detect().features.missing(entry.features);
    if missing.iter().next().is_some() {
        return Err(Error::CannotRunHere { kernel: entry.name, missing: missing.iter().collect() });
    }
    Ok(())
}

/// The error for a device that this build does not drive.
pub(crate) fn cannot_drive(entry: &Entry, index: u32) -> Error {
    Error::CannotDrive { kernel: entry.name, device: Device { kind: entry.device, index } }
}

/// A kernel of the processor or of a GPU.
#[derive(Clone, Debug)]
pub(crate) enum On<C, G> {
    /// The processor.
    Cpu(Launcher<C>),
    /// A GPU.
    Cuda(Launcher<G>),
}

impl<C, G> On<C, G> {
    /// The kernel of a candidate, on the device that it is for.
    pub(crate) fn of(
        registry: &'static Registry,
        candidate: Candidate,
        place: &Place,
        cpu: impl FnOnce(&'static Registry, Candidate) -> Result<Launcher<C>, Error>,
        cuda: impl FnOnce(&'static Registry, Candidate, &Place) -> Result<Launcher<G>, Error>,
    ) -> Result<On<C, G>, Error> {
        match candidate.entry.device {
            DeviceKind::Cpu => cpu(registry, candidate).map(On::Cpu),
            DeviceKind::Cuda => cuda(registry, candidate, place).map(On::Cuda),
            DeviceKind::Rocm | DeviceKind::Metal => Err(cannot_drive(candidate.entry, place.index())),
        }
    }

    pub(crate) fn entry(&self) -> &'static Entry {
        match self {
            On::Cpu(launcher) => launcher.entry,
            On::Cuda(launcher) => launcher.entry,
        }
    }

    pub(crate) fn broken(&self, what: &'static str) -> Error {
        match self {
            On::Cpu(launcher) => launcher.broken(what),
            On::Cuda(launcher) => launcher.broken(what),
        }
    }

    pub(crate) fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        match self {
            On::Cpu(launcher) => launcher.record(recording),
            On::Cuda(launcher) => launcher.record(recording),
        }
    }
}

impl<C> Launcher<C> {
    /// A kernel of the processor; `code` is `None` where it is of another op.
    pub(crate) fn new(
        registry: &'static Registry,
        candidate: Candidate,
        expected: Op,
        code: impl FnOnce(Code) -> Option<C>,
    ) -> Result<Launcher<C>, Error> {
        let Candidate { index, entry } = candidate;
        if entry.op != expected {
            return Err(Error::WrongOp { kernel: entry.name, expected, found: entry.op });
        }
        admit(entry)?;
        let broken = Error::BrokenRegistry {
            package: registry.package,
            at: entry.name,
            what: "its code is of another op",
        };
        Ok(Launcher { entry, index, registry, code: code(entry.code).ok_or(broken)?, ledger: None })
    }

    /// A kernel of a GPU; `code` is `None` where it is of another op.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_gpu(
        registry: &'static Registry,
        candidate: Candidate,
        expected: Op,
        code: impl FnOnce(&crate::registry::CudaCode) -> Result<Option<C>, Error>,
    ) -> Result<Launcher<C>, Error> {
        let Candidate { index, entry } = candidate;
        if entry.op != expected {
            return Err(Error::WrongOp { kernel: entry.name, expected, found: entry.op });
        }
        let made = match &entry.code {
            Code::Cuda(cuda) => code(cuda)?,
            _ => None,
        };
        let broken = Error::BrokenRegistry {
            package: registry.package,
            at: entry.name,
            what: "its code is of another op or device",
        };
        Ok(Launcher { entry, index, registry, code: made.ok_or(broken)?, ledger: None })
    }

    /// Enqueues one launch on a GPU, timed by its clock where times are taken, and counts it once the driver has
    /// taken it. An observer has its times later, without anybody waiting.
    #[cfg(feature = "cuda")]
    pub(crate) fn enqueued(
        &self,
        gpu: &crate::cuda::Gpu,
        shape: Shape,
        [bytes_in, bytes_out]: [usize; 2],
        enqueue: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let device = Device::cuda(gpu.profile().index);
        if gpu.is_capturing() {
            enqueue()?;
            let launch = self.described(device, shape, [bytes_in, bytes_out], None, None);
            gpu.count_later(Tally { launch, ledger: self.ledger.clone() });
            return Ok(());
        }
        gpu.tell_times();
        let observer = observer();
        let mut launch = self.described(device, shape, [bytes_in, bytes_out], None, None);
        // What an engine captures has no times.
        if timing() && !gpu.engine_captures()? {
            launch.time = Some(gpu.time(enqueue)?.1);
        } else if let Some(observer) = observer.filter(|observer| {
            observer.wants_time(self.registry, self.index, shape, device) && gpu.takes_times()
        }) {
            gpu.time_later(enqueue, move |time| observer.timed(&Launch { time: Some(time), ..launch }))?;
        } else {
            enqueue()?;
        }
        count(&launch, self.ledger.as_deref(), observer);
        Ok(())
    }

    pub(crate) fn code(&self) -> &C {
        &self.code
    }

    pub(crate) fn broken(&self, what: &'static str) -> Error {
        Error::BrokenRegistry { package: self.registry.package, at: self.entry.name, what }
    }

    /// Lets the launches of this handle count in `recording`, or in none.
    pub(crate) fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        if let Some(recording) = recording
            && !std::ptr::eq(recording.ledger.registry, self.registry)
        {
            return Err(Error::ForeignRecording {
                recording: recording.ledger.registry.package,
                kernel: self.registry.package,
            });
        }
        self.ledger = recording.map(|recording| Arc::clone(&recording.ledger));
        Ok(())
    }

    /// Tells of a step of recovery, in the recording too.
    #[cfg(feature = "cuda")]
    pub(crate) fn recovered(&self, step: Recovery) {
        recovered(&step);
        if let Some(ledger) = &self.ledger {
            ledger.recovered(step);
        }
    }

    /// One launch: counted whether or not it ends in a fault, since it ran.
    #[inline]
    pub(crate) fn launch<R: Ending>(&self, shape: Shape, bytes: [usize; 2], run: impl FnOnce() -> R) -> R {
        let asked = asked();
        let observer = asked.observer();
        let first = if asked.marks() { first_run(self.entry, shape) } else { None };
        let wants =
            observer.filter(|observer| observer.wants_time(self.registry, self.index, shape, Device::CPU));
        let started = (timing() || wants.is_some()).then(Instant::now);
        let (outcome, threads) = match wants.is_some_and(|observer| observer.wants_threads()) {
            true => measured(run),
            false => (run(), None),
        };
        let time = started.map(|started| started.elapsed());
        drop(first);
        let launch = self.described(Device::CPU, shape, bytes, time, Some(outcome.is_fault()));
        let launch = Launch { threads, ..launch };
        count(&launch, self.ledger.as_deref(), observer);
        outcome
    }

    /// Counts a launch that went out with others, so that nobody knows its own time.
    pub(crate) fn ran_with_others(&self, shape: Shape, bytes: [usize; 2]) {
        count(
            &self.described(Device::CPU, shape, bytes, None, Some(false)),
            self.ledger.as_deref(),
            observer(),
        );
    }

    #[inline]
    fn described(
        &self,
        device: Device,
        shape: Shape,
        [bytes_in, bytes_out]: [usize; 2],
        time: Option<Duration>,
        fault: Option<bool>,
    ) -> Launch {
        let Launcher { entry, index, registry, .. } = *self;
        Launch { registry, index, entry, device, shape, bytes_in, bytes_out, time, threads: None, fault }
    }
}
