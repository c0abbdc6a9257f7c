//! A layer of gristmill's as a module of candle's.

#[cfg(feature = "cuda")]
use crate::cuda::Place;
use crate::format_of;
use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::Content;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, DType, Device, Error, Layout, MetalStorage, Module, Result, Shape,
    Tensor, bail,
};
use candle_nn::VarBuilder;
use gristmill::gguf::{LayerOptions, Model};
use gristmill::half::slice::HalfFloatSliceExt;
use gristmill::languages::{self, Guard, Layer};
use gristmill::{
    LinearOptions, QuantizedMatrix, Quantizer, REGISTRY, Receipt, Request, Threads, Workspace, widen_f16,
};
#[cfg(not(feature = "cuda"))]
use std::convert::Infallible as Place;
use std::io::{Read, Seek};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `y = x w^T (+ bias)` with quantized weights `w`, `n` rows of `k`; `x` is `[.., k]` of f32, or on the processor of f16, and `y` of the same
/// type. Clones share the weights.
#[derive(Clone, Debug)]
pub struct Linear(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    layer: Layer,
    bias: Option<Vec<f32>>,
    threads: Arc<Threads>,
    /// Those that no call uses.
    workspaces: Mutex<Vec<Workspace>>,
    /// `None`: on the processor.
    cuda: Option<Place>,
}

/// Why there is no layer.
pub(crate) enum Refused {
    /// gristmill has no kernel for such weights.
    NoKernel(Error),
    /// The weights themselves, or the machine.
    Wrong(Error),
}

impl From<gristmill::Error> for Refused {
    fn from(error: gristmill::Error) -> Refused {
        match &error {
            gristmill::Error::NotCompiled { .. } | gristmill::Error::NoKernel(_) => {
                Refused::NoKernel(Error::wrap(error))
            }
            _ => Refused::Wrong(Error::wrap(error)),
        }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        let (Refused::NoKernel(error) | Refused::Wrong(error)) = refused;
        error
    }
}

/// Strict layers for a device, without what the environment or a tuning says but for kernels in quarantine, and candle's device where that is one of CUDA.
fn options(device: &Device) -> std::result::Result<(LinearOptions, Option<Place>), Refused> {
    let options = languages::layer_on(gristmill::Device::CPU)?;
    #[cfg(feature = "cuda")]
    if let Ok(device) = device.as_cuda_device() {
        let place = Place::of(device).map_err(Refused::Wrong)?;
        return Ok((options.on_gpu(&place.gpu), Some(place)));
    }
    if !device.is_cpu() {
        let place = device.location();
        let message = format!("this build has no kernels for {place:?}: make the layer with Device::Cpu");
        return Err(Refused::NoKernel(Error::Msg(message)));
    }
    Ok((options, None))
}

impl Linear {
    /// A layer of the bytes of a format: `n` rows of `k` weights, which are packed for `device` and not needed afterwards.
    ///
    /// # Errors
    /// An unknown format, bytes of another length, codes that mean nothing, no kernel: gristmill's own message. A device that is
    /// neither the processor nor, with the feature `cuda`, one of CUDA with a stream of its own (`Device::new_cuda_with_stream`).
    pub fn from_blocks(
        format: &str,
        n: usize,
        k: usize,
        blocks: &[u8],
        device: &Device,
        threads: &Arc<Threads>,
    ) -> Result<Linear> {
        Ok(Linear::of_blocks(format, [n, k], blocks, device, None, threads)?)
    }

    /// As [`Linear::from_blocks`] on the processor, of a layer that goes on as a guard says where a kernel fails. It keeps a copy of the bytes.
    ///
    /// # Errors
    /// As for [`Linear::from_blocks`].
    pub fn from_blocks_guarded(
        format: &str,
        n: usize,
        k: usize,
        blocks: &[u8],
        guard: &Guard,
        threads: &Arc<Threads>,
    ) -> Result<Linear> {
        Ok(Linear::of_blocks(format, [n, k], blocks, &Device::Cpu, Some(guard), threads)?)
    }

