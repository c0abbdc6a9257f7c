//! The steps of a guarded layer, each with a run behind it.

use super::device::{forget, give_back, is_lost, kernel_of, tells_of_parts, went_in_parts};
use super::failure::{Failure, is_of_device};
use super::guard::{Guard, Run, make};
use super::kept::{Kept, Layer, Ran};
use super::lost::release;
use super::seen::{Seen, message};
use super::state::{Away, State};
use crate::device::Device;
use crate::error::Error;
use crate::gpu::NoGpu;
use crate::linear::{LinearOptions, Policy};
use crate::observe::{catching, recovered};
use crate::quarantine::Quarantined;
use crate::receipt::FallbackNote;
use crate::recovery::{Recovery, RecoveryStep};
use crate::registry::{Entry, KernelId};
use crate::threads::Threads;
use crate::workspace::Workspace;
use std::num::NonZeroU64;
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

impl<L> State<L> {
    /// Says why it is nowhere, where an error of its GPU has left it there while it was made again, or no kernel is left there and it `moves`.
    fn left_behind(&mut self, kernel: &'static Entry, error: &Error, number: u64, moves: bool) {
        let leaves = is_of_device(error) || (moves && matches!(error, Error::NoKernel(_)));
        if self.layer.is_none() && self.away.is_none() && leaves {
            self.away = Some(Away { kernel, error: error.clone(), tried: number });
        }
    }
}

impl<K: Kept> Guard<K, K::Layer> {
    /// Whether the GPU is to be tried before this run.
    pub(super) fn is_due(&self, state: &State<K::Layer>, number: u64) -> bool {
        let every = self.guard.return_every.map(NonZeroU64::get);
        let is_due = |away: &Away| every.is_some_and(|every| number.saturating_sub(away.tried) >= every);
        state.layer.is_none() || state.away.as_ref().is_some_and(is_due)
    }

    /// Whether the policy lets it move to the processor, with the operands of this run.
    fn moves(&self, work: &K::Work<'_>) -> bool {
        self.options.policy == Policy::Cpu && self.options.device != Device::CPU && !K::lies_on_device(work)
    }

