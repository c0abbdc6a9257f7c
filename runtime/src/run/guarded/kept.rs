//! What a guard stands around: weights that are kept, and the layers that are made of them.

use super::check::Portable;
use super::failure::Failure;
use crate::device::Device;
use crate::error::Error;
use crate::experts::Experts;
use crate::linear::{Linear, LinearOptions};
use crate::receipt::{FallbackNote, Recording};
use crate::registry::{Entry, FormatInfo, Registry};
use crate::threads::Threads;
use crate::workspace::{Workspace, WorkspaceSize};
use std::fmt::Debug;
use std::sync::Arc;

/// A layer, which a guard replaces as a whole.
pub(super) trait Layer: Debug + Send + Sync + 'static {
    fn device(&self) -> Device;

    /// Every kernel that its runs may launch, some more than once.
    fn kernels(&self) -> impl Iterator<Item = &'static Entry>;

    fn weight_bytes(&self) -> usize;

    fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error>;

    /// Counts its runs as fallbacks from now on.
    fn moved(&mut self, note: Arc<FallbackNote>);

    /// Tells the observer which kernels in quarantine it was made without.
    fn tell_left_out(&self);

    /// Says nothing of them in receipts, where steps of recovery do.
    fn forget_left_out(&mut self);

    #[cfg(feature = "cuda")]
    fn gpu(&self) -> Option<&Arc<crate::cuda::Gpu>>;
}

/// A handle has all of this by these names.
macro_rules! layers {
    ($($handle:ident),*) => {$(
        impl Layer for $handle {
            fn device(&self) -> Device {
                self.prepared().device()
            }

            fn kernels(&self) -> impl Iterator<Item = &'static Entry> {
                $handle::kernels(self)
            }

            fn weight_bytes(&self) -> usize {
                $handle::weight_bytes(self)
            }

            fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
                $handle::record(self, recording)
            }

            fn moved(&mut self, note: Arc<FallbackNote>) {
                self.runs_instead(note);
            }

            fn tell_left_out(&self) {
                $handle::tell_left_out(self);
            }

            fn forget_left_out(&mut self) {
                $handle::forget_left_out(self);
            }

            #[cfg(feature = "cuda")]
            fn gpu(&self) -> Option<&Arc<crate::cuda::Gpu>> {
                $handle::gpu(self)
            }
        }
    )*};
}
layers!(Linear, Experts);

/// The kernels of a run.
#[derive(Clone, Copy)]
pub(super) struct Ran {
    /// What it is done by.
    pub(super) kernel: &'static Entry,
    /// What quantizes its activations in front of it, on the processor.
    pub(super) quantizer: Option<&'static Entry>,
}

/// Weights that are kept.
pub(super) trait Kept: Debug {
    type Layer: Layer;
    /// The operands of a run, with the memory that it writes but for the workspace.
    type Work<'r>;

    fn format(&self) -> &'static FormatInfo;

    /// Makes a layer.
    fn make(
        &self,
        registry: &'static Registry,
        options: &LinearOptions,
        threads: &Threads,
    ) -> Result<Self::Layer, Error>;

    /// What a workspace must hold for a run.
    fn size(layer: &Self::Layer, work: &Self::Work<'_>, threads: &Threads) -> Result<WorkspaceSize, Error>;

    /// Runs; where the layer was `remade`, operands may be laid out for the one before.
    fn run(
        layer: &Self::Layer,
        work: &mut Self::Work<'_>,
        remade: bool,
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error>;

    /// Whether the operands of a run lie on the layer's GPU: then it goes nowhere else, and what is lost with the GPU can't be done again.
    fn lies_on_device(work: &Self::Work<'_>) -> bool;

    /// The kernels of a run; `None` where none runs.
    fn kernels_of(layer: &Self::Layer, work: &Self::Work<'_>) -> Option<Ran>;

    /// The kernel that panicked in a run; `None` where none ran.
    fn panicked(
        layer: &Self::Layer,
        work: &mut Self::Work<'_>,
        workspace: &mut Workspace,
    ) -> Option<&'static Entry>;

    /// Waits for a run that is to be compared; `false` where it can't be. An error is one of the run.
    fn wait(layer: &Self::Layer, work: &Self::Work<'_>, workspace: &mut Workspace) -> Result<bool, Error> {
        let _ = (layer, work, workspace);
        Ok(true)
    }

    /// What is wrong with one output of a run that was waited for, if it is. Which output it is follows from `sample`. An error is one of the
    /// comparison alone, in which nothing wrong was seen.
    fn compare(
        &self,
        portable: &Portable<'_>,
        layer: &Self::Layer,
        work: &Self::Work<'_>,
        workspace: &Workspace,
        sample: u64,
    ) -> Result<Option<Failure>, Error>;
}
