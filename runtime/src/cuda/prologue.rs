//! Prologues on a device.

use super::activations::within_blocks;
use super::blocks::size;
use super::buffer::DeviceBuffer;
use super::device::{Function, Geometry, Gpu};
use super::parameters;
use super::place::Place;
use super::scratch::{DeviceScratch, Places, QuantizedActivations};
use crate::activations::RowLayout;
use crate::decide::{Candidate, Decision};
use crate::error::Error;
use crate::operands::sizes::{check_len, check_span, product_of};
use crate::prologue::{Prologue, PrologueInput, Rows};
use crate::registry::{CudaLaunch, Registry, Unit};
use crate::request::Shape;
use crate::run::launch::Launcher;
use gristmill_spec::vocab::Op;
use std::sync::Arc;

/// A [`Prologue`] whose norm and transform lie on a device.
#[derive(Debug)]
pub struct DevicePrologue {
    prologue: Prologue,
    weight: Option<DeviceBuffer<f32>>,
    signs: Option<DeviceBuffer<f32>>,
    gpu: Arc<Gpu>,
}

impl DevicePrologue {
    /// Copies what `prologue` holds to the device.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`], [`Error::Gpu`].
    pub fn new(gpu: &Arc<Gpu>, prologue: Prologue) -> Result<DevicePrologue, Error> {
        let copied = |values: Option<&[f32]>| values.map(|values| DeviceBuffer::of(gpu, values)).transpose();
        let weight = copied(prologue.norm().map(|(weight, _)| weight))?;
        let signs = copied(prologue.transform().and_then(|transform| transform.signs()))?;
        Ok(DevicePrologue { prologue, weight, signs, gpu: Arc::clone(gpu) })
    }

    /// What it is.
    pub fn prologue(&self) -> &Prologue {
        &self.prologue
    }
}

/// Rows of f32 on a device, one for each token.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRows<'a> {
    values: &'a DeviceBuffer<f32>,
    /// Values from one row to the next; `None`: rows lie one behind the other, and there is nothing else.
    stride: Option<usize>,
}

