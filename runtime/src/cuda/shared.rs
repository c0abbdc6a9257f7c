//! Activations on a device that are quantized once and read by several products.

use super::activations::ActivationCode;
use super::buffer::DeviceBuffer;
use super::device::Gpu;
use super::input::DeviceInput;
use super::product::ProductCode;
use super::prologue::{DevicePrologue, DevicePrologueInput, PrologueCode};
use super::scratch::{DeviceScratch, Places, Scratch};
use crate::activations::ActivationLayout;
use crate::error::Error;
use crate::registry::ActivationInfo;
use crate::run::launch::Launcher;
use crate::weights::PackedMatrix;
use std::sync::Arc;

/// Activations on a GPU, quantized once for several products: query, key and value; gate and up; experts. They lie in the
/// workspace that they were quantized into, whose [`finish`](crate::Workspace::finish) waits and reports what stopped a row; it is
/// free again when nobody has them any more.
///
/// As with [`QuantizedActivations`](crate::QuantizedActivations) on the processor, formats and kernels say which products may
/// share them ([`Linear::shares_activations_with`]), and one that reads another layout refuses them. Results have the bits of
/// separate runs. Quantizing them and the products are enqueued, and may be captured in one [`Graph`](super::Graph) or in several.
///
/// Made by [`Linear::quantize_on_device`], [`Linear::quantize_on_device_with`] and [`Matmul::quantize_on_device`].
///
/// ```
/// use gristmill_runtime::cuda::{DeviceBuffer, DeviceInput};
/// use gristmill_runtime::{Error, Linear, Workspace};
///
/// /// Query, key and value of `m` tokens: one launch quantizes, three multiply. Products take what memory they need besides
/// /// from a workspace of their own.
/// fn project(
///     layers: [&Linear; 3],
///     (x, m): (&DeviceBuffer<f32>, usize),
///     outputs: [&mut DeviceBuffer<f32>; 3],
///     [activations, products]: [&mut Workspace; 2],
/// ) -> Result<(), Error> {
///     let shared = layers[0].quantize_on_device(DeviceInput::F32(x), m, activations)?;
///     for (layer, y) in layers.into_iter().zip(outputs) {
///         layer.forward_quantized_on_device(&shared, None, y, products)?;
///     }
///     activations.finish()
/// }
/// # let _ = project;
/// ```
///
/// [`Linear::shares_activations_with`]: crate::Linear::shares_activations_with
/// [`Linear::quantize_on_device`]: crate::Linear::quantize_on_device
/// [`Linear::quantize_on_device_with`]: crate::Linear::quantize_on_device_with
/// [`Matmul::quantize_on_device`]: crate::Matmul::quantize_on_device
#[derive(Clone, Copy, Debug)]
pub struct DeviceActivations<'w> {
    layout: ActivationLayout,
    m: usize,
    q: &'w DeviceBuffer<i8>,
    scales: &'w DeviceBuffer<f32>,
    sums: &'w DeviceBuffer<i32>,
}

impl<'w> DeviceActivations<'w> {
    /// What was enqueued into the places of `scratch`.
    fn of(scratch: &'w DeviceScratch, layout: ActivationLayout, m: usize) -> Result<Self, Error> {
        let nothing = || Error::TooLarge { what: "activations" };
        Ok(DeviceActivations {
            layout,
            m,
            q: scratch.q.as_ref().ok_or_else(nothing)?,
            scales: scratch.scales.as_ref().ok_or_else(nothing)?,
            sums: scratch.sums.as_ref().ok_or_else(nothing)?,
        })
    }

    /// Tokens.
    pub fn m(&self) -> usize {
        self.m
    }

    /// Elements of a token.
    pub fn k(&self) -> usize {
        self.layout.row.k
    }

    /// Name of the activation format.
    pub fn format(&self) -> &'static str {
        let ActivationInfo { name, .. } = self.layout.format;
        name
    }

    /// Their device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.q.gpu()
    }

    /// Refuses what a kernel that reads `expected` would take for something else.
    pub(crate) fn check(&self, kernel: &'static str, expected: &ActivationLayout) -> Result<(), Error> {
        self.layout.check(kernel, expected)
    }

    /// Where they are. A graph that is being captured keeps their memory.
    pub(crate) fn places(&self) -> Places {
        Places {
            q: self.q.input(),
            stride: self.layout.row.bytes(),
            scales: self.scales.input(),
            sums: self.sums.input(),
            // What stopped a row is told by who quantized it.
            fault: 0,
        }
    }
}

