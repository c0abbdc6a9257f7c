//! gristmill's low-bit matrix products as a candle [`Module`]: what candle's `QMatMul` does, by gristmill's kernels.
//!
//! A [`Linear`] is made of a tensor of candle's GGUF reader ([`Linear::from_gguf`]) or of gristmill's, which knows more types
//! ([`Linear::from_model`]), of a [`QTensor`](candle_core::quantized::QTensor) ([`Linear::from_qtensor`]), of the bytes of any format
//! ([`Linear::from_blocks`]), or of f32 weights that are quantized when they are loaded ([`linear`], [`linear_no_bias`]). It is strict: a
//! type without a kernel is an error that says why, and of the environment nothing is read but `GRISTMILL_QUARANTINE`. [`QMatMul`] stands where candle's does and
//! leaves such types to candle's own where a [`Fallback`] says so.
//!
//! Activations are read where they lie; where a layout is not contiguous they are copied, as a matrix product of candle would.
//! With the feature `cuda`, layers for a CUDA device work on its stream and in its memory. Where weights and activations are on
//! different devices, it is an error, never a copy.
//!
//! ```
//! use candle_core::{Device, Module, Tensor, quantized::{GgmlDType, QTensor}};
//! use gristmill_candle::{Linear, Threads};
//! use std::sync::Arc;
//!
//! let weights = Tensor::randn(0f32, 1., (64, 256), &Device::Cpu)?;
//! let weights = QTensor::quantize(&weights, GgmlDType::Q8_0)?;
//! let threads = Arc::new(Threads::new(2)?);
//! let layer = Linear::from_qtensor(&weights, &threads)?;
//! let y = layer.forward(&Tensor::ones((3, 256), candle_core::DType::F32, &Device::Cpu)?)?;
//! assert_eq!(y.dims(), [3, 64]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "cuda")]
mod cuda;
mod linear;
mod qmatmul;

use candle_core::quantized::GgmlDType;
pub use gristmill::gguf::Model;
pub use gristmill::languages::Guard;
pub use gristmill::{Receipt, Threads};
pub use linear::{Linear, linear, linear_no_bias};
pub use qmatmul::{Fallback, QMatMul};

/// One list for both: of `GgmlDType` nobody can list the variants, and a match without a wildcard says when candle has a further one.
macro_rules! types {
    ($($dtype:ident is $format:literal,)*) => {
        /// The types of candle's GGUF reader that are formats of gristmill's.
        pub const TYPES: &[GgmlDType] = &[$(GgmlDType::$dtype),*];

        /// The format that a type of candle's GGUF reader is in; `None` for floats, and for what GGUF files use for activations only.
        pub fn format_of(dtype: GgmlDType) -> Option<&'static str> {
            match dtype {
                $(GgmlDType::$dtype => Some($format),)*
                GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 | GgmlDType::Q8_1 | GgmlDType::Q8K => None,
            }
        }
    };
}

types! {
    Q4_0 is "q4_0",
    Q4_1 is "q4_1",
    Q5_0 is "q5_0",
    Q5_1 is "q5_1",
    Q8_0 is "q8_0",
    Q2K is "q2_k",
    Q3K is "q3_k",
    Q4K is "q4_k",
    Q5K is "q5_k",
    Q6K is "q6_k",
}