impl<'a> DeviceRows<'a> {
    /// Rows one behind the other.
    pub fn dense(values: &'a DeviceBuffer<f32>) -> DeviceRows<'a> {
        DeviceRows { values, stride: None }
    }

    /// Rows that begin `stride` values apart: a part of wider rows. The last one need not be padded.
    pub fn strided(values: &'a DeviceBuffer<f32>, stride: usize) -> DeviceRows<'a> {
        DeviceRows { values, stride: Some(stride) }
    }

    fn check(&self, what: &'static str, m: usize, k: usize) -> Result<(), Error> {
        check_span(what, [m, k], self.stride, self.values.len())
    }

    /// Address and stride.
    fn at(&self, k: usize) -> (u64, u64) {
        (self.values.input(), self.stride.unwrap_or(k) as u64)
    }
}

/// What goes through a [`DevicePrologue`]: as [`PrologueInput`], on a device.
#[derive(Debug)]
pub struct DevicePrologueInput<'a> {
    x: DeviceRows<'a>,
    up: Option<DeviceRows<'a>>,
    residual: Option<(DeviceRows<'a>, &'a mut DeviceBuffer<f32>)>,
}

impl<'a> DevicePrologueInput<'a> {
    /// The rows `x`.
    pub fn new(x: DeviceRows<'a>) -> DevicePrologueInput<'a> {
        DevicePrologueInput { x, up: None, residual: None }
    }

    /// The rows that a gate multiplies with: `function(x) * up`.
    pub fn gate(self, up: DeviceRows<'a>) -> DevicePrologueInput<'a> {
        DevicePrologueInput { up: Some(up), ..self }
    }

    /// Adds `residual`, behind the gate and in front of the norm, and writes the sums to `sum`, `m * k` values, which no operand
    /// shares memory with. Rows that are refused leave their place in `sum` as it was.
    pub fn add(self, residual: DeviceRows<'a>, sum: &'a mut DeviceBuffer<f32>) -> DevicePrologueInput<'a> {
        DevicePrologueInput { residual: Some((residual, sum)), ..self }
    }

    /// What is read.
    fn operands(&self) -> impl Iterator<Item = &DeviceBuffer<f32>> {
        let residual = self.residual.as_ref().map(|(residual, _)| *residual);
        [Some(self.x), self.up, residual].into_iter().flatten().map(|rows| rows.values)
    }

    /// Whether there are rows of a gate, and of an addition.
    pub(crate) fn given(&self) -> [bool; 2] {
        [self.up.is_some(), self.residual.is_some()]
    }

    /// Compares all lengths with the shape, and places with the device and each other; `y` is written behind.
    pub(super) fn check(
        &self,
        kernel: &'static str,
        prologue: &DevicePrologue,
        gpu: &Arc<Gpu>,
        m: usize,
        y: Option<&DeviceBuffer<f32>>,
    ) -> Result<(), Error> {
        let k = prologue.prologue.k();
        self.x.check("activations", m, k)?;
        if let Some(up) = &self.up {
            up.check("the rows of a gate", m, k)?;
        }
        let sum = self.residual.as_ref().map(|(_, sum)| &**sum);
        if let Some((residual, sum)) = &self.residual {
            residual.check("the residual", m, k)?;
            check_len("the sum", "values", product_of("the sum", m, k)?, sum.len())?;
        }
        let buffers = self.operands().chain(sum).chain(y).map(DeviceBuffer::gpu);
        if buffers.chain([&prologue.gpu]).any(|other| !Arc::ptr_eq(other, gpu)) {
            return Err(Error::WrongDevice { kernel, index: gpu.profile().index });
        }
        let overlap = |what| Err(Error::Overlap { kernel, what });
        for written in sum.into_iter().chain(y) {
            if self.operands().any(|operand| operand.overlaps(written)) {
                return overlap("the rows of a prologue");
            }
        }
        if let (Some(sum), Some(y)) = (sum, y)
            && sum.overlaps(y)
        {
            return overlap("the sum of a prologue");
        }
        Ok(())
    }
}

/// What takes activations through a prologue on a device.
#[derive(Clone, Debug)]
pub(crate) struct PrologueCode {
    gpu: Arc<Gpu>,
    function: Function,
    threads: u32,
}

impl Launcher<PrologueCode> {
    pub(crate) fn cuda(
        registry: &'static Registry,
        candidate: Candidate,
        place: &Place,
    ) -> Result<Self, Error> {
        Launcher::on_gpu(registry, candidate, Op::Prologue, |code| {
            let CudaLaunch::Activations { op: Op::Prologue, function, threads } = code.launch else {
                return Ok(None);
            };
            let gpu = place.open()?;
            let function = gpu.function(candidate.entry.name, code, function, threads)?;
            Ok(Some(PrologueCode { gpu, function, threads }))
        })
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.code().gpu
    }

