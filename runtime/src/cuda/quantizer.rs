//! Quantizing and dequantizing tensors that are on a device already.

use super::blocks::{DequantizeCode, QuantizeCode, report};
use super::buffer::DeviceBuffer;
use super::device::Gpu;
use super::fault::Faults;
use super::place::Place;
use crate::device::Device;
use crate::error::Error;
use crate::receipt::Recording;
use crate::registry::{FormatInfo, Registry};
use crate::request::Request;
use crate::run::launch::Launcher;
use gristmill_spec::vocab::DeviceKind;
use std::sync::Arc;

/// Device memory that a conversion takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// The f32 values.
    pub values: usize,
    /// The tensor in the format.
    pub quantized: usize,
    /// What the quantizer holds besides.
    pub scratch: usize,
}

impl MemoryEstimate {
    /// All of it.
    pub fn total(&self) -> usize {
        self.values.saturating_add(self.quantized).saturating_add(self.scratch)
    }
}

/// How far a quantized tensor is from what it was made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizationError {
    /// The largest difference of a value, and where it is.
    pub largest: f32,
    /// Its row.
    pub row: usize,
    /// Its column.
    pub column: usize,
    /// Sum of squared differences by sum of squares; 0 where all values are 0 and were kept.
    pub normalized_square: f64,
}

/// A format's quantizer and dequantizer on one GPU, for tensors in its memory. Both write the bits that the processor's
/// kernels write.
///
/// Conversions are enqueued; [`GpuQuantizer::finish`] waits for them and reports what stopped one.
/// [`Quantizer`](crate::Quantizer) and [`Dequantizer`](crate::Dequantizer) do the same from and to the processor's memory.
#[derive(Debug)]
pub struct GpuQuantizer {
    quantize: Launcher<QuantizeCode>,
    dequantize: Launcher<DequantizeCode>,
    format: &'static FormatInfo,
    steps: [DeviceBuffer<u64>; 2],
    faults: Faults,
}

impl GpuQuantizer {
    /// The kernels of `format` on `cuda:index`, loaded; `quantizer` is the format's default if it is `None`.
    ///
    /// # Errors
    /// [`Error::NoKernel`] with the reasons; [`Error::UnknownFormat`]; [`Error::Gpu`].
    pub fn new(
        registry: &'static Registry,
        format: &str,
        quantizer: Option<&str>,
        index: u32,
    ) -> Result<GpuQuantizer, Error> {
        GpuQuantizer::at(registry, format, quantizer, &Place::at(index))
    }

    /// The same on a device that is open: on an engine's stream, or one of several.
    ///
    /// # Errors
    /// As for [`GpuQuantizer::new`].
    pub fn on_gpu(
        registry: &'static Registry,
        format: &str,
        quantizer: Option<&str>,
        gpu: &Arc<Gpu>,
    ) -> Result<GpuQuantizer, Error> {
        GpuQuantizer::at(registry, format, quantizer, &Place::on(gpu))
    }

    fn at(
        registry: &'static Registry,
        format: &str,
        quantizer: Option<&str>,
        place: &Place,
    ) -> Result<GpuQuantizer, Error> {
        let index = place.index();
        let device = Device { kind: DeviceKind::Cuda, index };
        let prepared = registry.prepare(&Request::quantize(format, quantizer, 1, 0).on(device))?;
        let quantize =
            Launcher::<QuantizeCode>::cuda(registry, prepared.decide_as_asked().candidate()?, place)?;
        let prepared = registry.prepare(&Request::dequantize(format, 1, 0).on(device))?;
        let dequantize =
            Launcher::<DequantizeCode>::cuda(registry, prepared.decide_as_asked().candidate()?, place)?;
        let format = &registry.formats[quantize.entry.format];
        let gpu = Arc::clone(quantize.gpu());
        let nothing = || DeviceBuffer::uninitialized(&gpu, 0);
        Ok(GpuQuantizer {
            steps: [nothing()?, nothing()?],
            faults: Faults::new(&gpu)?,
            quantize,
            dequantize,
            format,
        })
    }

    /// Waits until the device has done everything, and finds out whether it still works.
    ///
    /// # Errors
    /// [`Error::Gpu`] of whatever failed before; [`Error::NoGpu`] if the device was lost by it.
    pub fn ensure_ready(&self) -> Result<(), Error> {
        let gpu = self.gpu();
        let index = gpu.profile().index;
        super::detect(index).map_err(|why| Error::NoGpu { index, why })?;
        gpu.synchronize()
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.quantize.gpu()
    }

