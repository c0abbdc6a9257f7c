//! The steps of a guarded layer, each with a run behind it.

use super::device::{forget, give_back, is_lost, is_of_device, kernel_of, went_in_parts};
use super::failure::{Failure, Seen};
use super::lost::release;
use super::state::{Away, State};
use super::{GuardedLinear, Run, make};
use crate::device::Device;
use crate::error::Error;
use crate::linear::{Linear, LinearOptions, Policy};
use crate::observe::recovered;
use crate::quarantine::Quarantined;
use crate::receipt::FallbackNote;
use crate::recovery::{Recovery, RecoveryStep};
use crate::registry::{Entry, KernelId};
use crate::request::Shape;
use crate::threads::Threads;
use crate::workspace::Workspace;
use std::any::Any;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// A step that was done, before the run behind it.
struct Step {
    step: RecoveryStep,
    kernel: &'static Entry,
    why: String,
    /// Whether the layer is ready for the run.
    made: Result<(), Error>,
}

/// What was tried in one call: each kernel has its first step once, and each step of a device is done once, so that it ends.
#[derive(Default)]
struct Tried {
    kernels: Vec<KernelId>,
    steps: Vec<RecoveryStep>,
    /// The first error of the device, which is the cause of those behind it.
    cause: Option<Error>,
}

impl State {
    /// Says why it is nowhere, where an error of its GPU has left it there while it was made again.
    fn left_behind(&mut self, kernel: &'static Entry, error: &Error, number: u64) {
        if self.linear.is_none() && self.away.is_none() && is_of_device(error) {
            self.away = Some(Away { kernel, error: error.clone(), tried: number });
        }
    }
}

