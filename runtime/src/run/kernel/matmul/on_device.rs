//! A product in two steps on a GPU: activations quantized once, and products that read them.

use super::Matmul;
use crate::activations::ActivationLayout;
use crate::cuda::{
    ActivationCode, DeviceActivations, DeviceBuffer, DeviceInput, DevicePrologue, DevicePrologueInput,
    ProductCode,
};
use crate::error::Error;
use crate::operands::sizes::{check_len, product_of};
use crate::reason::{BrokenRule, Rule};
use crate::registry::{Entry, FormatInfo};
use crate::request::Shape;
use crate::run::launch::{Launcher, MatmulCode, On, cannot_drive};
use crate::weights::PackedMatrix;
use crate::workspace::Workspace;
use gristmill_spec::vocab::DType;
use std::time::Instant;

impl Matmul {
    /// Enqueues the quantization of `m` tokens of `k` elements that are on the kernel's GPU, for this and other products, and does
    /// not wait for it: [`Workspace::finish`] does, and reports an activation that was not finite.
    ///
    /// # Errors
    /// [`Error::CannotDrive`] for a kernel of the processor; [`Error::WrongInput`], also of a kernel that quantizes for itself or
    /// multiplies floats; [`Error::ShapeMismatch`]; [`Error::ShapeRule`] for no tokens; [`Error::WrongDevice`],
    /// [`Error::OutOfDeviceMemory`], [`Error::Gpu`].
    pub fn quantize_on_device<'w>(
        &self,
        input: DeviceInput<'_>,
        m: usize,
        k: usize,
        workspace: &'w mut Workspace,
    ) -> Result<DeviceActivations<'w>, Error> {
        let layout = self.layout_on_device(k)?;
        self.quantize_as(layout, input, m, workspace)
    }

    /// The same in the layout of another kernel of the same format, on the same device.
    pub(crate) fn quantize_as<'w>(
        &self,
        layout: ActivationLayout,
        input: DeviceInput<'_>,
        m: usize,
        workspace: &'w mut Workspace,
    ) -> Result<DeviceActivations<'w>, Error> {
        let k = layout.row.k;
        self.check_dtype(input.dtype())?;
        check_len("activations", "values", product_of("activations", m, k)?, input.len())?;
        let shape = self.not_empty(Shape { m, n: 1, k })?;
        self.device_quantizer(shape)?.quantized(input, m, layout, &mut workspace.gpu)
    }

    /// What quantizes activations on its GPU.
    pub(crate) fn device_quantizer(&self, shape: Shape) -> Result<&Launcher<ActivationCode>, Error> {
        match self.activation_quantizer(shape)? {
            Some(On::Cuda(quantizer)) => Ok(quantizer),
            Some(On::Cpu(_)) | None => Err(self.on.broken("its activations have no quantizer on its device")),
        }
    }

    /// Tokens of a tile of the kernel's grouped form, if it has one.
    pub(crate) fn grouped_tokens(&self) -> Option<usize> {
        match &self.on {
            On::Cpu(_) => None,
            On::Cuda(launcher) => launcher.grouped_tokens(),
        }
    }

    /// Tells of parts that followed one another, as a step of a run with weights of this format.
    pub(crate) fn went_in_parts(&self, format: &FormatInfo, why: &Error, started: Instant) {
        if let On::Cuda(launcher) = &self.on {
            launcher.went_in_parts(format, why, started);
        }
    }

    /// The kernel, on its device.
    pub(crate) fn on(&self) -> &On<MatmulCode, ProductCode> {
        &self.on
    }

    /// As [`quantize_on_device`](Matmul::quantize_on_device), of what the tokens are behind `prologue`: one launch does both.
    ///
    /// # Errors
    /// As there; [`Error::Prologue`] for steps that the activation format does not take, and for a gate without its rows;
    /// [`Error::Overlap`].
    pub fn quantize_on_device_with<'w>(
        &self,
        prologue: &DevicePrologue,
        input: DevicePrologueInput<'_>,
        m: usize,
        workspace: &'w mut Workspace,
    ) -> Result<DeviceActivations<'w>, Error> {
        let layout = self.layout_on_device(prologue.prologue().k())?;
        self.quantize_as_with(layout, prologue, input, m, workspace)
    }

    /// The same in the layout of another kernel of the same format, on the same device.
    pub(crate) fn quantize_as_with<'w>(
        &self,
        layout: ActivationLayout,
        prologue: &DevicePrologue,
        input: DevicePrologueInput<'_>,
        m: usize,
        workspace: &'w mut Workspace,
    ) -> Result<DeviceActivations<'w>, Error> {
        let k = layout.row.k;
        check_len("a row of the prologue", "values", k, prologue.prologue().k())?;
        prologue.prologue().check(layout.format, input.given())?;
        let shape = self.not_empty(Shape { m, n: 1, k })?;
        match self.prologue_kernel(shape)? {
            On::Cuda(first) => first.behind(prologue, input, m, layout, &mut workspace.gpu),
            On::Cpu(_) => Err(self.on.broken("its prologue is one of the processor")),
        }
    }

    /// Enqueues the product of activations that this product or another one quantized, with the bits of
    /// [`run_on_device`](Matmul::run_on_device), and does not wait for it. `y` has room for `m * n` values. `workspace` is
    /// another one than that in which the activations lie; it holds partial sums, where k is split.
    ///
    /// # Errors
    /// [`Error::CannotDrive`] for a kernel of the processor; [`Error::WrongInput`] for one that takes floats;
    /// [`Error::ActivationLayout`] where the activations were quantized for a kernel that reads them differently; else as for
    /// [`Matmul::run_on_device`].
    pub fn run_quantized_on_device(
        &self,
        weights: &PackedMatrix,
        x: &DeviceActivations<'_>,
        bias: Option<&DeviceBuffer<f32>>,
        y: &mut DeviceBuffer<f32>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        self.quantized_product(weights, x, bias, y)?.enqueue(x, bias, y, workspace)
    }

    /// The same, looked at and not enqueued yet.
    pub(crate) fn quantized_product<'p>(
        &'p self,
        weights: &'p PackedMatrix,
        x: &DeviceActivations<'_>,
        bias: Option<&DeviceBuffer<f32>>,
        y: &DeviceBuffer<f32>,
    ) -> Result<QuantizedProduct<'p>, Error> {
        let layout = self.layout_on_device(weights.k())?;
        x.check(self.entry().name, &layout)?;
        let launcher = self.on_device(weights, x.m(), bias, y)?;
        launcher.check_shared(weights, x, bias, y)?;
        Ok(QuantizedProduct { launcher, weights })
    }

    /// How it reads quantized activations, if it is a kernel of a GPU that does.
    pub(crate) fn layout_on_device(&self, k: usize) -> Result<ActivationLayout, Error> {
        let kernel = self.entry();
        match &self.on {
            On::Cpu(_) => Err(cannot_drive(kernel, 0)),
            On::Cuda(_) if !self.reads_quantized() => {
                let expected = self.dtypes.clone();
                Err(Error::WrongInput { kernel: kernel.name, expected, found: DType::I8 })
            }
            On::Cuda(_) => self.activation_layout(k),
        }
    }

    /// Whether it makes int8 of floats that are on its device.
    pub(crate) fn quantizes_on_device(&self) -> bool {
        !self.quantizers.is_empty()
    }

    /// Whether it does so behind a prologue.
    pub(crate) fn has_prologue(&self) -> bool {
        !self.prologues.is_empty()
    }

    /// The shape, where there is something to do.
    fn not_empty(&self, shape: Shape) -> Result<Shape, Error> {
        if shape.m > 0 && shape.k > 0 {
            return Ok(shape);
        }
        let rule = BrokenRule { dim: super::empty_dim(shape), rule: Rule::AtLeast(1), found: 0 };
        Err(Error::ShapeRule { kernel: self.entry().name, rule })
    }
}

/// A product of quantized activations on a GPU whose operands were looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizedProduct<'p> {
    launcher: &'p Launcher<ProductCode>,
    weights: &'p PackedMatrix,
}

impl QuantizedProduct<'_> {
    /// The kernel.
    pub(crate) fn kernel(&self) -> &'static Entry {
        self.launcher.entry
    }

    /// Enqueues it, for the operands that were looked at.
    pub(crate) fn enqueue(
        &self,
        x: &DeviceActivations<'_>,
        bias: Option<&DeviceBuffer<f32>>,
        y: &mut DeviceBuffer<f32>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        self.launcher.run_shared(self.weights, x, bias, y, &mut workspace.gpu)
    }
}
