//! gristmill's low-bit matrix products as a candle [`Module`]: what candle's `QMatMul` does, by gristmill's kernels.
//!
//! A [`Linear`] is made of a tensor of candle's GGUF reader ([`Linear::from_gguf`]), of a [`QTensor`] ([`Linear::from_qtensor`]), or of
//! f32 weights that are quantized when they are loaded ([`linear`], [`linear_no_bias`]). It is strict: a type without a kernel is
//! an error that says why, and nothing is read from the environment. It runs on the processor. Activations there are read where
//! they lie; where a layout is not contiguous they are copied, as a matrix product of candle would. Weights or
//! activations on another device are an error, never a copy to the processor and back.
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

use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, DType, Error, Layout, MetalStorage, Module, Result, Shape, Tensor,
    bail,
};
use candle_nn::VarBuilder;
use gristmill::{
    CpuProfile, Input, LinearOptions, Policy, QuantizedMatrix, Quantizer, REGISTRY, Recording, Request,
    Restrict, Tuning, Workspace,
};
pub use gristmill::{Receipt, Threads};
use std::io::{Read, Seek};
use std::sync::{Arc, Mutex, PoisonError};

/// The format that a type of candle's GGUF reader is in; `None` for floats, and for what GGUF files use for activations only.
pub fn format_of(dtype: GgmlDType) -> Option<&'static str> {
    Some(match dtype {
        GgmlDType::Q4_0 => "q4_0",
        GgmlDType::Q4_1 => "q4_1",
        GgmlDType::Q5_0 => "q5_0",
        GgmlDType::Q5_1 => "q5_1",
        GgmlDType::Q8_0 => "q8_0",
        GgmlDType::Q2K => "q2_k",
        GgmlDType::Q3K => "q3_k",
        GgmlDType::Q4K => "q4_k",
        GgmlDType::Q5K => "q5_k",
        GgmlDType::Q6K => "q6_k",
        GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 | GgmlDType::Q8_1 | GgmlDType::Q8K => return None,
    })
}

/// `y = x w^T (+ bias)` with quantized weights `w`, `n` rows of `k`; `x` is f32, `[.., k]`. Clones share the weights.
#[derive(Clone, Debug)]
pub struct Linear(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    layer: gristmill::Linear,
    bias: Option<Vec<f32>>,
    threads: Arc<Threads>,
    recording: Recording,
    /// Those that no call uses.
    workspaces: Mutex<Vec<Workspace>>,
}

impl Linear {
    /// A layer of the bytes of a format: `n` rows of `k` weights, which are packed and not needed afterwards.
    ///
    /// # Errors
    /// An unknown format, bytes of another length, codes that mean nothing, no kernel: gristmill's own message.
    pub fn from_blocks(
        format: &str,
        n: usize,
        k: usize,
        blocks: &[u8],
        threads: &Arc<Threads>,
    ) -> Result<Linear> {
        let format = REGISTRY.format(format).map_err(Error::wrap)?.1;
        let matrix = QuantizedMatrix::new(format, n, k, blocks).map_err(Error::wrap)?;
        let options = LinearOptions {
            policy: Policy::Strict,
            restrict: Some(Restrict::default()),
            ..LinearOptions::default()
        };
        let mut layer = gristmill::Linear::new(&REGISTRY, &matrix, &options, threads).map_err(Error::wrap)?;
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording)).map_err(Error::wrap)?;
        let threads = Arc::clone(threads);
        Ok(Linear(Arc::new(Inner { layer, bias: None, threads, recording, workspaces: Mutex::default() })))
    }

    /// A layer of a quantized matrix of candle's, which is not needed afterwards.
    ///
    /// # Errors
    /// A type that is no format of gristmill's, other dimensions than two, a tensor on another device; else as for
    /// [`Linear::from_blocks`].
    pub fn from_qtensor(weights: &QTensor, threads: &Arc<Threads>) -> Result<Linear> {
        let Some(format) = format_of(weights.dtype()) else {
            bail!(
                "gristmill has no format for {:?}: use candle's own layer for weights of this type",
                weights.dtype()
            )
        };
        let (n, k) = weights.shape().dims2()?;
        if !weights.device().is_cpu() {
            bail!("the weights are on {:?}: load them with Device::Cpu", weights.device().location())
        }
        Linear::from_blocks(format, n, k, &weights.data()?, threads)
    }

    /// A layer of the matrix `name` of a GGUF file whose header candle has read.
    ///
    /// # Errors
    /// As for [`Linear::from_qtensor`]; what candle says of a tensor that is not there or can't be read.
    pub fn from_gguf<R: Read + Seek>(
        content: &Content,
        file: &mut R,
        name: &str,
        threads: &Arc<Threads>,
    ) -> Result<Linear> {
        let weights = content.tensor(file, name, &candle_core::Device::Cpu)?;
        Linear::from_qtensor(&weights, threads).map_err(|error| error.context(format!("tensor `{name}`")))
    }

    /// A layer of a matrix of floats `[n, k]`, quantized by the default quantizer of a format.
    ///
    /// # Errors
    /// A tensor that is no matrix or on another device; values that the format can't hold; a format without a quantizer; else
    /// as for [`Linear::from_blocks`].
    pub fn quantize(weights: &Tensor, format: &str, threads: &Arc<Threads>) -> Result<Linear> {
        let (n, k) = weights.dims2()?;
        if !weights.device().is_cpu() {
            bail!("the weights are on {:?}: load them with Device::Cpu", weights.device().location())
        }
        let values = weights.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let info = REGISTRY.format(format).map_err(Error::wrap)?.1;
        let mut blocks = vec![0; info.tensor_bytes(n, k).map_err(Error::wrap)?];
        let (restrict, tuning) = (Restrict::default(), Tuning::none());
        let request = Request::quantize(format, None, n, k);
        let prepared = REGISTRY.prepare_tuned(&request, CpuProfile::detect(), &restrict, &tuning);
        let prepared = prepared.map_err(Error::wrap)?;
        let quantizer = Quantizer::new(&prepared.decide_as_asked()).map_err(Error::wrap)?;
        quantizer.run(&values, n, k, &mut blocks).map_err(Error::wrap)?;
        Linear::from_blocks(format, n, k, &blocks, threads)
    }

    /// The same layer with a bias of `n` values.
    ///
    /// # Errors
    /// A tensor of another shape.
    pub fn with_bias(self, bias: &Tensor) -> Result<Linear> {
        let n = self.0.layer.n();
        if bias.dims() != [n] {
            bail!("the bias has shape {:?}, expected [{n}]", bias.dims())
        }
        let values = bias.to_dtype(DType::F32)?.to_vec1::<f32>()?;
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Ok(Linear(Arc::new(Inner { bias: Some(values), ..inner }))),
            Err(_) => bail!("the layer has been cloned: give it a bias before"),
        }
    }

    /// Rows of the weights: outputs.
    pub fn n(&self) -> usize {
        self.0.layer.n()
    }

    /// Elements of a row: inputs.
    pub fn k(&self) -> usize {
        self.0.layer.k()
    }

    /// Bytes held for the weights.
    pub fn weight_bytes(&self) -> usize {
        self.0.layer.weight_bytes()
    }

    /// Which kernels ran for this layer and its clones.
    pub fn receipt(&self) -> Receipt {
        self.0.recording.receipt()
    }
}