    fn of_blocks(
        format: &str,
        [n, k]: [usize; 2],
        blocks: &[u8],
        device: &Device,
        guard: Option<&Guard>,
        threads: &Arc<Threads>,
    ) -> std::result::Result<Linear, Refused> {
        let format = REGISTRY.format(format)?.1;
        let matrix = QuantizedMatrix::new(format, n, k, blocks)?;
        let (options, cuda) = options(device)?;
        Ok(Linear::of(Layer::of_matrix(&REGISTRY, &matrix, options, guard, threads)?, cuda, threads))
    }

    fn of(layer: Layer, cuda: Option<Place>, threads: &Arc<Threads>) -> Linear {
        let (threads, workspaces) = (Arc::clone(threads), Mutex::default());
        Linear(Arc::new(Inner { layer, bias: None, threads, workspaces, cuda }))
    }

    /// A layer of a quantized matrix of candle's, which is not needed afterwards. It is made for the device that the matrix is on;
    /// from a GPU its bytes are read back once, to be packed.
    ///
    /// # Errors
    /// A type that is no format of gristmill's, other dimensions than two; else as for [`Linear::from_blocks`].
    pub fn from_qtensor(weights: &QTensor, threads: &Arc<Threads>) -> Result<Linear> {
        Ok(Linear::of_qtensor(weights, &weights.device(), None, threads)?)
    }

    pub(crate) fn of_qtensor(
        weights: &QTensor,
        device: &Device,
        guard: Option<&Guard>,
        threads: &Arc<Threads>,
    ) -> std::result::Result<Linear, Refused> {
        let Some(format) = format_of(weights.dtype()) else {
            return Err(Refused::NoKernel(Error::Msg(format!(
                "gristmill has no format for {:?}: use candle's own layer for weights of this type",
                weights.dtype()
            ))));
        };
        let (n, k) = weights.shape().dims2().map_err(Refused::Wrong)?;
        let blocks = weights.data().map_err(Refused::Wrong)?;
        Linear::of_blocks(format, [n, k], &blocks, device, guard, threads)
    }

    /// As [`Linear::from_qtensor`] on the processor, wherever the matrix is, of a layer that goes on as a guard says where a kernel fails. It keeps
    /// the bytes of the matrix.
    ///
    /// # Errors
    /// As for [`Linear::from_qtensor`].
    pub fn from_qtensor_guarded(weights: &QTensor, guard: &Guard, threads: &Arc<Threads>) -> Result<Linear> {
        Ok(Linear::of_qtensor(weights, &Device::Cpu, Some(guard), threads)?)
    }

    /// A layer of the matrix `name` of a GGUF file whose header candle has read.
    ///
    /// # Errors
    /// As for [`Linear::from_qtensor`]; what candle says of a tensor that is not there or can't be read.
    pub fn from_gguf<R: Read + Seek>(
        content: &Content,
        file: &mut R,
        name: &str,
        device: &Device,
        threads: &Arc<Threads>,
    ) -> Result<Linear> {
        let weights = content.tensor(file, name, &Device::Cpu)?;
        Linear::of_qtensor(&weights, device, None, threads)
            .map_err(|refused| Error::from(refused).context(format!("tensor `{name}`")))
    }

    /// A layer of the matrix `name` of a GGUF file that gristmill has opened: of each type that gristmill knows, where candle's reader
    /// refuses the whole file for one that candle does not know, and with the transform of its inputs where the file declares one.
    ///
    /// # Errors
    /// What gristmill says of a tensor that is not there, can't be read, is no matrix of a format, or has no kernel; devices as for
    /// [`Linear::from_blocks`].
    pub fn from_model(model: &Model, name: &str, device: &Device, threads: &Arc<Threads>) -> Result<Linear> {
        Linear::of_model(model, name, device, None, threads)
    }