impl Launcher<ActivationCode> {
    /// Enqueues the quantization of `m > 0` tokens, whose number of values was checked.
    pub(crate) fn quantized<'w>(
        &self,
        input: DeviceInput<'_>,
        m: usize,
        layout: ActivationLayout,
        scratch: &'w mut Option<Box<Scratch>>,
    ) -> Result<DeviceActivations<'w>, Error> {
        let gpu = self.gpu();
        if !Arc::ptr_eq(input.gpu(), gpu) {
            return Err(Error::WrongDevice { kernel: self.entry.name, index: gpu.profile().index });
        }
        let scratch = scratch.get_or_insert_default().on(gpu);
        let ActivationLayout { format, row } = layout;
        let places = scratch.places(gpu, m, &row, format.block, row.bytes())?;
        // SAFETY: the input has `m * k` values on this device. What is dropped before the kernel has run is freed behind it, in
        // the order of the stream.
        unsafe { self.rows(input.address(), input.word(), m, &row, &places) }?;
        DeviceActivations::of(scratch, layout, m)
    }
}

impl Launcher<PrologueCode> {
    /// The same through a prologue, whose steps were checked.
    pub(crate) fn behind<'w>(
        &self,
        prologue: &DevicePrologue,
        input: DevicePrologueInput<'_>,
        m: usize,
        layout: ActivationLayout,
        scratch: &'w mut Option<Box<Scratch>>,
    ) -> Result<DeviceActivations<'w>, Error> {
        let gpu = self.gpu();
        input.check(self.entry.name, prologue, gpu, m, None)?;
        let scratch = scratch.get_or_insert_default().on(gpu);
        let ActivationLayout { format, row } = layout;
        let values = m.checked_mul(row.k).ok_or(Error::TooLarge { what: "activations" })?;
        let rows = scratch.rows_at(gpu, values)?;
        let places = scratch.places(gpu, m, &row, format.block, row.bytes())?;
        // SAFETY: operands were compared with the shape just now, `rows` is as large, and the places are those of `m` rows. What is
        // dropped before the kernel has run is freed behind it, in the order of the stream.
        unsafe { self.rows(prologue, input, m, &row, [rows, places.fault], Some(&places)) }?;
        DeviceActivations::of(scratch, layout, m)
    }
}

impl Launcher<ProductCode> {
    /// Refuses operands of a product of activations that are quantized which are elsewhere, or in the output. Their layout, and the
    /// sizes of bias and output, were checked.
    pub(crate) fn check_shared(
        &self,
        packed: &PackedMatrix,
        x: &DeviceActivations<'_>,
        bias: Option<&DeviceBuffer<f32>>,
        y: &DeviceBuffer<f32>,
    ) -> Result<(), Error> {
        let (gpu, kernel) = (self.gpu(), self.entry.name);
        let others = [Some(x.gpu()), bias.map(DeviceBuffer::gpu), Some(y.gpu())];
        if others.into_iter().flatten().any(|other| !Arc::ptr_eq(other, gpu)) {
            return Err(Error::WrongDevice { kernel, index: gpu.profile().index });
        }
        if bias.is_some_and(|bias| bias.overlaps(y)) {
            return Err(Error::Overlap { kernel, what: "the bias" });
        }
        self.weights(packed).map(|_| ())
    }

    /// Enqueues the product of operands that were checked.
    pub(crate) fn run_shared(
        &self,
        packed: &PackedMatrix,
        x: &DeviceActivations<'_>,
        bias: Option<&DeviceBuffer<f32>>,
        y: &mut DeviceBuffer<f32>,
        scratch: &mut Option<Box<Scratch>>,
    ) -> Result<(), Error> {
        let scratch = scratch.get_or_insert_default().on(self.gpu());
        // What stops a row is told by who quantized it.
        scratch.without_fault()?;
        let bias = bias.map_or(0, |bias| bias.input());
        // SAFETY: the activations are `m` rows of this layout, bias and output have the sizes that the handle compared with the
        // shape. What is dropped before the kernel has run is freed behind it, in the order of the stream.
        unsafe { self.product(packed, &x.places(), x.m, &x.layout.row, bias, y.output(), scratch) }
    }
}
