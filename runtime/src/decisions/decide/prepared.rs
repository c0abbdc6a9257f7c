//! A request, as far as it can be answered before the shape is known.

use super::allowed::Allowed;
use super::candidate::Candidate;
use super::tuned_class::TunedClass;
use crate::cuda::Place;
use crate::decisions::thread_limits::ThreadLimits;
use crate::decisions::why_packed::FromMemory;
use crate::decisions::why_packed::HeldOnce;
use crate::device::Device;
use crate::gpu::{GpuProfile, NoGpu};
use crate::reason::Reason;
use crate::registry::{Registry, WithoutImage};
use crate::request::{PrecisionMode, Shape};
use gristmill_spec::vocab::{DType, FeatureSet, Op};
use std::sync::Arc;

/// A request whose names, features and restrictions are resolved: everything but the shape.
#[derive(Debug)]
pub struct Prepared {
    pub(super) registry: &'static Registry,
    pub(super) op: Op,
    pub(super) format_name: String,
    /// Index into the registry's formats or activation formats.
    pub(super) format: Option<usize>,
    pub(super) quantizer: usize,
    pub(super) input: DType,
    pub(super) precision: PrecisionMode,
    pub(super) device: Device,
    /// On which opened device its handles work.
    pub(super) place: Place,
    pub(super) shape: Shape,
    /// Elements of a block, where rows must be whole blocks; 1 elsewhere.
    pub(super) elements: usize,
    /// Why no kernel at all comes into question.
    pub(super) obstacle: Option<Reason>,
    /// Every entry of this request, in order of preference.
    pub(super) candidates: Box<[Candidate]>,
    /// Those that this processor and the restrictions allow.
    pub(super) usable: Box<[Candidate]>,
    /// Threads that there will be, by which measured orders are found.
    pub(super) threads: usize,
    /// The same in measured order, by class of shape; empty without a tuning.
    pub(super) tuned: Box<[Option<TunedClass>]>,
    /// Fewer threads, where that was measured to be faster.
    pub(super) limits: ThreadLimits,
    /// Why `usable` begins with the packing of the fewest bytes, where it does for that reason.
    pub(super) from_memory: Option<FromMemory>,
    /// Why `usable` begins with the packing that serves every number of tokens, where it does for that reason.
    pub(super) held_once: Option<HeldOnce>,
    /// How activations get to int8, for a product that starts from floats.
    pub(super) activations: Option<Arc<Prepared>>,
    /// How they do so behind a prologue.
    pub(super) prologue: Option<Arc<Prepared>>,
    pub(super) features: FeatureSet,
    /// The GPU that was asked for, where one was.
    pub(super) gpu: Option<Result<GpuProfile, NoGpu>>,
    /// Kernels that would come into question if they had an image.
    pub(super) without: Box<[&'static WithoutImage]>,
    pub(super) allowed: Allowed,
}

impl Prepared {
    /// The same decisions, with handles that work on a device that is open already: on an engine's stream, or one of several.
    ///
    /// # Errors
    /// [`Error::OtherGpu`](crate::Error::OtherGpu) where decisions are for another device.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(self, gpu: &Arc<crate::cuda::Gpu>) -> Result<Prepared, crate::Error> {
        let found = Device::cuda(gpu.profile().index);
        if self.device != found {
            return Err(crate::Error::OtherGpu { expected: self.device, found });
        }
        Ok(Prepared { place: Place::on(gpu), ..self })
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Fewer threads than there are, where that was measured to be faster.
    pub(crate) fn limits(&self) -> &ThreadLimits {
        &self.limits
    }
}