    /// As [`Linear::from_model`] on the processor, of a layer that goes on as a guard says where a kernel fails. It keeps the bytes of the
    /// matrix.
    ///
    /// # Errors
    /// As for [`Linear::from_model`].
    pub fn from_model_guarded(
        model: &Model,
        name: &str,
        guard: &Guard,
        threads: &Arc<Threads>,
    ) -> Result<Linear> {
        Linear::of_model(model, name, &Device::Cpu, Some(guard), threads)
    }

    fn of_model(
        model: &Model,
        name: &str,
        device: &Device,
        guard: Option<&Guard>,
        threads: &Arc<Threads>,
    ) -> Result<Linear> {
        let (linear, cuda) = options(device)?;
        let layer = Layer::of_model(model, name, LayerOptions { threads, linear }, guard);
        Ok(Linear::of(layer.map_err(Error::wrap)?, cuda, threads))
    }

    /// A layer of a matrix of floats `[n, k]`, quantized on the processor by the default quantizer of a format. It is made for the
    /// device that the matrix is on; from a GPU its values are read back once.
    ///
    /// # Errors
    /// A tensor that is no matrix; values that the format can't hold; a format without a quantizer; else as for
    /// [`Linear::from_blocks`].
    pub fn quantize(weights: &Tensor, format: &str, threads: &Arc<Threads>) -> Result<Linear> {
        let (n, k) = weights.dims2()?;
        let values = weights.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let info = REGISTRY.format(format).map_err(Error::wrap)?.1;
        let mut blocks = zeros(info.tensor_bytes(n, k).map_err(Error::wrap)?)?;
        let request = Request::quantize(format, None, n, k);
        let prepared = languages::prepared(&REGISTRY, &request).map_err(Error::wrap)?;
        let quantizer = Quantizer::new(&prepared.decide_as_asked()).map_err(Error::wrap)?;
        quantizer.run_on(&values, n, k, &mut blocks, threads).map_err(Error::wrap)?;
        Linear::from_blocks(format, n, k, &blocks, weights.device(), threads)
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
        let Ok(inner) = Arc::try_unwrap(self.0) else {
            bail!("the layer has been cloned: give it a bias before")
        };
        #[cfg(feature = "cuda")]
        let inner = Inner { cuda: inner.cuda.map(|place| place.with_bias(&values)).transpose()?, ..inner };
        Ok(Linear(Arc::new(Inner { bias: Some(values), ..inner })))
    }

    /// Rows of the weights: outputs.
    pub fn n(&self) -> usize {
        self.0.layer.n()
    }

    /// Elements of a row: inputs.
    pub fn k(&self) -> usize {
        self.0.layer.k()
    }

    /// Bytes held for the weights, packed.
    pub fn weight_bytes(&self) -> usize {
        self.0.layer.weight_bytes()
    }

    /// Bytes that a guard keeps besides; 0 without one.
    pub fn kept_bytes(&self) -> usize {
        self.0.layer.kept_bytes()
    }

    /// Waits for what was enqueued for this layer and its clones on a GPU, and says what stopped it: activations that are not
    /// finite, or what the driver reports. On the processor such errors are those of the call, and there is nothing to wait for.
    ///
    /// # Errors
    /// Those of products that were enqueued since the last call.
    #[cfg(feature = "cuda")]
    pub fn finish(&self) -> Result<()> {
        self.0.workspaces().iter_mut().try_for_each(Workspace::finish).map_err(Error::wrap)
    }

    /// Which kernels ran for this layer and its clones, and what was done where one failed.
    pub fn receipt(&self) -> Receipt {
        self.0.layer.receipt()
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

/// Zeros, or an error where there is no memory for them.
fn zeros<T: Clone + Default>(len: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    if let Err(error) = values.try_reserve_exact(len) {
        bail!("gristmill-linear: no memory for {len} values of {} bytes: {error}", size_of::<T>())
    }
    values.resize(len, T::default());
    Ok(values)
}

/// The values of an input in its storage.
fn within<'a, T>(all: &'a [T], values: Range<usize>, layout: &Layout) -> Result<&'a [T]> {
    match all.get(values) {
        Some(values) => Ok(values),
        None => bail!("gristmill-linear: the input ends before its layout does: {layout:?}"),
    }
}