    /// The format.
    pub fn format(&self) -> &'static FormatInfo {
        self.format
    }

    /// Lets launches count in `recording` (`None`: in no recording any more).
    ///
    /// # Errors
    /// [`Error::ForeignRecording`].
    pub fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        self.quantize.record(recording)?;
        self.dequantize.record(recording)
    }

    /// Bytes of device memory for `n` rows of `k` values.
    ///
    /// # Errors
    /// [`Error::KNotMultiple`], [`Error::TooLarge`].
    pub fn memory_estimate(&self, n: usize, k: usize) -> Result<MemoryEstimate, Error> {
        let too_large = Error::TooLarge { what: "a tensor" };
        let values = n.checked_mul(k).and_then(|values| values.checked_mul(4)).ok_or(too_large)?;
        let numbers = self.quantize.step_numbers(self.format, n, k)?;
        let scratch = 8 * (1 + numbers[0] + numbers[1]);
        Ok(MemoryEstimate { values, quantized: self.format.tensor_bytes(n, k)?, scratch })
    }

    /// Enqueues `n` rows of `k` values to the format: row headers, blocks, and the tail with its zero fill. `src` holds
    /// `n * k` values, `dst` [`FormatInfo::tensor_bytes`] bytes.
    ///
    /// # Errors
    /// Sizes: [`Error::KNotMultiple`], [`Error::ShapeMismatch`], [`Error::TooLarge`]; [`Error::WrongDevice`];
    /// [`Error::OutOfDeviceMemory`], [`Error::Gpu`].
    pub fn quantize(
        &mut self,
        src: &DeviceBuffer<f32>,
        n: usize,
        k: usize,
        dst: &mut DeviceBuffer<u8>,
    ) -> Result<(), Error> {
        self.check(self.quantize.entry.name, src, dst, n, k)?;
        if src.is_empty() {
            return if dst.is_empty() { Ok(()) } else { dst.fill_bytes(0) };
        }
        let numbers = self.quantize.step_numbers(self.format, n, k)?;
        for (buffer, count) in self.steps.iter_mut().zip(numbers) {
            if buffer.len() < count {
                *buffer = DeviceBuffer::uninitialized(self.quantize.gpu(), count)?;
            }
        }
        self.quantize.enqueue(self.format, src, n, k, dst, &mut self.steps, &mut self.faults)
    }

    /// Enqueues the values of a tensor of `n` rows of `k`.
    ///
    /// # Errors
    /// As for [`GpuQuantizer::quantize`].
    pub fn dequantize(
        &mut self,
        src: &DeviceBuffer<u8>,
        n: usize,
        k: usize,
        dst: &mut DeviceBuffer<f32>,
    ) -> Result<(), Error> {
        self.check(self.dequantize.entry.name, dst, src, n, k)?;
        if dst.is_empty() {
            return Ok(());
        }
        self.dequantize.enqueue(self.format, src, n, k, dst, &mut self.faults)
    }

    /// Waits for the conversions since the last time, those of graphs included.
    ///
    /// # Errors
    /// [`Error::NonFinite`], [`Error::ScaleOverflow`], [`Error::InvalidCode`] of one of them, with its place; what was
    /// written is of no use then. [`Error::Gpu`].
    pub fn finish(&mut self) -> Result<(), Error> {
        report(self.format, &mut self.faults)
    }

    /// Compares a quantized tensor with what it was made of: dequantizes it on the device, and copies both back.
    ///
    /// # Errors
    /// [`Error::InvalidCode`] where it holds no weight; else as for [`GpuQuantizer::dequantize`].
    pub fn validate(
        &mut self,
        values: &DeviceBuffer<f32>,
        quantized: &DeviceBuffer<u8>,
        n: usize,
        k: usize,
    ) -> Result<QuantizationError, Error> {
        self.finish()?;
        let mut kept = DeviceBuffer::uninitialized(self.gpu(), values.len())?;
        self.dequantize(quantized, n, k, &mut kept)?;
        self.finish()?;
        let (values, kept) = (values.to_vec()?, kept.to_vec()?);
        let mut error = QuantizationError { largest: 0.0, row: 0, column: 0, normalized_square: 0.0 };
        let (mut lost, mut all) = (0.0, 0.0);
        for (at, (value, kept)) in values.iter().zip(&kept).enumerate() {
            let difference = f64::from(*value) - f64::from(*kept);
            lost += difference * difference;
            all += f64::from(*value) * f64::from(*value);
            // NaN is the largest of all.
            if difference.abs() as f32 > error.largest || difference.is_nan() {
                error = QuantizationError {
                    largest: difference.abs() as f32,
                    row: at / k,
                    column: at % k,
                    ..error
                };
            }
        }
        error.normalized_square = if lost == 0.0 { 0.0 } else { lost / all };
        Ok(error)
    }

    fn check(
        &self,
        kernel: &'static str,
        values: &DeviceBuffer<f32>,
        quantized: &DeviceBuffer<u8>,
        n: usize,
        k: usize,
    ) -> Result<(), Error> {
        let count = n.checked_mul(k).ok_or(Error::TooLarge { what: "a tensor" })?;
        let sizes = [
            ("the tensor's values", "values", count, values.len()),
            ("the quantized tensor", "bytes", self.format.tensor_bytes(n, k)?, quantized.len()),
        ];
        if let Some((what, unit, expected, found)) = sizes.into_iter().find(|(_, _, a, b)| a != b) {
            return Err(Error::ShapeMismatch { what, unit, expected, found });
        }
        let gpu = self.gpu();
        if !Arc::ptr_eq(values.gpu(), gpu) || !Arc::ptr_eq(quantized.gpu(), gpu) {
            return Err(Error::WrongDevice { kernel, index: gpu.profile().index });
        }
        Ok(())
    }
}