impl GuardedLinear<'_> {
    /// Whether the GPU is to be tried before this run.
    pub(super) fn is_due(&self, state: &State, number: u64) -> bool {
        let every = self.guard.return_every.map(NonZeroU64::get);
        let is_due = |away: &Away| every.is_some_and(|every| number.saturating_sub(away.tried) >= every);
        state.linear.is_none() || state.away.as_ref().is_some_and(is_due)
    }

    /// Steps, each with a run behind it, until one is good or nothing is left; so many were done before.
    pub(super) fn recover(
        &self,
        (mut failed, mut attempt): (Option<Failure>, u32),
        remade: u64,
        run: Run<'_>,
        y: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let alone = Threads::single();
        let mut run = run;
        let mut state = self.write();
        if state.remade != remade {
            // Somebody else was faster: the layer is another one now.
            failed = None;
        }
        match self.obey(&mut state, &run).map_err(Failure::from) {
            Ok(()) => {}
            Err(Failure::Refused(error)) => return Err(error),
            Err(failure) => failed = Some(failure),
        }
        let (mut first, mut tried) = (true, Tried::default());
        loop {
            let started = Instant::now();
            let step = match failed.take() {
                None if first && self.is_due(&state, run.number) => {
                    self.come_back(&mut state, &run, workspace, &mut tried)?
                }
                None => None,
                Some(Failure::Refused(error)) => return Err(error),
                Some(Failure::Kernel(seen)) => {
                    Some(self.after_kernel(&mut state, seen, &mut run, &alone, &mut tried))
                }
                Some(Failure::Device(error)) => {
                    Some(self.after_device(&mut state, error, &run, workspace, &mut tried)?)
                }
            };
            first = false;
            attempt += u32::from(step.is_some());
            if let Some(Step { step, kernel, why, made: Err(error) }) = &step {
                self.note(&state, &run, (*step, kernel, why), (attempt, false, started));
                let error = error.clone();
                state.left_behind(kernel, &error, run.number);
                match (step, error) {
                    // It goes on where it was.
                    (RecoveryStep::Returned, _) => {}
                    (_, error) if is_of_device(&error) => failed = Some(Failure::Device(error)),
                    (_, Error::NoKernel(_)) if !step.is_of_device() => {
                        return Err(Error::KernelFailed { kernel: kernel.name, why: why.clone() });
                    }
                    (_, error) => return Err(tried.cause.unwrap_or(error)),
                }
                continue;
            }
            let mut in_parts = None;
            let outcome = self.attempt(&state, &run, y, workspace, &mut in_parts);
            if let Some(Step { step, kernel, why, .. }) = &step {
                let success = !matches!(outcome, Err(Failure::Kernel(_) | Failure::Device(_)));
                self.note(&state, &run, (*step, kernel, why), (attempt, success, started));
            }
            self.note_parts(&state, &run, in_parts, &mut attempt);
            match outcome {
                Ok(()) => return Ok(()),
                Err(failure) => failed = Some(failure),
            }
        }
    }

    /// The step after a kernel failed.
    fn after_kernel<'r>(
        &self,
        state: &mut State,
        Seen { kernel, panicked, why }: Seen,
        run: &mut Run<'r>,
        alone: &'r Threads,
        tried: &mut Tried,
    ) -> Step {
        let (step, made) = match (tried.kernels.contains(&kernel.id), panicked) {
            (false, true) => {
                run.threads = alone;
                (RecoveryStep::OneThread, Ok(()))
            }
            (false, false) => (RecoveryStep::Repacked, self.remake(state, run.threads)),
            (true, _) => {
                let (id, name) = (kernel.id, Some(kernel.name.to_owned()));
                self.guard.quarantine.add_kernel(Quarantined { id, kernel: name, why: why.clone() });
                (RecoveryStep::Quarantined, self.remake(state, run.threads))
            }
        };
        tried.kernels.push(kernel.id);
        Step { step, kernel, why, made }
    }

    /// The step after an error of the GPU; its first error where none is left.
    fn after_device(
        &self,
        state: &mut State,
        error: Error,
        run: &Run<'_>,
        workspace: &mut Workspace,
        tried: &mut Tried,
    ) -> Result<Step, Error> {
        let first = if is_lost(&error) { RecoveryStep::Reopened } else { RecoveryStep::FreedMemory };
        let moves = self.options.policy == Policy::Cpu && self.options.device != Device::CPU;
        let steps = [Some(first), moves.then_some(RecoveryStep::MovedToProcessor)];
        let left = steps.into_iter().flatten().find(|step| !tried.steps.contains(step));
        let kernel = self.kernel_at_fault(state, run, &error);
        let cause = tried.cause.get_or_insert_with(|| error.clone()).clone();
        let (Some(step), Some(kernel)) = (left, kernel) else { return Err(cause) };
        tried.steps.push(step);
        let why = error.to_string();
        if step == RecoveryStep::FreedMemory {
            let mut made = give_back(state.linear.as_ref(), workspace);
            if made.is_ok() && state.linear.is_none() {
                made = self.to_device(state, run.threads);
            }
            return Ok(Step { step, kernel, why, made });
        }
        // It can be opened again only when nobody holds it, and has no room for the weights twice.
        state.linear = None;
        forget(workspace, Some(self.options.device));
        state.away = Some(Away { kernel, error: cause, tried: run.number });
        let made = match step {
            RecoveryStep::Reopened => self.to_device(state, run.threads),
            _ => self.remake(state, run.threads),
        };
        Ok(Step { step, kernel, why, made })
    }

    /// Tries the GPU again, where the layer is on the processor or nowhere.
    fn come_back(
        &self,
        state: &mut State,
        run: &Run<'_>,
        workspace: &mut Workspace,
        tried: &mut Tried,
    ) -> Result<Option<Step>, Error> {
        forget(workspace, None);
        let Some(away) = &mut state.away else {
            // Its kernels are in quarantine.
            self.remake(state, run.threads)?;
            return Ok(None);
        };
        away.tried = run.number;
        let (kernel, why) = (away.kernel, away.error.to_string());
        let step = match state.linear {
            Some(_) => RecoveryStep::Returned,
            None => RecoveryStep::Reopened,
        };
        tried.steps.push(step);
        tried.cause = Some(away.error.clone()).filter(|_| step == RecoveryStep::Reopened);
        let made = self.to_device(state, run.threads);
        Ok(Some(Step { step, kernel, why, made }))
    }

    /// Makes the layer on its GPU, of which others let go where it is lost. After an error it is where it was.
    fn to_device(&self, state: &mut State, threads: &Threads) -> Result<(), Error> {
        state.given.let_go_of_lost();
        if let Some(away) = &state.away {
            release(self.options.device, &away.error);
        }
        let _open = state.given.open(self.options.device)?;
        let before = (state.linear.take(), state.away.take());
        let made = self.remake(state, threads);
        if made.is_err() {
            (state.linear, state.away) = before;
        }
        made
    }

    /// Makes the layer again if one of its kernels is in quarantine.
    fn obey(&self, state: &mut State, run: &Run<'_>) -> Result<(), Error> {
        let count = self.guard.quarantine.count();
        let Some(linear) = state.linear.as_ref().filter(|_| state.known != count) else { return Ok(()) };
        let listed = self.guard.quarantine.kernels();
        let of_layer = |id| linear.kernels().find(|kernel| kernel.id == id);
        let found: Vec<_> =
            listed.into_iter().filter_map(|listed| Some((of_layer(listed.id)?, listed.why))).collect();
        if found.is_empty() {
            state.known = count;
            return Ok(());
        }
        let started = Instant::now();
        let made = self.remake(state, run.threads);
        for (number, (kernel, why)) in (1..).zip(&found) {
            let step = (RecoveryStep::DecidedAgain, *kernel, why.as_str());
            self.note(state, run, step, (number, made.is_ok(), started));
        }
        if let (Err(error), Some((kernel, _))) = (&made, found.first()) {
            state.left_behind(kernel, error, run.number);
        }
        made
    }

    /// Makes the layer again: on its device, or on the processor while it is away from its GPU.
    fn remake(&self, state: &mut State, threads: &Threads) -> Result<(), Error> {
        let known = self.guard.quarantine.count();
        if self.options.device != Device::CPU {
            // A GPU may have no room for the weights twice.
            state.linear = None;
        }
        let mut options = self.options.clone();
        if state.away.is_some() {
            options.device = Device::CPU;
        } else {
            state.given.put_into(&mut options);
        }
        let mut linear = make(self.registry, &self.weights, &options, &self.guard.quarantine, threads)?;
        if let Some(away) = &state.away {
            linear.moved = Some(self.fallback(away, &options));
        }
        // What is in quarantine by now has a step of its own.
        linear.choices.iter_mut().for_each(|choice| choice.matmul.forget_left_out());
        linear.record(state.recording.as_ref())?;
        (state.linear, state.known, state.remade) = (Some(linear), known, state.remade + 1);
        Ok(())
    }

    /// What counts runs on the processor in place of the GPU.
    fn fallback(&self, away: &Away, options: &LinearOptions) -> Arc<FallbackNote> {
        Arc::new(FallbackNote {
            policy: options.policy.name(),
            op: away.kernel.op,
            format: self.weights.format().name.to_owned(),
            device: self.options.device,
            reason: away.error.to_string(),
            instead: "a kernel on the processor",
            runs: AtomicU64::new(0),
        })
    }

    /// One run, compared if it is to be; why tokens followed one another in parts, if they did, and since when.
    pub(super) fn attempt(
        &self,
        state: &State,
        run: &Run<'_>,
        y: &mut [f32],
        workspace: &mut Workspace,
        in_parts: &mut Option<(Error, Instant)>,
    ) -> Result<(), Failure> {
        let Run { input, m, bias, threads, sample, .. } = *run;
        let Some(linear) = &state.linear else {
            let why = state.away.as_ref().map(|away| away.error.clone());
            return Err(why
                .unwrap_or(Error::Division { why: String::from("the layer has no device") })
                .into());
        };
        if state.remade > 0 {
            forget(workspace, None);
            let size = linear.workspace_size(m, threads)?;
            workspace.grow(size)?;
        }
        // What others left is theirs.
        let _ = went_in_parts(workspace);
        let started = (linear.prepared().device() != Device::CPU).then(Instant::now);
        // A run that is cut off leaves numbers that mean nothing in `y` and the workspace, and the pool as it was.
        let outcome =
            catch_unwind(AssertUnwindSafe(|| linear.forward(input, m, bias, y, workspace, threads)));
        match outcome {
            Ok(outcome) => outcome?,
            Err(payload) => {
                let Some(kernel) = self.panicking(linear, run, workspace) else {
                    std::panic::resume_unwind(payload)
                };
                let why = format!("it panicked: {}", message(&*payload));
                return Err(Failure::Kernel(Seen { kernel, panicked: true, why }));
            }
        }
        *in_parts = went_in_parts(workspace).zip(started);
        let Some(sample) = sample else { return Ok(()) };
        match self.compare(linear, run, sample, y)? {
            None => Ok(()),
            Some(seen) => Err(Failure::Kernel(seen)),
        }
    }

    /// Tells of parts of the tokens that followed one another in a run.
    pub(super) fn note_parts(
        &self,
        state: &State,
        run: &Run<'_>,
        in_parts: Option<(Error, Instant)>,
        steps: &mut u32,
    ) {
        let kernel = state.linear.as_ref().and_then(|linear| self.kernels_of(linear, run));
        if let (Some((why, started)), Some((kernel, _))) = (in_parts, kernel) {
            *steps += 1;
            let step = (RecoveryStep::InParts, kernel, &*why.to_string());
            self.note(state, run, step, (*steps, true, started));
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

    /// The product of a run, and what quantizes its activations on the processor.
    pub(super) fn kernels_of(
        &self,
        linear: &Linear,
        run: &Run<'_>,
    ) -> Option<(&'static Entry, Option<&'static Entry>)> {
        let shape = Shape { m: run.m, n: self.n(), k: self.k() };
        let matmul = &linear.choice(shape, run.input.dtype())?.matmul;
        let quantizer = matmul.processor_quantizer(run.input, shape).ok().flatten();
        Some((matmul.entry(), quantizer.map(|quantizer| quantizer.entry)))
    }

    /// The kernel that an error of the GPU names, else the product.
    fn kernel_at_fault(&self, state: &State, run: &Run<'_>, error: &Error) -> Option<&'static Entry> {
        let Some(linear) = &state.linear else { return state.away.as_ref().map(|away| away.kernel) };
        let named = kernel_of(error);
        let named = linear.kernels().find(|kernel| Some(kernel.name) == named);
        named.or_else(|| Some(self.kernels_of(linear, run)?.0))
    }

    fn note(
        &self,
        state: &State,
        run: &Run<'_>,
        (step, kernel, why): (RecoveryStep, &'static Entry, &str),
        (attempt, success, started): (u32, bool, Instant),
    ) {
        let linear = state.linear.as_ref();
        let then = linear.and_then(|linear| {
            let (product, quantizer) = self.kernels_of(linear, run)?;
            let of_op = || linear.kernels().find(|other| other.op == kernel.op);
            if kernel.op == product.op { Some(product) } else { quantizer.or_else(of_op) }
        });
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
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