    /// Steps, each with a run behind it, until one is good or nothing is left; so many were done before.
    pub(super) fn recover(
        &self,
        (mut failed, mut attempt): (Option<Failure>, u32),
        remade: u64,
        run: Run<'_>,
        work: &mut K::Work<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let alone = Threads::single();
        let mut run = run;
        let mut state = self.write();
        if state.remade != remade {
            // Somebody else was faster: the layer is another one now.
            failed = None;
        }
        match self.obey(&mut state, &run, work).map_err(Failure::from) {
            Ok(()) => {}
            Err(Failure::Refused(error @ Error::NoKernel(_))) if self.moves(work) => {
                failed = Some(Failure::Device(error));
            }
            Err(Failure::Refused(error)) => return Err(error),
            Err(failure) => failed = Some(failure),
        }
        if state.remade != remade && matches!(failed, Some(Failure::Kernel(_))) {
            // What failed is not in it any more.
            failed = None;
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
                    Some(self.after_device(&mut state, error, (&run, work), workspace, &mut tried)?)
                }
            };
            first = false;
            attempt += u32::from(step.is_some());
            if let Some(Step { step, kernel, why, made: Err(error) }) = step {
                self.note(&state, work, (step, kernel, &why), (attempt, false, started));
                state.left_behind(kernel, &error, run.number, self.moves(work));
                failed = self.step_failed((step, kernel, why), error, work, &mut tried)?;
                continue;
            }
            let (outcome, in_parts) = self.attempt(&state, &run, work, workspace);
            if let Some(Step { step, kernel, why, .. }) = &step {
                let success = !matches!(outcome, Err(Failure::Kernel(_) | Failure::Device(_)));
                self.note(&state, work, (*step, kernel, why), (attempt, success, started));
            }
            self.note_parts(&state, work, in_parts, &mut attempt);
            match outcome {
                Ok(()) => return Ok(()),
                Err(failure) => failed = Some(failure),
            }
        }
    }

    /// What the next step answers after one whose layer could not be made; nothing where it goes on where it was. The error where no step is left.
    fn step_failed(
        &self,
        (step, kernel, why): (RecoveryStep, &'static Entry, String),
        error: Error,
        work: &K::Work<'_>,
        tried: &mut Tried,
    ) -> Result<Option<Failure>, Error> {
        let can_move = || self.moves(work) && !tried.steps.contains(&RecoveryStep::MovedToProcessor);
        match (step, error) {
            (RecoveryStep::Returned, _) => Ok(None),
            (_, error) if is_of_device(&error) => Ok(Some(Failure::Device(error))),
            (_, error @ Error::NoKernel(_)) if can_move() => Ok(Some(Failure::Device(error))),
            (_, Error::NoKernel(_)) if !step.is_of_device() => {
                Err(Error::KernelFailed { kernel: kernel.name, why })
            }
            (_, error) => Err(tried.cause.take().unwrap_or(error)),
        }
    }

    /// The step after a kernel failed.
    fn after_kernel<'r>(
        &self,
        state: &mut State<K::Layer>,
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
        state: &mut State<K::Layer>,
        error: Error,
        (run, work): (&Run<'_>, &K::Work<'_>),
        workspace: &mut Workspace,
        tried: &mut Tried,
    ) -> Result<Step, Error> {
        let first = match &error {
            // Of those that are left there is none for this run.
            Error::NoKernel(_) => None,
            // The operands are lost with it.
            error if is_lost(error) && K::lies_on_device(work) => None,
            error if is_lost(error) => Some(RecoveryStep::Reopened),
            _ => Some(RecoveryStep::FreedMemory),
        };
        let steps = [first, self.moves(work).then_some(RecoveryStep::MovedToProcessor)];
        let left = steps.into_iter().flatten().find(|step| !tried.steps.contains(step));
        let kernel = Self::kernel_at_fault(state, work, &error);
        let cause = tried.cause.get_or_insert_with(|| error.clone()).clone();
        let (Some(step), Some(kernel)) = (left, kernel) else {
            if let Some(kernel) = kernel.filter(|_| is_lost(&error)) {
                // The next run opens it again, of which nobody may hold anything then.
                self.leave(state, (kernel, cause.clone()), run, workspace);
            }
            return Err(cause);
        };
        tried.steps.push(step);
        let why = error.to_string();
        if step == RecoveryStep::FreedMemory {
            let mut made = give_back(state.layer.as_ref(), workspace);
            if made.is_ok() && state.layer.is_none() {
                made = self.to_device(state, run.threads);
            }
            return Ok(Step { step, kernel, why, made });
        }
        self.leave(state, (kernel, cause), run, workspace);
        let made = match step {
            RecoveryStep::Reopened => self.to_device(state, run.threads),
            _ => self.remake(state, run.threads),
        };
        Ok(Step { step, kernel, why, made })
    }

    /// Lets go of the GPU: it can be opened again only when nobody holds it, and has no room for the weights twice.
    fn leave(
        &self,
        state: &mut State<K::Layer>,
        (kernel, error): (&'static Entry, Error),
        run: &Run<'_>,
        workspace: &mut Workspace,
    ) {
        state.layer = None;
        forget(workspace, Some(self.options.device));
        state.away = Some(Away { kernel, error, tried: run.number });
    }

    /// Tries the GPU again, where the layer is on the processor or nowhere.
    fn come_back(
        &self,
        state: &mut State<K::Layer>,
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
        let step = match state.layer {
            Some(_) => RecoveryStep::Returned,
            None => RecoveryStep::Reopened,
        };
        tried.steps.push(step);
        tried.cause = Some(away.error.clone()).filter(|_| step == RecoveryStep::Reopened);
        let made = self.to_device(state, run.threads);
        Ok(Some(Step { step, kernel, why, made }))
    }

    /// Makes the layer on its GPU, of which others let go where it is lost. After an error it is where it was.
    fn to_device(&self, state: &mut State<K::Layer>, threads: &Threads) -> Result<(), Error> {
        state.given.let_go_of_lost();
        if let Some(away) = &state.away {
            release(self.options.device, &away.error);
        }
        let _open = state.given.open(self.options.device)?;
        let before = (state.layer.take(), state.away.take());
        let made = self.remake(state, threads);
        if made.is_err() {
            (state.layer, state.away) = before;
        }
        made
    }

    /// Makes the layer again if one of its kernels is in quarantine.
    fn obey(&self, state: &mut State<K::Layer>, run: &Run<'_>, work: &K::Work<'_>) -> Result<(), Error> {
        let count = self.guard.quarantine.count();
        let Some(layer) = state.layer.as_ref().filter(|_| state.known != count) else { return Ok(()) };
        let listed = self.guard.quarantine.kernels();
        let of_layer = |id| layer.kernels().find(|kernel| kernel.id == id);
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
            self.note(state, work, step, (number, made.is_ok(), started));
        }
        if let (Err(error), Some((kernel, _))) = (&made, found.first()) {
            state.left_behind(kernel, error, run.number, self.moves(work));
        }
        made
    }

    /// Makes the layer again: on its device, or on the processor while it is away from its GPU.
    fn remake(&self, state: &mut State<K::Layer>, threads: &Threads) -> Result<(), Error> {
        let known = self.guard.quarantine.count();
        if self.options.device != Device::CPU {
            // A GPU may have no room for the weights twice.
            state.layer = None;
        }
        let mut options = self.options.clone();
        if state.away.is_some() {
            options.device = Device::CPU;
        } else {
            state.given.put_into(&mut options);
        }
        let mut layer = make(self.registry, &self.kept, &options, &self.guard.quarantine, threads)?;
        if let Some(away) = &state.away {
            layer.moved(self.fallback(away, &options));
        }
        // What is in quarantine by now has a step of its own.
        layer.forget_left_out();
        layer.record(state.recording.as_ref())?;
        (state.layer, state.known, state.remade) = (Some(layer), known, state.remade + 1);
        Ok(())
    }

    /// What counts runs on the processor in place of the GPU.
    fn fallback(&self, away: &Away, options: &LinearOptions) -> Arc<FallbackNote> {
        Arc::new(FallbackNote {
            policy: options.policy.name(),
            op: away.kernel.op,
            format: self.kept.format().name.to_owned(),
            device: self.options.device,
            reason: away.error.to_string(),
            instead: "a kernel on the processor",
            runs: AtomicU64::new(0),
        })
    }

    /// One run, compared if it is to be; why tokens followed one another in parts, if they did in a good one, and since when.
    pub(super) fn attempt(
        &self,
        state: &State<K::Layer>,
        run: &Run<'_>,
        work: &mut K::Work<'_>,
        workspace: &mut Workspace,
    ) -> (Result<(), Failure>, Option<(Error, Instant)>) {
        let Some(layer) = &state.layer else {
            let why = state.away.as_ref().map(|away| away.error.clone());
            let why = why.unwrap_or_else(|| Error::NoGpu {
                index: self.options.device.index,
                why: NoGpu::Lost { error: String::from("the layer was not packed for it again") },
            });
            return (Err(why.into()), None);
        };
        let started = (layer.device() != Device::CPU).then(Instant::now);
        if started.is_some() {
            tells_of_parts(workspace);
        }
        let ran = match self.compared(layer, state.remade > 0, run, work, workspace) {
            // A layer that was made without kernels in quarantine may have none on its GPU for some numbers of tokens.
            Err(Failure::Refused(error @ Error::NoKernel(_))) if state.remade > 0 && started.is_some() => {
                Err(Failure::Device(error))
            }
            ran => ran,
        };
        let in_parts = went_in_parts(workspace)
            .filter(|_| !matches!(ran, Err(Failure::Refused(_) | Failure::Device(_))));
        (ran, in_parts.zip(started))
    }

    /// One run of a layer that there is.
    fn compared(
        &self,
        layer: &K::Layer,
        remade: bool,
        run: &Run<'_>,
        work: &mut K::Work<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), Failure> {
        if remade {
            forget(workspace, None);
            workspace.grow(K::size(layer, work, run.threads)?)?;
        }
        // A run that is cut off leaves numbers that mean nothing in its results and the workspace, and the pool as it was.
        let outcome = catching(|| K::run(layer, work, remade, workspace, run.threads));
        match outcome {
            Ok(outcome) => outcome?,
            Err(payload) => {
                let Some(kernel) = K::panicked(layer, work, workspace) else {
                    std::panic::resume_unwind(payload)
                };
                let why = format!("it panicked: {}", message(&*payload));
                return Err(Failure::Kernel(Seen { kernel, panicked: true, why }));
            }
        }
        if run.sample.is_none() || !K::wait(layer, work, workspace)? {
            return Ok(());
        }
        self.seen(layer, work, workspace, run).map_or(Ok(()), Err)
    }

    /// What is wrong with a run that has ended well, if it is to be compared. A comparison has an error for reasons of its own, such as no
    /// memory for it: then the run counts as one that was not compared.
    pub(super) fn seen(
        &self,
        layer: &K::Layer,
        work: &K::Work<'_>,
        workspace: &Workspace,
        run: &Run<'_>,
    ) -> Option<Failure> {
        self.kept.compare(&self.portable(), layer, work, workspace, run.sample?).ok()?
    }

    /// Tells of parts of the tokens that followed one another in a run.
    pub(super) fn note_parts(
        &self,
        state: &State<K::Layer>,
        work: &K::Work<'_>,
        in_parts: Option<(Error, Instant)>,
        steps: &mut u32,
    ) {
        let ran = state.layer.as_ref().and_then(|layer| K::kernels_of(layer, work));
        if let (Some((why, started)), Some(Ran { kernel, .. })) = (in_parts, ran) {
            *steps += 1;
            let step = (RecoveryStep::InParts, kernel, &*why.to_string());
            self.note(state, work, step, (*steps, true, started));
        }
    }

    /// The kernel that an error of the GPU names, else the one of the run.
    fn kernel_at_fault(state: &State<K::Layer>, work: &K::Work<'_>, error: &Error) -> Option<&'static Entry> {
        let Some(layer) = &state.layer else { return state.away.as_ref().map(|away| away.kernel) };
        let named = kernel_of(error);
        let named = layer.kernels().find(|kernel| Some(kernel.name) == named);
        let of_run = || K::kernels_of(layer, work).map(|ran| ran.kernel);
        named.or_else(of_run).or_else(|| layer.kernels().next())
    }

    fn note(
        &self,
        state: &State<K::Layer>,
        work: &K::Work<'_>,
        (step, kernel, why): (RecoveryStep, &'static Entry, &str),
        (attempt, success, started): (u32, bool, Instant),
    ) {
        let then = state.layer.as_ref().and_then(|layer| {
            let ran = K::kernels_of(layer, work)?;
            let of_op = || layer.kernels().find(|other| other.op == kernel.op);
            if kernel.op == ran.kernel.op { Some(ran.kernel) } else { ran.quantizer.or_else(of_op) }
        });
        let left = state.known == self.guard.quarantine.count();
        let recovery = Recovery {
            step,
            op: kernel.op,
            format: self.kept.format().name.to_owned(),
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
