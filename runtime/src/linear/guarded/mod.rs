//! A layer that goes on where a kernel or its GPU fails, in stated steps.

mod check;
mod device;
mod failure;
mod lost;
mod recover;
mod state;

use self::device::Given;
use self::failure::Failure;
use self::state::State;
use super::{Linear, LinearOptions};
use crate::activations::Input;
use crate::device::Device;
use crate::error::Error;
use crate::quantized_buf::QuantizedBuf;
use crate::quarantine::Quarantine;
use crate::receipt::Recording;
use crate::registry::Registry;
use crate::threads::Threads;
use crate::workspace::{Workspace, WorkspaceSize};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How a layer is guarded.
#[derive(Clone, Debug, Default)]
pub struct GuardOptions {
    /// One run of so many is compared with the portable kernel, in one output; `None`: none is. Such a run packs one row of the
    /// weights and multiplies one token with it besides, and allocates. Products of floats, which have bits of their own, are not compared.
    pub check_every: Option<NonZeroU64>,
    /// What is not to be used any more: one for all layers of a program.
    pub quarantine: Quarantine,
    /// A layer that was moved from its GPU to the processor tries the GPU again before one run of so many; `None`: it stays.
    pub return_every: Option<NonZeroU64>,
}

/// A [`Linear`] that keeps its quantized weights, and where a kernel panics, computes something else than the portable
/// kernel, or is put into [quarantine](Quarantine) by the program, goes on with what is left:
///
/// * after a panic the run is repeated on the calling thread alone; if it panics there too, the kernel goes into quarantine;
/// * after a wrong number weights are packed again from those that are kept (memory may have changed), and the run is repeated; if
///   the number is wrong again, the kernel goes into quarantine;
/// * without a kernel in quarantine kernels are decided on again, weights packed for them, and the run repeated.
///
/// On a GPU it goes on after errors of the device too:
///
/// * without memory for all tokens, parts of them follow one another, down to single ones;
/// * where that is not enough, or a call fails that the device's context survives, what the workspace and the device's pool keep is
///   given back, and the run repeated;
/// * where the device is lost, all guarded layers on it let go of it, and it is opened again, which it can be if nothing else in the process
///   holds it (buffers, graphs, other layers, workspaces that these did not run with); weights are packed for it again, and the run is
///   repeated. The other layers pack theirs again in their next runs;
/// * where that does not help, the layer moves to the processor under [`Policy::Cpu`](crate::Policy), with its runs counted as fallbacks, and comes
///   back as [`GuardOptions::return_every`] says. Under another policy the error is the caller's, and the next run begins by opening the
///   device again.
///
/// Each step is in the receipt, is told to the observer, and ends with a run, whose success it states. Kernels give the same bits (but for products of
/// floats), so nobody sees it but in time. A run without a failure costs a lock that is taken for reading, and a counter. A signal such as `SIGILL` ends
/// the program, as a panic does where the program is built with `panic = "abort"`; nothing here catches them.
#[derive(Debug)]
pub struct GuardedLinear<'w> {
    registry: &'static Registry,
    weights: QuantizedBuf<'w>,
    options: LinearOptions,
    guard: GuardOptions,
    runs: AtomicU64,
    state: Arc<RwLock<State>>,
}

/// A run, without the memory that it writes.
#[derive(Clone, Copy)]
struct Run<'r> {
    number: u64,
    input: Input<'r>,
    m: usize,
    bias: Option<&'r [f32]>,
    threads: &'r Threads,
    /// Which output is compared.
    sample: Option<u64>,
}

impl<'w> GuardedLinear<'w> {
    /// The layer. Unlike [`Linear`] it needs `weights` for as long as it lives: own, or lent from a file that is mapped.
    ///
    /// # Errors
    /// As for [`Linear::new`], errors of a GPU included: no step is done while the layer is made. Where runs are to be compared, why there
    /// is no portable kernel.
    pub fn new(
        registry: &'static Registry,
        weights: QuantizedBuf<'w>,
        options: &LinearOptions,
        guard: GuardOptions,
        threads: &Threads,
    ) -> Result<GuardedLinear<'w>, Error> {
        let mut options = LinearOptions { adaptive: None, ..options.fixed(registry)? };
        let known = guard.quarantine.count();
        let linear = make(registry, &weights, &options, &guard.quarantine, threads)?;
        linear.tell_left_out();
        let linear = Some(linear);
        let given = Given::taken_from(&mut options);
        let state = State { linear, known, remade: 0, recording: None, away: None, given };
        let state = Arc::new(RwLock::new(state));
        if options.device != Device::CPU {
            lost::list(&state);
        }
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

