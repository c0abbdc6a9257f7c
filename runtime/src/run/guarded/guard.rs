//! What stands around a layer.

use super::check::Portable;
use super::device::Given;
use super::failure::Failure;
use super::kept::{Kept, Layer};
use super::lost;
use super::options::GuardOptions;
use super::state::State;
use crate::device::Device;
use crate::error::Error;
use crate::linear::LinearOptions;
use crate::observe::Locked;
use crate::quarantine::Quarantine;
use crate::receipt::Recording;
use crate::registry::Registry;
use crate::threads::Threads;
use crate::workspace::Workspace;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A layer with the weights that it is made of, and what is done where it fails.
#[derive(Debug)]
pub(super) struct Guard<K, L> {
    pub(super) registry: &'static Registry,
    pub(super) kept: K,
    pub(super) options: LinearOptions,
    pub(super) guard: GuardOptions,
    runs: AtomicU64,
    state: Arc<RwLock<State<L>>>,
}

/// A run, without its operands.
#[derive(Clone, Copy)]
pub(super) struct Run<'r> {
    pub(super) number: u64,
    pub(super) threads: &'r Threads,
    /// Which output is compared.
    pub(super) sample: Option<u64>,
}

impl<K: Kept> Guard<K, K::Layer> {
    pub(super) fn new(
        registry: &'static Registry,
        kept: K,
        options: &LinearOptions,
        guard: GuardOptions,
        threads: &Threads,
    ) -> Result<Guard<K, K::Layer>, Error> {
        let mut options = LinearOptions { adaptive: None, ..options.fixed(registry)? };
        let known = guard.quarantine.count();
        let layer = make(registry, &kept, &options, &guard.quarantine, threads)?;
        layer.tell_left_out();
        let given = Given::taken_from(&mut options);
        let state = State { layer: Some(layer), known, remade: 0, recording: None, away: None, given };
        let state = Arc::new(RwLock::new(state));
        if options.device != Device::CPU {
            lost::list(&state);
        }
        Ok(Guard { registry, kept, options, guard, runs: AtomicU64::new(0), state })
    }

    /// How layers for comparisons are made.
    pub(super) fn portable(&self) -> Portable<'_> {
        let Guard { registry, options, guard, .. } = self;
        Portable { registry, options, quarantine: &guard.quarantine }
    }

    /// Whether runs are compared.
    pub(super) fn compares(&self) -> bool {
        self.guard.check_every.is_some()
    }

    pub(super) fn weight_bytes(&self) -> usize {
        self.read().layer.as_ref().map_or(0, Layer::weight_bytes)
    }

    pub(super) fn device(&self) -> Option<Device> {
        self.read().layer.as_ref().map(Layer::device)
    }

    #[cfg(feature = "cuda")]
    pub(super) fn on_gpu(&self, gpu: &Arc<crate::cuda::Gpu>) -> Result<(), Error> {
        let found = Device::cuda(gpu.profile().index);
        if self.options.device != found {
            return Err(Error::OtherGpu { expected: self.options.device, found });
        }
        self.write().given = Given::Opened(Arc::clone(gpu));
        Ok(())
    }

    pub(super) fn record(&self, recording: Option<&Recording>) -> Result<(), Error> {
        let mut state = self.write();
        if let Some(layer) = &mut state.layer {
            layer.record(recording)?;
        }
        state.recording = recording.cloned();
        Ok(())
    }

    /// What a new run is called, and whether one of its outputs is compared.
    pub(super) fn begin<'r>(&self, threads: &'r Threads) -> Run<'r> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let every = self.guard.check_every.map(NonZeroU64::get);
        let sample = every.filter(|every| number % every == every - 1).map(|every| number / every);
        Run { number, threads, sample }
    }

    /// Whether the layer may run as it is: no kernel came into quarantine, and it is where it is to be.
    pub(super) fn is_ready(&self, state: &State<K::Layer>, number: u64) -> bool {
        state.known == self.guard.quarantine.count() && !self.is_due(state, number)
    }

    /// A run, with steps where it fails.
    pub(super) fn run(
        &self,
        work: &mut K::Work<'_>,
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let run = self.begin(threads);
        let state = self.read();
        let remade = state.remade;
        let (mut failed, mut steps) = (None, 0);
        if self.is_ready(&state, run.number) {
            let (outcome, in_parts) = self.attempt(&state, &run, work, workspace);
            self.note_parts(&state, work, in_parts, &mut steps);
            match outcome {
                Ok(()) => return Ok(()),
                Err(Failure::Refused(error)) => return Err(error),
                Err(failure) => failed = Some(failure),
            }
        }
        drop(state);
        self.recover((failed, steps), remade, run, work, workspace)
    }

    // What is behind the lock is replaced as a whole, so it is good after a panic too.
    pub(super) fn read(&self) -> Locked<RwLockReadGuard<'_, State<K::Layer>>> {
        Locked::by(|| self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn write(&self) -> Locked<RwLockWriteGuard<'_, State<K::Layer>>> {
        Locked::by(|| self.state.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The layer without kernels in quarantine.
pub(super) fn make<K: Kept>(
    registry: &'static Registry,
    kept: &K,
    options: &LinearOptions,
    quarantine: &Quarantine,
    threads: &Threads,
) -> Result<K::Layer, Error> {
    kept.make(registry, &Portable { registry, options, quarantine }.guarded_options(), threads)
}
