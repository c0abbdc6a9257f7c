//! One weight matrix over several devices.

mod options;
mod place;
mod replicated;
mod run;
mod shares;
mod state;

pub use options::DivideOptions;
pub use replicated::ReplicatedLinear;
pub use shares::Shares;
pub use state::{DividedPart, LostGpu};

use super::LinearOptions;
use crate::activations::Input;
use crate::cuda::{DeviceBuffer, DeviceInput};
use crate::error::Error;
use crate::observe::{Locked, recovered};
use crate::operands::quantized_buf::QuantizedBuf;
use crate::receipt::Recording;
use crate::recovery::{Recovery, RecoveryStep};
use crate::registry::Registry;
use crate::threads::Threads;
use crate::workspace::{Workspace, WorkspaceSize};
use run::{Operands, Run};
use state::{Candidate, Loss, Part, State, lost_gpu};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// A layer whose weights' **rows, its output features**, are divided over several devices: each has all of the input, computes its own
/// columns of the output, and these are gathered. No sums cross devices, so that int8 products have the bits of the undivided
/// layer ([`Linear`](crate::Linear)). In the literature on tensor parallelism, where weights are written transposed, this is *column* parallelism
/// with its outputs gathered (`ColumnParallelLinear` with `gather_output` of Megatron-LM); it is not what is called row parallelism
/// there, which divides k.
///
/// Each part is a layer of its own, packed and decided on for its device, with rows in whole panels of the packing. A run enqueues all
/// parts before it waits for one, and computes parts of the processor meanwhile; but for int8 activations, whose parts follow one another, and
/// for activations on a device, which others that do not reach its memory are given through the processor's, in turn.
///
/// Where a device is lost (an error that its context does not survive, or of a device that is gone), the rows that it had are packed
/// again from the quantized weights, which are kept, for the devices that are left, by their shares, and the product is repeated:
/// nobody sees it but in time, and in the receipt, where the step is [`RecoveryStep::TakenOver`](crate::RecoveryStep). The
/// processor takes over what no GPU that is left has room for, or all where none is left, under [`Policy::Cpu`](crate::Policy) alone. A
/// device that was lost stays out of the layer.
#[derive(Debug)]
pub struct DividedLinear<'w> {
    registry: &'static Registry,
    weights: QuantizedBuf<'w>,
    options: LinearOptions,
    keep_division: bool,
    candidates: Vec<Candidate>,
    state: RwLock<State>,
}

