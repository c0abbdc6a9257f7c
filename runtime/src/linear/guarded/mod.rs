//! A layer that goes on where a kernel fails, in stated steps.

mod check;

use super::{Linear, LinearOptions};
use crate::activations::Input;
use crate::device::Device;
use crate::error::Error;
use crate::observe::recovered;
use crate::quantized_buf::QuantizedBuf;
use crate::receipt::Recording;
use crate::recovery::{Quarantine, Recovery, RecoveryStep};
use crate::registry::{Entry, Registry};
use crate::request::{Restrict, Shape};
use crate::threads::Threads;
use crate::workspace::{Workspace, WorkspaceSize};
use std::any::Any;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

/// How a layer is guarded.
#[derive(Clone, Debug, Default)]
pub struct GuardOptions {
    /// One run of so many is compared with the portable kernel, in one output; `None`: none is. Such a run packs one row of the
    /// weights and multiplies one token with it besides, and allocates.
    pub check_every: Option<NonZeroU64>,
    /// What is not to be used any more: one for all layers of a program.
    pub quarantine: Quarantine,
}

/// A [`Linear`] on the processor that keeps its quantized weights, and where a kernel panics, computes something else than the portable
/// kernel, or is put into [quarantine](Quarantine) by the program, goes on with what is left:
///
/// * after a panic the run is repeated on the calling thread alone; if it panics there too, the kernel goes into quarantine;
/// * after a wrong number weights are packed again from those that are kept (memory may have changed), and the run is repeated; if
///   the number is wrong again, the kernel goes into quarantine;
/// * without a kernel in quarantine kernels are decided on again, weights packed for them, and the run repeated.
///
/// Each step is in the receipt, is told to the observer, and ends with a run, whose success it states. Kernels give the same bits, so nobody
/// sees it but in time. A run without a failure costs a lock that is taken for reading, and a counter. A signal such as `SIGILL` ends
/// the program, as a panic does where the program is built with `panic = "abort"`; nothing here catches them.
#[derive(Debug)]
pub struct GuardedLinear<'w> {
    registry: &'static Registry,
    weights: QuantizedBuf<'w>,
    options: LinearOptions,
    guard: GuardOptions,
    runs: AtomicU64,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    linear: Linear,
    /// Kernels in quarantine that it was made without.
    known: u64,
    /// How often it was made again.
    remade: u64,
    recording: Option<Recording>,
}

/// A run, without the memory that it writes.
#[derive(Clone, Copy)]
struct Run<'r> {
    input: Input<'r>,
    m: usize,
    bias: Option<&'r [f32]>,
    threads: &'r Threads,
    /// Which output is compared.
    sample: Option<u64>,
}

/// Why a run did not end well.
enum Failure {
    /// By no fault of a kernel.
    Refused(Error),
    Kernel(Seen),
}

/// What was seen of a kernel.
#[derive(Clone)]
struct Seen {
    kernel: &'static Entry,
    panicked: bool,
    why: String,
}