/// A layer of the tensors `weight` and `bias` of a `VarBuilder`, as `candle_nn::linear`, quantized to a format when it is loaded.
///
/// # Errors
/// As for [`Linear::quantize`]; tensors that are not there or have another shape.
pub fn linear(
    in_dim: usize,
    out_dim: usize,
    format: &str,
    vb: VarBuilder<'_>,
    threads: &Arc<Threads>,
) -> Result<Linear> {
    let bias = vb.get(out_dim, "bias")?;
    linear_no_bias(in_dim, out_dim, format, vb, threads)?.with_bias(&bias)
}

/// A layer of the tensor `weight` of a `VarBuilder`, as `candle_nn::linear_no_bias`, quantized to a format when it is loaded.
///
/// # Errors
/// As for [`linear`].
pub fn linear_no_bias(
    in_dim: usize,
    out_dim: usize,
    format: &str,
    vb: VarBuilder<'_>,
    threads: &Arc<Threads>,
) -> Result<Linear> {
    Linear::quantize(&vb.get((out_dim, in_dim), "weight")?, format, threads)
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        // A copy only where the layout forces it.
        x.contiguous()?.apply_op1_no_bwd(&*self.0)
    }
}

impl CustomOp1 for Inner {
    fn name(&self) -> &'static str {
        "gristmill-linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n, k) = (self.layer.n(), self.layer.k());
        let CpuStorage::F32(values) = storage else {
            let got = candle_core::backend::BackendStorage::dtype(storage);
            return Err(Error::UnexpectedDType { msg: "gristmill-linear", expected: DType::F32, got });
        };
        let Some((tokens, [last])) = layout.dims().split_last_chunk::<1>().filter(|(_, [last])| *last == k)
        else {
            bail!("gristmill-linear: the input has shape {:?}, expected rows of {k}", layout.dims())
        };
        let x = layout.contiguous_offsets().and_then(|(start, end)| values.get(start..end));
        let Some(x) = x else {
            bail!("gristmill-linear: the input is not contiguous: {layout:?}, rows of {last}")
        };
        let m: usize = tokens.iter().product();
        let Some(outputs) = m.checked_mul(n) else {
            bail!("gristmill-linear: {m} rows of {n} outputs overflow the address space")
        };
        let mut y = vec![0.0; outputs];
        let free = || self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut workspace = free().pop().unwrap_or_default();
        let size = self.layer.workspace_size(m, &self.threads).map_err(Error::wrap)?;
        workspace.grow(size).map_err(Error::wrap)?;
        let done =
            self.layer.forward(Input::F32(x), m, self.bias.as_deref(), &mut y, &mut workspace, &self.threads);
        free().push(workspace);
        done.map_err(Error::wrap)?;
        let shape: Vec<usize> = tokens.iter().copied().chain([n]).collect();
        Ok((CpuStorage::F32(y), Shape::from(shape)))
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        bail!("gristmill-linear runs on the processor alone here, the input is on a CUDA device: {ELSEWHERE}")
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        bail!(
            "gristmill-linear runs on the processor alone here, the input is on a Metal device: {ELSEWHERE}"
        )
    }
}

const ELSEWHERE: &str = "move it with to_device(&Device::Cpu), or use candle's own layer there";