/// What an input of a product is.
struct Tokens {
    m: usize,
    /// Where its values are in the storage.
    values: Range<usize>,
    /// Shape of the product.
    outputs: Shape,
}

impl Inner {
    fn workspaces(&self) -> MutexGuard<'_, Vec<Workspace>> {
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tokens(&self, layout: &Layout) -> Result<Tokens> {
        let (n, k) = (self.layer.n(), self.layer.k());
        let Some((tokens, _)) = layout.dims().split_last_chunk::<1>().filter(|(_, [last])| *last == k) else {
            bail!("gristmill-linear: the input has shape {:?}, expected rows of {k}", layout.dims())
        };
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("gristmill-linear: the input is not contiguous: {layout:?}")
        };
        let m: usize = tokens.iter().product();
        if m.checked_mul(n).is_none() {
            bail!("gristmill-linear: {m} rows of {n} outputs overflow the address space")
        }
        let outputs: Vec<usize> = tokens.iter().copied().chain([n]).collect();
        Ok(Tokens { m, values: start..end, outputs: Shape::from(outputs) })
    }

    /// On the processor.
    fn product(&self, x: &[f32], m: usize) -> Result<Vec<f32>> {
        let mut y = zeros(m * self.layer.n())?;
        let mut workspace = self.workspaces().pop().unwrap_or_default();
        let bias = self.bias.as_deref();
        let done = self.layer.forward(x, m, bias, &mut y, &mut workspace, &self.threads);
        self.workspaces().push(workspace);
        done.map_err(Error::wrap)?;
        Ok(y)
    }

    /// The input is on `found`, the weights are elsewhere.
    fn elsewhere<T>(&self, found: &str) -> Result<T> {
        let place = if self.cuda.is_some() { "a CUDA device" } else { "the processor" };
        bail!(
            "gristmill-linear: the weights are on {place} and the input is on {found}, and nothing is copied in silence: move it with \
             to_device, or make the layer for the device of its inputs"
        )
    }
}

impl CustomOp1 for Inner {
    fn name(&self) -> &'static str {
        "gristmill-linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        if self.cuda.is_some() {
            return self.elsewhere("the processor");
        }
        let Tokens { m, values, outputs } = self.tokens(layout)?;
        let y = match storage {
            CpuStorage::F32(all) => CpuStorage::F32(self.product(within(all, values, layout)?, m)?),
            // As candle's own layer: by f32, and back.
            CpuStorage::F16(all) => {
                let x = within(all, values, layout)?;
                let mut wide = zeros(x.len())?;
                widen_f16(x, &mut wide);
                let wide = self.product(&wide, m)?;
                let mut y = zeros(wide.len())?;
                y.convert_from_f32_slice(&wide);
                CpuStorage::F16(y)
            }
            other => {
                let got = candle_core::backend::BackendStorage::dtype(other);
                bail!("gristmill-linear: the input is {got:?}, expected F32 or F16: convert it with to_dtype")
            }
        };
        Ok((y, outputs))
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.elsewhere("a CUDA device")
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (Some(place), Some(layer)) = (&self.cuda, self.layer.unguarded()) else {
            return self.elsewhere("a CUDA device");
        };
        let Tokens { m, values, outputs } = self.tokens(layout)?;
        let mut workspace = self.workspaces().pop().unwrap_or_default();
        let done = place.forward(layer, m, storage, values, &mut workspace);
        self.workspaces().push(workspace);
        Ok((done?, outputs))
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        self.elsewhere("a Metal device")
    }
}

#[cfg(test)]
mod tests {
    use super::zeros;

    #[test]
    fn what_memory_does_not_hold_is_an_error() {
        assert!(zeros::<f32>(3).is_ok_and(|values| values == [0.0; 3]));
        let said = zeros::<f32>(usize::MAX).expect_err("no memory").to_string();
        assert!(said.contains(&format!("no memory for {} values of 4 bytes", usize::MAX)), "{said}");
    }
}