impl<'w> GuardedLinear<'w> {
    /// The layer. Unlike [`Linear`] it needs `weights` for as long as it lives: own, or lent from a file that is mapped.
    ///
    /// # Errors
    /// As for [`Linear::new`]; [`Error::ProcessorOnly`] for a GPU; where runs are to be compared, why there is no portable kernel.
    pub fn new(
        registry: &'static Registry,
        weights: QuantizedBuf<'w>,
        options: &LinearOptions,
        guard: GuardOptions,
        threads: &Threads,
    ) -> Result<GuardedLinear<'w>, Error> {
        if options.device != Device::CPU {
            let device = options.device.kind;
            return Err(Error::ProcessorOnly { what: "guarded layers", device });
        }
        let (restrict, tuning) = options.resolved(registry)?;
        let tuning = Some(Arc::new(tuning.into_owned()));
        let options = LinearOptions { restrict: Some(restrict), tuning, adaptive: None, ..options.clone() };
        let known = guard.quarantine.count();
        let linear = make(registry, &weights, &options, &guard.quarantine, threads)?;
        let state = RwLock::new(State { linear, known, remade: 0, recording: None });
        let guarded = GuardedLinear { registry, weights, options, guard, runs: AtomicU64::new(0), state };
        if guarded.guard.check_every.is_some() && guarded.weights.n() > 0 {
            guarded.portable(0)?;
        }
        Ok(guarded)
    }

    /// Rows of the weights: outputs.
    pub fn n(&self) -> usize {
        self.weights.n()
    }

    /// Elements of a row: inputs.
    pub fn k(&self) -> usize {
        self.weights.k()
    }

    /// Bytes of the weights that are kept besides [`weight_bytes`](GuardedLinear::weight_bytes): what being able to pack again costs. While
    /// weights are packed again, both packings are held.
    pub fn kept_bytes(&self) -> usize {
        self.weights.data().len()
    }

    /// As [`Linear::weight_bytes`], at the moment.
    pub fn weight_bytes(&self) -> usize {
        self.read().linear.weight_bytes()
    }

    /// As [`Linear::record`]; steps of recovery are in the receipt too.
    ///
    /// # Errors
    /// As for [`Linear::record`].
    pub fn record(&self, recording: Option<&Recording>) -> Result<(), Error> {
        let mut state = self.write();
        state.linear.record(recording)?;
        state.recording = recording.cloned();
        Ok(())
    }

    /// What a workspace must hold for up to `m` tokens. A run after a step makes the one that it is given larger if need be.
    ///
    /// # Errors
    /// As for [`Linear::workspace_size`].
    pub fn workspace_size(&self, m: usize, threads: &Threads) -> Result<WorkspaceSize, Error> {
        self.read().linear.workspace_size(m, threads)
    }

    /// As [`Linear::forward`], with the steps that are stated above.
    ///
    /// # Errors
    /// As for [`Linear::forward`]; [`Error::KernelFailed`] where a kernel failed and no other one is left, and then `y` holds nothing of use.
    pub fn forward(
        &self,
        input: Input<'_>,
        m: usize,
        bias: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let every = self.guard.check_every.map(NonZeroU64::get);
        let sample = every.filter(|every| number % every == every - 1).map(|every| number / every);
        let run = Run { input, m, bias, threads, sample };
        let state = self.read();
        let remade = state.remade;
        let mut seen = None;
        if state.known == self.guard.quarantine.count() {
            match self.attempt(&state, &run, y, workspace) {
                Ok(()) => return Ok(()),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Kernel(failed)) => seen = Some(failed),
            }
        }
        drop(state);
        self.recover(seen, remade, run, y, workspace)
    }

    /// Steps, each with a run behind it, until one is good or no kernel is left.
    fn recover(
        &self,
        mut seen: Option<Seen>,
        remade: u64,
        run: Run<'_>,
        y: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let mut state = self.write();
        if state.remade != remade {
            // Somebody else was faster: the layer is another one now.
            seen = None;
        }
        self.obey(&mut state, &run)?;
        let alone = Threads::single();
        let mut run = run;
        // A kernel has its first step once, so that this ends.
        let (mut attempt, mut tried) = (0, Vec::new());
        loop {
            let started = Instant::now();
            let mut step = None;
            if let Some(Seen { kernel, panicked, why }) = &seen {
                attempt += 1;
                let made = match (tried.contains(&kernel.id), panicked) {
                    (false, true) => {
                        run.threads = &alone;
                        step = Some(RecoveryStep::OneThread);
                        Ok(())
                    }
                    (false, false) => {
                        step = Some(RecoveryStep::Repacked);
                        self.remake(&mut state, run.threads)
                    }
                    (true, _) => {
                        step = Some(RecoveryStep::Quarantined);
                        self.guard.quarantine.add(kernel.id, why.clone());
                        self.remake(&mut state, run.threads)
                    }
                };
                tried.push(kernel.id);
                if let Err(error) = made {
                    self.note(&state, &run, step, kernel, why, (attempt, false, started));
                    return Err(match error {
                        Error::NoKernel(_) => Error::KernelFailed { kernel: kernel.name, why: why.clone() },
                        other => other,
                    });
                }
            }
            let outcome = self.attempt(&state, &run, y, workspace);
            if let Some(Seen { kernel, why, .. }) = &seen {
                let success = !matches!(outcome, Err(Failure::Kernel(_)));
                self.note(&state, &run, step, kernel, why, (attempt, success, started));
            }
            match outcome {
                Ok(()) => return Ok(()),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Kernel(failed)) => seen = Some(failed),
            }
        }
    }

    /// Makes the layer again if one of its kernels is in quarantine.
    fn obey(&self, state: &mut State, run: &Run<'_>) -> Result<(), Error> {
        let count = self.guard.quarantine.count();
        if state.known == count {
            return Ok(());
        }
        let listed = self.guard.quarantine.kernels();
        let of_layer = |id| state.linear.kernels().find(|kernel| kernel.id == id);
        let found: Vec<_> =
            listed.into_iter().filter_map(|listed| Some((of_layer(listed.id)?, listed.why))).collect();
        if found.is_empty() {
            state.known = count;
            return Ok(());
        }
        let started = Instant::now();
        let made = self.remake(state, run.threads);
        for (number, (kernel, why)) in (1..).zip(&found) {
            let step = Some(RecoveryStep::DecidedAgain);
            self.note(state, run, step, kernel, why, (number, made.is_ok(), started));
        }
        made
    }

    fn remake(&self, state: &mut State, threads: &Threads) -> Result<(), Error> {
        let known = self.guard.quarantine.count();
        let mut linear = make(self.registry, &self.weights, &self.options, &self.guard.quarantine, threads)?;
        linear.record(state.recording.as_ref())?;
        (state.linear, state.known, state.remade) = (linear, known, state.remade + 1);
        Ok(())
    }

    /// One run, compared if it is to be.
    fn attempt(
        &self,
        state: &State,
        run: &Run<'_>,
        y: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<(), Failure> {
        let Run { input, m, bias, threads, sample } = *run;
        let linear = &state.linear;
        if state.remade > 0 {
            let size = linear.workspace_size(m, threads).map_err(Failure::Refused)?;
            workspace.grow(size).map_err(Failure::Refused)?;
        }
        // A run that is cut off leaves numbers that mean nothing in `y` and the workspace, and the pool as it was.
        let outcome =
            catch_unwind(AssertUnwindSafe(|| linear.forward(input, m, bias, y, workspace, threads)));
        match outcome {
            Ok(outcome) => outcome.map_err(Failure::Refused)?,
            Err(payload) => {
                let Some(kernel) = self.panicking(linear, run, workspace) else {
                    std::panic::resume_unwind(payload)
                };
                let why = format!("it panicked: {}", message(&*payload));
                return Err(Failure::Kernel(Seen { kernel, panicked: true, why }));
            }
        }
        let Some(sample) = sample else { return Ok(()) };
        match self.compare(linear, run, sample, y).map_err(Failure::Refused)? {
            None => Ok(()),
            Some(seen) => Err(Failure::Kernel(seen)),
        }
    }

    /// Which kernel of a run panicked: what quantizes activations, if that panics by itself, else the product. `None` where none ran.
    fn panicking(&self, linear: &Linear, run: &Run<'_>, workspace: &mut Workspace) -> Option<&'static Entry> {
        let (product, quantizer) = self.kernels_of(linear, run)?;
        let quantizes = AssertUnwindSafe(|| {
            let _ = linear.quantize(run.input, run.m, workspace, &Threads::single());
        });
        quantizer.filter(|_| catch_unwind(quantizes).is_err()).or(Some(product))
    }

    /// The product of a run, and what quantizes its activations.
    fn kernels_of(&self, linear: &Linear, run: &Run<'_>) -> Option<(&'static Entry, Option<&'static Entry>)> {
        let shape = Shape { m: run.m, n: self.n(), k: self.k() };
        let matmul = &linear.choice(shape, run.input.dtype())?.matmul;
        let quantizer = matmul.processor_quantizer(run.input, shape).ok().flatten();
        Some((matmul.entry(), quantizer.map(|quantizer| quantizer.entry)))
    }

    fn note(
        &self,
        state: &State,
        run: &Run<'_>,
        step: Option<RecoveryStep>,
        kernel: &'static Entry,
        why: &str,
        (attempt, success, started): (u32, bool, Instant),
    ) {
        let Some(step) = step else { return };
        let then = self
            .kernels_of(&state.linear, run)
            .and_then(|(product, quantizer)| if kernel.op == product.op { Some(product) } else { quantizer });
        let left = state.known == self.guard.quarantine.count();
        let recovery = Recovery {
            step,
            op: kernel.op,
            format: self.weights.format().name.to_owned(),
            kernel: kernel.name,
            id: kernel.id,
            reason: why.to_owned(),
            then: then.filter(|_| left).map(|then| then.name),
            attempt,
            success,
            time: started.elapsed(),
        };
        recovered(&recovery);
        if let Some(recording) = &state.recording {
            recording.ledger.recovered(recovery);
        }
    }

    // What is behind the lock is replaced as a whole, so it is good after a panic too.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The layer without kernels in quarantine.
fn make(
    registry: &'static Registry,
    weights: &QuantizedBuf<'_>,
    options: &LinearOptions,
    quarantine: &Quarantine,
    threads: &Threads,
) -> Result<Linear, Error> {
    let mut restrict = options.restrict.clone().unwrap_or_default();
    disable(registry, quarantine, &mut restrict);
    let options = LinearOptions { restrict: Some(restrict), ..options.clone() };
    Linear::new(registry, &weights.matrix(), &options, threads)
}

/// Forbids what is in quarantine and of this registry.
fn disable(registry: &'static Registry, quarantine: &Quarantine, restrict: &mut Restrict) {
    for kernel in quarantine.kernels() {
        let entry = registry.entries.iter().find(|entry| entry.id == kernel.id);
        restrict.disabled.extend(entry.map(|entry| entry.name.to_owned()));
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
