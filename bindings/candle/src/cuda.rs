//! Layers on a CUDA device of candle's: on its stream and in its memory.

use candle_core::cuda_backend::DeviceId;
use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut};
use candle_core::{CudaDevice, CudaStorage, Error, Result, bail};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::{Linear, Workspace};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// Where the weights of a layer are, and its bias.
#[derive(Debug)]
pub(crate) struct Place {
    device: CudaDevice,
    pub(crate) gpu: Arc<Gpu>,
    bias: Option<DeviceBuffer<f32>>,
}

impl Place {
    /// candle's device, on the stream that candle enqueues on. Layers of one device share what is loaded there.
    pub(crate) fn of(device: &CudaDevice) -> Result<Place> {
        static OPEN: LazyLock<Mutex<HashMap<DeviceId, Weak<Gpu>>>> = LazyLock::new(Mutex::default);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let gpu = match open.get(&device.id()).and_then(Weak::upgrade) {
            Some(gpu) => gpu,
            None => {
                let gpu = Gpu::of_cudarc(&device.cuda_stream()).map_err(|error| {
                    Error::wrap(error).context(
                        "gristmill needs a device with a stream of its own: Device::new_cuda_with_stream makes one",
                    )
                })?;
                open.retain(|_, gpu| gpu.strong_count() > 0);
                open.insert(device.id(), Arc::downgrade(&gpu));
                gpu
            }
        };
        Ok(Place { device: device.clone(), gpu, bias: None })
    }

    /// The same with a bias.
    pub(crate) fn with_bias(self, values: &[f32]) -> Result<Place> {
        let bias = DeviceBuffer::of(&self.gpu, values).map_err(Error::wrap)?;
        Ok(Place { bias: Some(bias), ..self })
    }

    /// The product of the `m` tokens that lie in `values` of a storage. It is enqueued, and nothing is waited for.
    pub(crate) fn forward(
        &self,
        layer: &Linear,
        m: usize,
        storage: &CudaStorage,
        values: Range<usize>,
        workspace: &mut Workspace,
    ) -> Result<CudaStorage> {
        if storage.device.id() != self.device.id() {
            bail!(
                "gristmill-linear: the input is on another CUDA device, or another stream of it, than the weights"
            )
        }
        let x = storage.as_cuda_slice::<f32>()?;
        let Some(x) = x.try_slice(values) else {
            bail!("gristmill-linear: the input ends before its layout does")
        };
        let (stream, outputs) = (self.device.cuda_stream(), m * layer.n());
        // SAFETY: the product writes all of it before anybody reads it.
        let mut y = unsafe { self.device.alloc::<f32>(outputs) }?;
        if m > 0 {
            // cudarc orders what is done with both by this stream, for as long as these guards live.
            let (from, _read) = x.device_ptr(&stream);
            let (to, _written) = y.device_ptr_mut(&stream);
            // SAFETY: `m` rows of `k` and of `n` values lie there, and they outlive the buffers; what is enqueued with them comes in
            // the order of candle's stream, on which candle frees memory too.
            let (from, mut to) = unsafe {
                (
                    DeviceBuffer::lent(&self.gpu, from, m * layer.k()).map_err(Error::wrap)?,
                    DeviceBuffer::lent(&self.gpu, to, outputs).map_err(Error::wrap)?,
                )
            };
            layer
                .forward_on_device(DeviceInput::F32(&from), m, self.bias.as_ref(), &mut to, workspace)
                .map_err(Error::wrap)?;
        }
        Ok(CudaStorage::wrap_cuda_slice(y, self.device.clone()))
    }
}
