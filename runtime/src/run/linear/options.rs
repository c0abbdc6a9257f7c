//! What a layer is asked to be.

use super::adaptive::Adaptive;
use crate::decide::Prepared;
use crate::device::{CpuProfile, Device};
use crate::error::Error;
use crate::registry::Registry;
use crate::request::{PrecisionMode, Request, Restrict, Shape};
use crate::threads::Threads;
use crate::tuning::Tuning;
use gristmill_spec::vocab::DType;
use std::borrow::Cow;
use std::sync::Arc;

/// What a layer may do when no kernel serves it. Whatever it does is in the receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// Nothing: an error.
    #[default]
    Strict,
    /// Dequantize the weights to f32 and multiply in f32, on the device that was asked for. The processor holds all weights as f32 besides; a GPU
    /// takes kernels for products of f32 that dequantize the weights as they read them ([`PrecisionMode::F32`]), and where there is none of
    /// those either, the layer is an error, as with [`Policy::Strict`].
    Dequantize,
    /// Run on the processor what was asked for another device.
    Cpu,
}

impl Policy {
    /// Every policy.
    pub const ALL: &'static [Policy] = &[Policy::Strict, Policy::Dequantize, Policy::Cpu];

    /// The spelling used on the command line and in receipts.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Strict => "strict",
            Policy::Dequantize => "dequantize",
            Policy::Cpu => "cpu",
        }
    }

    /// The policy spelled `name`.
    pub fn from_name(name: &str) -> Option<Policy> {
        Policy::ALL.iter().copied().find(|policy| policy.name() == name)
    }
}

/// What a layer is asked to be.
#[derive(Clone, Debug)]
pub struct LinearOptions {
    /// Type of its activations.
    pub input: DType,
    /// Where it runs.
    pub device: Device,
    /// What its product may multiply.
    pub precision: PrecisionMode,
    /// What it may do without a kernel.
    pub policy: Policy,
    /// Bytes of weights that take turns with the layer's, these included ([`Request::working_set`]): a model's total. `None`:
    /// not known.
    pub working_set: Option<u64>,
    /// Restrictions on kernels; `None`: those of the environment, as [`LinearOptions::from_env`] says.
    pub restrict: Option<Restrict>,
    /// Measured orders of kernels; `None`: those of the environment where `restrict` is its, else none.
    pub tuning: Option<Arc<Tuning>>,
    /// Lets kernels that read the packing of the layer's weights take turns on its first calls, and the fastest stay: on the processor, by
    /// calls of [`Linear::forward`](crate::Linear::forward), [`Linear::product`](crate::Linear::product) and
    /// [`Linear::forward_quantized`](crate::Linear::forward_quantized) that write f32 outputs of all rows one behind the other; others take
    /// what was found. `None`, the default: kernels are those of
    /// decisions. A [`GuardedLinear`](crate::GuardedLinear) lets none take turns.
    pub adaptive: Option<Adaptive>,
    /// The opened GPU that it works on, where that is an engine's or one of several streams; `None`: the one of `device`. It must be of
    /// `device` ([`LinearOptions::on_gpu`] sets both).
    #[cfg(feature = "cuda")]
    pub gpu: Option<Arc<crate::cuda::Gpu>>,
}

impl Default for LinearOptions {
    /// f32 on the processor by int8, strict, without restrictions and without a tuning, whatever the environment says.
    fn default() -> LinearOptions {
        LinearOptions {
            input: DType::F32,
            device: Device::CPU,
            precision: PrecisionMode::Int8,
            policy: Policy::Strict,
            working_set: None,
            restrict: Some(Restrict::default()),
            tuning: None,
            adaptive: None,
            #[cfg(feature = "cuda")]
            gpu: None,
        }
    }
}

impl LinearOptions {
    /// The default under the restrictions and with the tuning of the environment (`GRISTMILL_ISA` and so on), which is read where a
    /// layer is made.
    pub fn from_env() -> LinearOptions {
        LinearOptions { restrict: None, ..LinearOptions::default() }
    }

    /// On a GPU that is open: an engine's ([`Gpu::of_engine`](crate::cuda::Gpu::of_engine)), or one of several streams.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(self, gpu: &Arc<crate::cuda::Gpu>) -> LinearOptions {
        LinearOptions { device: Device::cuda(gpu.profile().index), gpu: Some(Arc::clone(gpu)), ..self }
    }

    /// Decisions with handles that work where this says.
    pub(super) fn placed(&self, prepared: Prepared) -> Result<Prepared, Error> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &self.gpu {
            let found = Device::cuda(gpu.profile().index);
            if self.device != found {
                return Err(Error::OtherGpu { expected: self.device, found });
            }
            // A policy may have moved the layer to the processor.
            if prepared.device() == found {
                return prepared.on_gpu(gpu);
            }
        }
        Ok(prepared)
    }

    /// What restricts and orders kernels: what is said here, else what the environment says.
    pub(super) fn resolved(&self, registry: &'static Registry) -> Result<(Restrict, Cow<'_, Tuning>), Error> {
        let restrict = match &self.restrict {
            Some(restrict) => restrict.clone(),
            None => Restrict::from_env()?,
        };
        let tuning = match (&self.tuning, &self.restrict) {
            (Some(tuning), _) => Cow::Borrowed(&**tuning),
            (None, Some(_)) => Cow::Owned(Tuning::none()),
            (None, None) => Cow::Owned(Tuning::from_env(registry)?),
        };
        Ok((restrict, tuning))
    }

    /// The same with what [`resolved`](LinearOptions::resolved) gives: layers that decide again later ask nobody a second time.
    pub(crate) fn fixed(&self, registry: &'static Registry) -> Result<LinearOptions, Error> {
        let (restrict, tuning) = self.resolved(registry)?;
        let tuning = Some(Arc::new(tuning.into_owned()));
        Ok(LinearOptions { restrict: Some(restrict), tuning, ..self.clone() })
    }

    /// The decisions for products of `format` as they are asked for here.
    pub(crate) fn prepare(
        &self,
        registry: &'static Registry,
        format: &str,
        shape: Shape,
        threads: &Threads,
    ) -> Result<Prepared, Error> {
        let (restrict, tuning) = self.resolved(registry)?;
        self.placed(registry.prepare_tuned(
            &self.request(format, shape, threads),
            CpuProfile::detect(),
            &restrict,
            &tuning,
        )?)
    }

    pub(super) fn request<'f>(&self, format: &'f str, shape: Shape, threads: &Threads) -> Request<'f> {
        let request = Request::matmul(format, shape).with_input(self.input).on(self.device);
        let request = request.with_threads(threads.count());
        request.with_precision(self.precision).with_working_set(self.working_set)
    }
}
