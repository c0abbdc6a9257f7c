//! A layer of gristmill's or, where a policy says so, candle's own.

use crate::Threads;
use crate::linear::{Linear, Refused};
use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::{self, QTensor};
use candle_core::{Device, Module, Result, Tensor};
use std::io::{Read, Seek};
use std::sync::Arc;

/// What runs a matrix for which gristmill has no kernel: floats, and types that this build left out. Nothing else is replaced; defective
/// weights are an error under each policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Nothing: the matrix is an error that says why.
    #[default]
    Refuse,
    /// candle's own layer. [`QMatMul::fallback`] then has the reason.
    Candle,
}

/// What stands where `candle_core::quantized::QMatMul` stood. Clones share the weights.
#[derive(Clone, Debug)]
pub enum QMatMul {
    /// gristmill's kernels.
    Gristmill(Linear),
    /// candle's, under [`Fallback::Candle`].
    Candle {
        /// The layer.
        layer: quantized::QMatMul,
        /// Why gristmill does not run it.
        reason: String,
    },
}

impl QMatMul {
    /// A layer of a quantized matrix of candle's, for the device that it is on.
    ///
    /// # Errors
    /// As for [`Linear::from_qtensor`], less what `fallback` leaves to candle.
    pub fn from_arc(weights: Arc<QTensor>, fallback: Fallback, threads: &Arc<Threads>) -> Result<QMatMul> {
        let ours = Linear::of_qtensor(&weights, &weights.device(), None, threads);
        QMatMul::under(fallback, ours, || Ok(weights))
    }

    /// A layer of the matrix `name` of a GGUF file whose header candle has read.
    ///
    /// # Errors
    /// As for [`QMatMul::from_arc`]; what candle says of a tensor that is not there or can't be read.
    pub fn from_gguf<R: Read + Seek>(
        content: &Content,
        file: &mut R,
        name: &str,
        fallback: Fallback,
        device: &Device,
        threads: &Arc<Threads>,
    ) -> Result<QMatMul> {
        let weights = content.tensor(file, name, &Device::Cpu)?;
        let ours = Linear::of_qtensor(&weights, device, None, threads);
        QMatMul::under(fallback, ours, || Ok(Arc::new(content.tensor(file, name, device)?)))
            .map_err(|error| error.context(format!("tensor `{name}`")))
    }

    fn under(
        fallback: Fallback,
        ours: std::result::Result<Linear, Refused>,
        weights: impl FnOnce() -> Result<Arc<QTensor>>,
    ) -> Result<QMatMul> {
        match (ours, fallback) {
            (Ok(layer), _) => Ok(QMatMul::Gristmill(layer)),
            (Err(Refused::NoKernel(reason)), Fallback::Candle) => {
                let layer = quantized::QMatMul::from_arc(weights()?)?;
                Ok(QMatMul::Candle { layer, reason: reason.to_string() })
            }
            (Err(refused), _) => Err(refused.into()),
        }
    }

    /// Why candle's layer runs in place of gristmill's; `None` where gristmill's does.
    pub fn fallback(&self) -> Option<&str> {
        match self {
            QMatMul::Gristmill(_) => None,
            QMatMul::Candle { reason, .. } => Some(reason),
        }
    }
}

impl Module for QMatMul {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            QMatMul::Gristmill(layer) => layer.forward(x),
            QMatMul::Candle { layer, .. } => layer.forward(x),
        }
    }
}