    /// Bytes of the weights that are kept besides [`weight_bytes`](GuardedLinear::weight_bytes): what being able to pack again costs, in the
    /// processor's memory. While weights are packed again on the processor both packings are held; on a GPU the first goes before.
    pub fn kept_bytes(&self) -> usize {
        self.weights.data().len()
    }

    /// As [`Linear::weight_bytes`], at the moment; 0 without a device.
    pub fn weight_bytes(&self) -> usize {
        self.read().linear.as_ref().map_or(0, Linear::weight_bytes)
    }

    /// The device that it runs on at the moment; `None` where its GPU was lost and the policy lets nothing take over.
    pub fn device(&self) -> Option<Device> {
        self.read().linear.as_ref().map(|linear| linear.prepared().device())
    }

    /// The opened GPU that it works on from the next time on that it is made: for a layer that was given one ([`LinearOptions::on_gpu`]),
    /// which it can't open again by itself. When that is lost it lets go of it, and waits for this, on the processor or nowhere as its
    /// policy says. Its next run (under [`Policy::Cpu`](crate::Policy), one of [`GuardOptions::return_every`]) packs its weights there.
    ///
    /// # Errors
    /// [`Error::OtherGpu`] where it is not of the layer's device.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(&self, gpu: &Arc<crate::cuda::Gpu>) -> Result<(), Error> {
        let found = Device::cuda(gpu.profile().index);
        if self.options.device != found {
            return Err(Error::OtherGpu { expected: self.options.device, found });
        }
        self.write().given = Given::Opened(Arc::clone(gpu));
        Ok(())
    }

    /// As [`Linear::record`]; steps of recovery are in the receipt too.
    ///
    /// # Errors
    /// As for [`Linear::record`].
    pub fn record(&self, recording: Option<&Recording>) -> Result<(), Error> {
        let mut state = self.write();
        if let Some(linear) = &mut state.linear {
            linear.record(recording)?;
        }
        state.recording = recording.cloned();
        Ok(())
    }

    /// What a workspace must hold for up to `m` tokens. A run after a step makes the one that it is given larger if need be.
    ///
    /// # Errors
    /// As for [`Linear::workspace_size`].
    pub fn workspace_size(&self, m: usize, threads: &Threads) -> Result<WorkspaceSize, Error> {
        let state = self.read();
        state.linear.as_ref().map_or(Ok(WorkspaceSize::default()), |linear| linear.workspace_size(m, threads))
    }

    /// As [`Linear::forward`], with the steps that are stated above. Operands are the processor's: on a GPU they would be lost with it.
    ///
    /// # Errors
    /// As for [`Linear::forward`]; [`Error::KernelFailed`] where a kernel failed and no other one is left; the error of a GPU where no step
    /// helped. Then `y` holds nothing of use.
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
        let run = Run { number, input, m, bias, threads, sample };
        let state = self.read();
        let remade = state.remade;
        let (mut failed, mut steps) = (None, 0);
        if state.known == self.guard.quarantine.count() && !self.is_due(&state, number) {
            let mut in_parts = None;
            let outcome = self.attempt(&state, &run, y, workspace, &mut in_parts);
            self.note_parts(&state, &run, in_parts, &mut steps);
            match outcome {
                Ok(()) => return Ok(()),
                Err(Failure::Refused(error)) => return Err(error),
                Err(failure) => failed = Some(failure),
            }
        }
        drop(state);
        self.recover((failed, steps), remade, run, y, workspace)
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
    restrict.quarantined.extend(quarantine.kernels());
    let options = LinearOptions { restrict: Some(restrict), ..options.clone() };
    Linear::made(registry, &[weights.matrix()], &options, threads)
}
