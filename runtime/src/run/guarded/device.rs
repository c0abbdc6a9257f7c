//! What a guarded layer asks of GPUs. Without the feature `cuda` there are none, and none of it happens.

use super::kept::Layer;
use crate::device::Device;
use crate::error::Error;
use crate::linear::LinearOptions;
use crate::workspace::Workspace;

/// Whether nothing can be expected of the GPU any more.
pub(super) fn is_lost(error: &Error) -> bool {
    match error {
        #[cfg(feature = "cuda")]
        Error::Gpu(failure) => failure.is_lost(),
        Error::NoGpu { .. } => true,
        _ => false,
    }
}

/// Whether a layer is on a GPU that is lost.
#[cfg(feature = "cuda")]
pub(super) fn holds_lost(layer: &impl Layer) -> bool {
    layer.gpu().is_some_and(|gpu| gpu.loss().is_some())
}

#[cfg(not(feature = "cuda"))]
pub(super) fn holds_lost(_: &impl Layer) -> bool {
    false
}

/// The kernel that an error of a GPU names.
pub(super) fn kernel_of(error: &Error) -> Option<&'static str> {
    match error {
        #[cfg(feature = "cuda")]
        Error::Gpu(failure) => failure.kernel,
        _ => None,
    }
}

/// A GPU that stays open as long as this lives.
#[cfg(feature = "cuda")]
pub(super) type Open = Option<std::sync::Arc<crate::cuda::Gpu>>;
#[cfg(not(feature = "cuda"))]
pub(super) struct Open;

/// An opened GPU that a layer was given, since it can't open that again by itself.
#[cfg(feature = "cuda")]
#[derive(Debug)]
pub(super) enum Given {
    /// None: it opens its own.
    Nothing,
    Opened(std::sync::Arc<crate::cuda::Gpu>),
    /// It waits for another one.
    Lost,
}

#[cfg(feature = "cuda")]
impl Given {
    pub(super) fn taken_from(options: &mut LinearOptions) -> Given {
        options.gpu.take().map_or(Given::Nothing, Given::Opened)
    }

    pub(super) fn put_into(&self, options: &mut LinearOptions) {
        if let Given::Opened(gpu) = self {
            options.gpu = Some(std::sync::Arc::clone(gpu));
        }
    }

    /// While it is held, its device can't be opened again.
    pub(super) fn let_go_of_lost(&mut self) {
        if matches!(self, Given::Opened(gpu) if gpu.loss().is_some()) {
            *self = Given::Lost;
        }
    }

    /// Opens the GPU of a layer, if it is on one, with all memory that can be had. Asked before a layer is made: one for a device that is
    /// known to be lost would be refused as one without a kernel, or go to the processor.
    pub(super) fn open(&self, device: Device) -> Result<Open, Error> {
        use crate::gpu::NoGpu;
        if device == Device::CPU {
            return Ok(None);
        }
        let index = device.index;
        let lost = |error: String| Error::NoGpu { index, why: NoGpu::Lost { error } };
        let gpu = match self {
            Given::Nothing => crate::cuda::Gpu::open(index)?,
            Given::Opened(gpu) => std::sync::Arc::clone(gpu),
            Given::Lost => {
                let why =
                    "the layer was given it opened, and waits for another one (`GuardedLinear::on_gpu`)";
                return Err(lost(why.to_owned()));
            }
        };
        if let Some(error) = gpu.loss() {
            return Err(lost(error));
        }
        // What was freed there is free once what was enqueued has run.
        gpu.trim_memory(0)?;
        Ok(Some(gpu))
    }
}

#[cfg(not(feature = "cuda"))]
#[derive(Debug)]
pub(super) struct Given;

#[cfg(not(feature = "cuda"))]
impl Given {
    pub(super) fn taken_from(_: &mut LinearOptions) -> Given {
        Given
    }

    pub(super) fn put_into(&self, _: &mut LinearOptions) {}

    pub(super) fn let_go_of_lost(&mut self) {}

    pub(super) fn open(&self, _: Device) -> Result<Open, Error> {
        Ok(Open)
    }
}

/// Gives back what a workspace and the pool of the layer's GPU keep there.
#[cfg(feature = "cuda")]
pub(super) fn give_back<L: Layer>(layer: Option<&L>, workspace: &mut Workspace) -> Result<(), Error> {
    if let Some(scratch) = &mut workspace.gpu {
        // What a run enqueued that failed is given up.
        scratch.settle();
        scratch.give_back()?;
    }
    layer.and_then(Layer::gpu).map_or(Ok(()), |gpu| gpu.trim_memory(0))
}

#[cfg(not(feature = "cuda"))]
pub(super) fn give_back<L: Layer>(_: Option<&L>, _: &mut Workspace) -> Result<(), Error> {
    Ok(())
}

/// Gives up what a workspace has on a device, and on those that are known to be lost: while it holds them they can't be opened again.
#[cfg(feature = "cuda")]
pub(super) fn forget(workspace: &mut Workspace, device: Option<Device>) {
    workspace.forget(|index| device == Some(Device::cuda(index)));
}

#[cfg(not(feature = "cuda"))]
pub(super) fn forget(_: &mut Workspace, _: Option<Device>) {}

/// Lets a guard tell of parts of the tokens that follow one another in the next run, which the run does by itself elsewhere.
#[cfg(feature = "cuda")]
pub(super) fn tells_of_parts(workspace: &mut Workspace) {
    workspace.gpu.get_or_insert_default().set_guarded(true);
}

#[cfg(not(feature = "cuda"))]
pub(super) fn tells_of_parts(_: &mut Workspace) {}

/// Why tokens followed one another in parts since then, if they did.
#[cfg(feature = "cuda")]
pub(super) fn went_in_parts(workspace: &mut Workspace) -> Option<Error> {
    let scratch = workspace.gpu.as_mut()?;
    scratch.set_guarded(false);
    scratch.went_in_parts()
}

#[cfg(not(feature = "cuda"))]
pub(super) fn went_in_parts(_: &mut Workspace) -> Option<Error> {
    None
}