    /// Enqueues `m > 0` rows, which become f32 at `rows`, and int8 at `places` where there are any. What stops a row is left at
    /// `fault`, and its f32 are zeros.
    ///
    /// # Safety
    /// `input` was checked for `prologue` and `m`, both on this device; `rows` is the address of room for `m * layout.k` values
    /// there, which lives until the kernel has run, as `places` do, which are those of `m` rows of `layout`.
    pub(super) unsafe fn rows(
        &self,
        prologue: &DevicePrologue,
        input: DevicePrologueInput<'_>,
        m: usize,
        layout: &RowLayout,
        [rows, fault]: [u64; 2],
        places: Option<&Places>,
    ) -> Result<(), Error> {
        let PrologueCode { gpu, function, threads } = self.code();
        let DevicePrologueInput { x, up, residual } = input;
        let k = layout.k;
        let (src, src_stride) = x.at(k);
        let (up, up_stride) = up.map_or((0, 0), |up| up.at(k));
        let operands = 1 + usize::from(up != 0) + usize::from(residual.is_some());
        let results = 1 + usize::from(residual.is_some());
        let (residual, residual_stride, sum) = match residual {
            Some((residual, sum)) => (residual.at(k).0, residual.at(k).1, sum.output()),
            None => (0, 0, 0),
        };
        let DevicePrologue { prologue, weight, signs, .. } = prologue;
        let address = |buffer: &Option<DeviceBuffer<f32>>| buffer.as_ref().map_or(0, DeviceBuffer::input);
        let transform = prologue.transform();
        let arguments = parameters::Prologue {
            src,
            src_stride,
            up,
            up_stride,
            residual,
            residual_stride,
            sum,
            weight: address(weight),
            signs: address(signs),
            rows,
            function: prologue.gate().map_or(0, |function| function as u32),
            epsilon: prologue.norm().map_or(0.0, |(_, epsilon)| epsilon),
            block: transform.map_or(Ok(0), |transform| size("a block of a transform", transform.block()))?,
            factor: transform.map_or(1.0, |transform| transform.factor()),
            m: size("tokens", m)?,
            k: size("a row", k)?,
            unit: size("a unit", layout.unit)?,
            unit_padded: size("a unit", layout.unit_padded)?,
            units: size("units", layout.units)?,
            q: places.map_or(0, |places| places.q),
            scales: places.map_or(0, |places| places.scales),
            sums: places.map_or(0, |places| places.sums),
            fault,
        };
        let geometry = Geometry { blocks: (size("tokens", m)?, 1), threads: *threads, layers: 1 };
        let row = 4 * k;
        let out = places.map_or(0, |_| layout.bytes() + 4 * (layout.blocks + layout.units)) + results * row;
        let bytes = [m.saturating_mul(operands * row), m.saturating_mul(out)];
        self.enqueued(gpu, Shape { m, n: 1, k }, bytes, || {
            // SAFETY: the parameters are those of docs/cuda.md; the rest is the caller's.
            unsafe { gpu.launch(self.entry.name, function, &geometry, &arguments.arguments()) }
        })
    }
}

/// Takes `m` rows through `prologue` and quantizes them by the kernel that a decision for `prologue` on a GPU chose, in units as a
/// product wants them. Layers do this for themselves ([`Linear::forward_on_device_with`](crate::Linear::forward_on_device_with));
/// this is for looking at what they do.
///
/// # Errors
/// Why nothing was chosen; [`Error::ShapeMismatch`]; [`Error::Prologue`]; [`Error::NonFinite`], [`Error::ScaleOverflow`];
/// [`Error::Gpu`].
pub fn quantize_with(
    decision: &Decision<'_>,
    unit: Unit,
    prologue: &Prologue,
    input: PrologueInput<'_>,
    m: usize,
) -> Result<QuantizedActivations, Error> {
    let registry = decision.prepared().registry();
    let place = decision.prepared().place();
    let launcher = Launcher::<PrologueCode>::cuda(registry, decision.candidate()?, place)?;
    let info = &registry.activations[launcher.entry.format];
    if unit.multiple == 0 {
        return Err(launcher.broken("a unit is empty"));
    }
    let k = prologue.k();
    prologue.check(info, input.operands())?;
    input.check(m, k)?;
    let all = m.checked_mul(k).filter(|values| *values > 0).ok_or(Error::TooLarge { what: "activations" })?;
    let layout = RowLayout::new(unit, k, info.block)?;
    within_blocks(&layout, info.block)?;
    let gpu = Arc::clone(launcher.gpu());
    let there = DevicePrologue::new(&gpu, prologue.clone())?;
    let copied = |rows: &Rows<'_>| {
        let (values, stride) = rows.parts();
        Ok::<_, Error>((DeviceBuffer::of(&gpu, values)?, stride))
    };
    let PrologueInput { x, up, residual, sum } = input;
    let x = copied(&x)?;
    let up = up.as_ref().map(copied).transpose()?;
    let residual = residual.as_ref().map(copied).transpose()?;
    let mut sums = sum.as_deref().map(|sum| DeviceBuffer::of(&gpu, sum)).transpose()?;
    let given = DevicePrologueInput {
        x: as_they_lay(&x),
        up: up.as_ref().map(as_they_lay),
        residual: residual.as_ref().map(as_they_lay).zip(sums.as_mut()),
    };
    given.check(launcher.entry.name, &there, &gpu, m, None)?;
    let mut scratch = DeviceScratch::new(&gpu);
    let places = scratch.places(&gpu, m, &layout, info.block, layout.bytes())?;
    let rows = scratch.rows_at(&gpu, all)?;
    // SAFETY: the input was checked just now; the scratch lives until the wait below.
    unsafe { launcher.rows(&there, given, m, &layout, [rows, places.fault], Some(&places)) }?;
    gpu.wait(launcher.entry.name)?;
    if let (Some(to), Some(from)) = (sum, &sums) {
        from.read(to)?;
    }
    scratch.finish()?;
    scratch.quantized()
}

/// Rows that were copied, as they lay.
fn as_they_lay((values, stride): &(DeviceBuffer<f32>, Option<usize>)) -> DeviceRows<'_> {
    DeviceRows { values, stride: *stride }
}