impl<'w> DividedLinear<'w> {
    /// The layer. It needs `weights` for as long as it lives: own, or lent from a file that is mapped. `options` are those of
    /// [`Linear::new`](crate::Linear::new), but for the device, which each part has its own of; an opened GPU in them is taken for that device's part.
    ///
    /// # Errors
    /// [`Error::Division`] for devices or shares that nothing can be divided by; [`Error::NoGpu`]; else as for [`Linear::new`](crate::Linear::new). Nobody
    /// takes over while the layer is made.
    pub fn new(
        registry: &'static Registry,
        weights: QuantizedBuf<'w>,
        options: &LinearOptions,
        divide: &DivideOptions,
        threads: &Threads,
    ) -> Result<DividedLinear<'w>, Error> {
        let options = options.fixed(registry)?;
        let mut layer = DividedLinear {
            registry,
            weights,
            options,
            keep_division: divide.keep_division,
            candidates: Vec::new(),
            state: RwLock::default(),
        };
        layer.candidates = layer.candidates(divide)?;
        let mut state = State::default();
        state.homeless.push(0..layer.n());
        layer.place(&mut state, None, threads)?;
        layer.state = RwLock::new(state);
        Ok(layer)
    }

    /// Rows of the weights: outputs.
    pub fn n(&self) -> usize {
        self.weights.n()
    }

    /// Elements of a row: inputs.
    pub fn k(&self) -> usize {
        self.weights.k()
    }

    /// Bytes of the weights that are kept besides those of the parts, so that they can be packed again.
    pub fn kept_bytes(&self) -> usize {
        self.weights.data().len()
    }

    /// Which device has which rows at the moment, in the order of rows. After a device was lost another one may have several parts.
    pub fn parts(&self) -> Vec<DividedPart> {
        let part = |part: &Part| DividedPart {
            rows: part.rows.clone(),
            device: part.note.device,
            weight_bytes: part.linear.weight_bytes(),
        };
        self.read().parts.iter().map(part).collect()
    }

    /// The devices that were lost so far, in that order.
    pub fn lost(&self) -> Vec<LostGpu> {
        self.read().lost.clone()
    }

    /// As [`Linear::record`](crate::Linear::record): launches of all parts count, and the receipt says which device had which rows, and who took over.
    ///
    /// # Errors
    /// As for [`Linear::record`](crate::Linear::record).
    pub fn record(&self, recording: Option<&Recording>) -> Result<(), Error> {
        let state = &mut *self.write();
        state::record(state.parts.iter_mut(), &mut state.recording, recording)
    }

    /// What a workspace must hold for up to `m` tokens: for parts on the processor. What runs need on GPUs comes with the first. A run
    /// that takes over makes the one that it is given larger if need be.
    ///
    /// # Errors
    /// As for [`Linear::workspace_size`](crate::Linear::workspace_size).
    pub fn workspace_size(&self, m: usize, threads: &Threads) -> Result<WorkspaceSize, Error> {
        self.read().workspace_size(m, threads)
    }

    /// A workspace for up to `m` tokens.
    ///
    /// # Errors
    /// As for [`Linear::workspace`](crate::Linear::workspace).
    pub fn workspace(&self, m: usize, threads: &Threads) -> Result<Workspace, Error> {
        Workspace::of_size(self.workspace_size(m, threads)?)
    }

    /// As [`Linear::forward`](crate::Linear::forward), by all devices: `y` (`m * n`) in the order of the weights' rows. Operands are the processor's. Waits for
    /// all devices.
    ///
    /// # Errors
    /// As for [`Linear::forward`](crate::Linear::forward); [`Error::Gpu`] of a device that was lost, where nobody takes over, and [`Error::NoGpu`] where nobody
    /// is left. `y` then holds nothing of use.
    pub fn forward(
        &self,
        input: Input<'_>,
        m: usize,
        bias: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        self.run(Run { m, bias, threads, operands: Operands::Processor(input, y) }, workspace)
    }

    /// The same with activations and outputs on one of the devices, or on another GPU: activations are copied to the other devices
    /// and outputs from them, directly where they reach each other (`cuDeviceCanAccessPeer`), else through page-locked memory of the processor.
    /// Waits for all devices, and for what was enqueued before on that one. All tokens go at once.
    ///
    /// # Errors
    /// As for [`forward`](DividedLinear::forward); [`Error::Gpu`] where the device with the activations was lost, since they were lost with
    /// it; [`Error::WrongDevice`] if activations and outputs are on different ones, or streams; [`Error::Overlap`]; [`Error::Capturing`].
    pub fn forward_on_device(
        &self,
        input: DeviceInput<'_>,
        m: usize,
        bias: Option<&[f32]>,
        y: &mut DeviceBuffer<f32>,
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        self.run(Run { m, bias, threads, operands: Operands::Gpu(input, y) }, workspace)
    }

    /// How many rows each device does in a second with `m` tokens, as they are divided now: the best of five runs of each part
    /// alone, without copies. In the order of [`DivideOptions::devices`]; 0 for a device without rows, which one that was lost is too.
    /// [`Shares::Given`] takes it, to divide another layer, or this one anew, by measured speed; a device whose share is 0 does not take over
    /// from others either, so that it needs another number where it should. A part should be large enough to occupy its device.
    ///
    /// # Errors
    /// As for [`forward`](DividedLinear::forward); nobody takes over.
    pub fn speeds(&self, m: usize, threads: &Threads) -> Result<Vec<f64>, Error> {
        let state = self.read();
        let mut workspace = Workspace::of_size(state.workspace_size(m, threads)?)?;
        let mut speeds = Vec::with_capacity(self.candidates.len());
        for candidate in &self.candidates {
            let (mut rows, mut time) = (0, Duration::ZERO);
            for part in state.parts.iter().filter(|part| part.note.device == candidate.device) {
                rows += part.rows.len();
                time += part.time([m.max(1), self.k()], &mut workspace, threads)?;
            }
            speeds.push(rows as f64 / time.as_secs_f64().max(1e-9));
        }
        Ok(speeds)
    }

    fn run(&self, mut run: Run<'_>, workspace: &mut Workspace) -> Result<(), Error> {
        let shape = [self.n(), self.k()];
        run.check(shape)?;
        if run.m == 0 || shape[0] == 0 {
            return Ok(());
        }
        let state = self.read();
        let lost = state.lost.len();
        let mut stopped = None;
        if state.homeless.is_empty() {
            if lost > 0 {
                // Made for the layer as it was before others took over, perhaps.
                workspace.grow(state.workspace_size(run.m, run.threads)?)?;
            }
            match state.run(&mut run, shape, workspace) {
                Ok(()) => return Ok(()),
                Err(error) => stopped = Some(self.loss(&state, &run, error)?),
            }
        }
        drop(state);
        self.recover((stopped, lost), run, workspace)
    }

    /// The device whose loss an error says, where others may take over from it; else the error.
    fn loss(&self, state: &State, run: &Run<'_>, error: Error) -> Result<LostGpu, Error> {
        match lost_gpu(&error) {
            Some(index) if !self.keep_division && state.has(index) && run.home() != Some(index) => {
                Ok(LostGpu { index, why: error.to_string() })
            }
            _ => Err(error),
        }
    }

    /// Gives rows of lost devices to others and runs again, until a run loses none.
    fn recover(
        &self,
        (mut stopped, lost): (Option<LostGpu>, usize),
        mut run: Run<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let shape = [self.n(), self.k()];
        let mut state = self.write();
        if state.lost.len() != lost {
            // Another thread was faster: the device may have no rows any more.
            stopped = stopped.filter(|loss| state.has(loss.index));
        }
        // Each round but the first takes a device away, so that this ends.
        for attempt in 1.. {
            let started = Instant::now();
            let mut losses: Vec<Loss> = stopped.take().map(|loss| state.lose(loss)).into_iter().collect();
            let placed = self.place(&mut state, Some(&mut losses), run.threads);
            workspace.forget(|index| state.lost.iter().any(|lost| lost.index == index));
            let ready = placed.and_then(|()| workspace.grow(state.workspace_size(run.m, run.threads)?));
            let outcome = ready.and_then(|()| state.run(&mut run, shape, workspace));
            let next = match outcome {
                Ok(()) => Ok(None),
                Err(error) => self.loss(&state, &run, error).map(Some),
            };
            // Whatever else an error says, it is none of a device.
            let noted = self.notes(&state, losses, (attempt, matches!(next, Ok(None)), started));
            for step in noted {
                recovered(&step);
                if let Some(recording) = &state.recording {
                    recording.ledger.recovered(step);
                }
            }
            match next? {
                None => return Ok(()),
                loss => stopped = loss,
            }
        }
        Ok(())
    }

    /// What there is to tell of devices that were lost in a round.
    fn notes(
        &self,
        state: &State,
        losses: Vec<Loss>,
        (attempt, success, started): (u32, bool, Instant),
    ) -> Vec<Recovery> {
        let note = |Loss { lost, rows, kernel }: Loss| {
            let kernel = kernel?;
            let takes = |part: &&Part| rows.iter().any(|rows| rows.contains(&part.rows.start));
            let takers = || state.parts.iter().filter(takes);
            let list =
                |parts: Vec<String>| if parts.is_empty() { String::from("nobody") } else { parts.join(", ") };
            let from = list(rows.iter().map(|rows| format!("{} to {}", rows.start, rows.end)).collect());
            let to = takers()
                .map(|part| format!("{} ({} to {})", part.note.device, part.rows.start, part.rows.end));
            Some(Recovery {
                step: RecoveryStep::TakenOver,
                op: kernel.op,
                format: self.weights.format().name.to_owned(),
                kernel: kernel.name,
                id: kernel.id,
                reason: format!(
                    "cuda:{} was lost, rows {from} went to {}: {}",
                    lost.index,
                    list(to.collect()),
                    lost.why
                ),
                then: takers().find_map(Part::product).map(|kernel| kernel.name),
                attempt,
                success,
                time: started.elapsed(),
            })
        };
        losses.into_iter().filter_map(note).collect()
    }

    // What is behind the lock is whole after a panic too: rows are in a part or without a device at any time.
    fn read(&self) -> Locked<RwLockReadGuard<'_, State>> {
        Locked::by(|| self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> Locked<RwLockWriteGuard<'_, State>> {
        Locked::by(|| self.state.write().unwrap_or_else(PoisonError::into_inner))
    }
}
