//! Conversions between f32, f16 and bf16 on a device.

use super::blocks::{looping, size};
use super::buffer::{DeviceBuffer, Number};
use super::device::{Function, Gpu};
use super::input::DeviceInput;
use super::parameters;
use super::types::{BF16, F16, F32};
use crate::error::Error;
use crate::registry::{CudaCode, CudaLaunch, CudaRowsQuantizer, Entry, Registry};
use std::sync::Arc;

/// What errors call it.
const NAME: &str = "convert";

/// The kernel that converts, loaded.
#[derive(Clone, Debug)]
pub(super) struct Convert {
    /// What errors call it.
    name: &'static str,
    function: Function,
    threads: u32,
    per_thread: u32,
}

/// Rows of `k` values of type `word`, `stride` values apart, at `address`; a result's `address` may be 0 for none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    pub(super) address: u64,
    pub(super) word: u32,
    pub(super) stride: usize,
}

impl Convert {
    /// # Errors
    /// [`Error::CannotRunOnGpu`] where no image of it is for the device; [`Error::Gpu`].
    pub(super) fn load(gpu: &Gpu, registry: &'static Registry) -> Result<Convert, Error> {
        let missing = || Error::CannotRunOnGpu {
            kernel: NAME,
            index: gpu.profile().index,
            why: String::from(
                "this build holds no image of it; `gristmill doctor` says why images are not built",
            ),
        };
        let code = registry.convert.as_ref().ok_or_else(missing)?;
        let CudaLaunch::Convert { function, threads, per_thread } = code.launch else {
            return Err(Error::BrokenRegistry {
                package: registry.package,
                at: NAME,
                what: "its code is of another op or device",
            });
        };
        let function = gpu.function(NAME, code, function, threads)?;
        Ok(Convert { name: NAME, function, threads, per_thread: per_thread.max(1) })
    }

    /// The kernel that quantizes the activations of a product, which is in the product's image.
    ///
    /// # Errors
    /// As for [`load`](Convert::load).
    pub(super) fn of_product(
        gpu: &Gpu,
        entry: &'static Entry,
        code: &CudaCode,
        quantizer: &CudaRowsQuantizer,
    ) -> Result<Convert, Error> {
        let &CudaRowsQuantizer { function, threads, .. } = quantizer;
        let function = gpu.function(entry.name, code, function, threads)?;
        // A thread makes four bytes of codes.
        Ok(Convert { name: entry.name, function, threads, per_thread: 4 })
    }

    /// Enqueues a conversion of `rows > 0` rows of `k` values. With `fault`, the address of a word, values must be finite
    /// before and after. What quantizes needs `fault`.
    ///
    /// # Safety
    /// `src` is the address of as many values of its type, `dst` of room for `rows * stride` of its own, on this device;
    /// both live until the kernel has run.
    pub(super) unsafe fn rows(
        &self,
        gpu: &Gpu,
        src: Values,
        dst: Values,
        (rows, k): (usize, usize),
        fault: u64,
    ) -> Result<(), Error> {
        let work = (rows as u64).saturating_mul(dst.stride as u64);
        let work = work.div_ceil(u64::from(self.per_thread) * u64::from(self.threads));
        let geometry = looping(gpu, &self.function, self.threads, work);
        let arguments = parameters::Convert {
            src: src.address,
            from: src.word,
            src_stride: src.stride as u64,
            dst: dst.address,
            to: dst.word,
            dst_stride: dst.stride as u64,
            rows: size("rows", rows)?,
            k: k as u64,
            fault,
        };
        // SAFETY: the parameters are those of docs/cuda.md; memory is the caller's.
        unsafe { gpu.launch(self.name, &self.function, &geometry, &arguments.arguments()) }
    }
}

/// Converts values in a GPU's memory between f32, f16 and bf16, bit by bit as the crate `half` does on the processor: to
/// nearest even, beyond the largest number to an infinity; of a NaN the leading bits stay, and it becomes quiet.
///
/// Conversions are enqueued in the order of the device's stream.
#[derive(Clone, Debug)]
pub struct Converter {
    gpu: Arc<Gpu>,
    convert: Convert,
}

impl Converter {
    /// The conversions of a build on `cuda:index`, loaded.
    ///
    /// # Errors
    /// [`Error::NoGpu`], [`Error::CannotRunOnGpu`] where the build holds no image for the device, [`Error::Gpu`].
    pub fn new(registry: &'static Registry, index: u32) -> Result<Converter, Error> {
        Converter::on_gpu(registry, &Gpu::open(index)?)
    }

    /// The conversions of a build on a device that is open: on an engine's stream, or one of several.
    ///
    /// # Errors
    /// [`Error::CannotRunOnGpu`], [`Error::Gpu`].
    pub fn on_gpu(registry: &'static Registry, gpu: &Arc<Gpu>) -> Result<Converter, Error> {
        Ok(Converter { convert: Convert::load(gpu, registry)?, gpu: Arc::clone(gpu) })
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Enqueues `dst = f32(src)`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for buffers of different length, [`Error::WrongDevice`], [`Error::Gpu`].
    pub fn to_f32(&self, src: DeviceInput<'_>, dst: &mut DeviceBuffer<f32>) -> Result<(), Error> {
        self.convert(src, dst, F32)
    }

    /// Enqueues `dst = f16(src)`, as bits.
    ///
    /// # Errors
    /// As for [`Converter::to_f32`].
    pub fn to_f16(&self, src: DeviceInput<'_>, dst: &mut DeviceBuffer<u16>) -> Result<(), Error> {
        self.convert(src, dst, F16)
    }

    /// Enqueues `dst = bf16(src)`, as bits.
    ///
    /// # Errors
    /// As for [`Converter::to_f32`].
    pub fn to_bf16(&self, src: DeviceInput<'_>, dst: &mut DeviceBuffer<u16>) -> Result<(), Error> {
        self.convert(src, dst, BF16)
    }

    fn convert<T: Number>(
        &self,
        src: DeviceInput<'_>,
        dst: &mut DeviceBuffer<T>,
        word: u32,
    ) -> Result<(), Error> {
        let len = src.len();
        if dst.len() != len {
            let (what, unit) = ("the converted values", "values");
            return Err(Error::ShapeMismatch { what, unit, expected: len, found: dst.len() });
        }
        if !Arc::ptr_eq(src.gpu(), &self.gpu) || !Arc::ptr_eq(dst.gpu(), &self.gpu) {
            return Err(Error::WrongDevice { kernel: NAME, index: self.gpu.profile().index });
        }
        if src.overlaps(dst) {
            return Err(Error::Overlap { kernel: NAME, what: "the values" });
        }
        if len == 0 {
            return Ok(());
        }
        let from = Values { address: src.address(), word: src.word(), stride: len };
        let to = Values { address: dst.output(), word, stride: len };
        // SAFETY: both buffers hold `len` values of their types; what is dropped before the kernel has run is freed
        // behind it, in the order of the stream.
        unsafe { self.convert.rows(&self.gpu, from, to, (1, len), 0) }
    }
}
