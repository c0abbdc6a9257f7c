//! Products on a device: weights that lie there, activations quantized there.

use super::blocks::size;
use super::buffer::{DeviceBuffer, Number};
use super::device::{Argument, Function, Geometry, Gpu};
use super::fault::{FaultKind, Faults, Rows};
use super::floats::Floats;
use crate::activations::{self, Input, RowLayout};
use crate::aligned::Aligned;
use crate::decide::{Candidate, Decision};
use crate::error::Error;
use crate::launch::{Launcher, unpack_panel};
use crate::registry::{CudaLaunch, PackInfo, Registry, Unit};
use crate::threads::Threads;
use crate::weights::PackedMatrix;
use crate::workspace::Workspace;
use cudarc::driver::DeviceRepr;
use gristmill_spec::vocab::{DType, Op};
use half::slice::HalfFloatSliceExt as _;
use std::sync::Arc;

/// Activations in a device's memory: `m` rows of `k`. Those of two bytes as their bits.
#[derive(Clone, Copy, Debug)]
pub enum DeviceInput<'a> {
    /// binary32.
    F32(&'a DeviceBuffer<f32>),
    /// binary16.
    F16(&'a DeviceBuffer<u16>),
    /// bfloat16.
    Bf16(&'a DeviceBuffer<u16>),
}

impl DeviceInput<'_> {
    /// The type.
    pub fn dtype(&self) -> DType {
        match self {
            DeviceInput::F32(_) => DType::F32,
            DeviceInput::F16(_) => DType::F16,
            DeviceInput::Bf16(_) => DType::Bf16,
        }
    }

    /// How many values.
    pub fn len(&self) -> usize {
        match self {
            DeviceInput::F32(x) => x.len(),
            DeviceInput::F16(x) | DeviceInput::Bf16(x) => x.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn address(&self) -> u64 {
        match self {
            DeviceInput::F32(x) => x.input(),
            DeviceInput::F16(x) | DeviceInput::Bf16(x) => x.input(),
        }
    }

    /// The type, as `quantize_activations` takes it.
    pub(super) fn word(&self) -> u32 {
        match self {
            DeviceInput::F32(_) => F32,
            DeviceInput::F16(_) => F16,
            DeviceInput::Bf16(_) => BF16,
        }
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        match self {
            DeviceInput::F32(x) => x.gpu(),
            DeviceInput::F16(x) | DeviceInput::Bf16(x) => x.gpu(),
        }
    }
}

/// Threads that keep a multiprocessor's loads under way: half of what most devices can hold.
const THREADS_PER_MULTIPROCESSOR: u64 = 1024;

/// Words of the types that `quantize_activations` takes.
pub(super) const F32: u32 = 0;
pub(super) const F16: u32 = 1;
pub(super) const BF16: u32 = 2;

/// Bytes of a value of a type.
pub(super) fn width(word: u32) -> usize {
    if word == F32 { 4 } else { 2 }
}

/// The parameter of a product: `docs/cuda.md`, in its order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Parameters {
    codes: u64,
    stride: u64,
    scales: u64,
    mins: u64,
    min: i32,
    k: u32,
    table: u64,
    outer: u64,
    units: u32,
    x_blocks: u32,
    x: u64,
    x_stride: u64,
    x_scales: u64,
    x_sums: u64,
    bias: u64,
    y: u64,
    m: u32,
    n: u32,
}

// SAFETY: numbers of fixed width in the order and with the alignment of the kernel's struct, without padding.
unsafe impl DeviceRepr for Parameters {}

/// A quantizer of activations on a device.
#[derive(Clone, Debug)]
pub(crate) struct ActivationCode {
    gpu: Arc<Gpu>,
    function: Function,
    threads: u32,
}

impl Launcher<ActivationCode> {
    pub(crate) fn cuda(registry: &'static Registry, candidate: Candidate, index: u32) -> Result<Self, Error> {
        Launcher::on_gpu(registry, candidate, Op::QuantizeActivations, |code| {
            let CudaLaunch::QuantizeActivations { function, threads } = code.launch else { return Ok(None) };
            let gpu = Gpu::open(index)?;
            let function = gpu.function(candidate.entry.name, code, function, threads)?;
            Ok(Some(ActivationCode { gpu, function, threads }))
        })
    }

    /// Enqueues `m > 0` rows of type `word` at `x` into the scratch's places, which are large enough.
    ///
    /// # Safety
    /// `x` is the address of `m * layout.k` values of that type on this device, which live until the kernel has run.
    unsafe fn rows(
        &self,
        x: u64,
        word: u32,
        m: usize,
        layout: &RowLayout,
        places: &Places,
    ) -> Result<(), Error> {
        let ActivationCode { gpu, function, threads } = self.code();
        let arguments = [
            Argument::U64(x),
            Argument::U32(word),
            Argument::U32(size("tokens", m)?),
            Argument::U32(size("a row", layout.k)?),
            Argument::U32(size("a unit", layout.unit)?),
            Argument::U32(size("a unit", layout.unit_padded)?),
            Argument::U32(size("units", layout.units)?),
            Argument::U64(places.q),
            Argument::U64(places.scales),
            Argument::U64(places.sums),
            Argument::U64(places.fault),
        ];
        let runs = if layout.blocks > 1 { layout.blocks } else { layout.units };
        let shares = row_shares(runs, *threads, m, gpu.profile().multiprocessors);
        let geometry = Geometry { blocks: (size("tokens", m)?, shares), threads: *threads };
        let out = layout.bytes() + 4 * (layout.blocks + layout.units);
        self.enqueued(
            gpu,
            m.saturating_mul(layout.k).saturating_mul(width(word)),
            m.saturating_mul(out),
            || {
                // SAFETY: the parameters are those of docs/cuda.md; places have the layout's sizes for `m` rows
                // (`Scratch::places`), and `x` is the caller's.
                unsafe { gpu.launch(self.entry.name, function, &geometry, &arguments) }
            },
        )
    }
}

/// Activations as kernels of a GPU made them.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedActivations {
    /// int8 values, each unit padded with zeros: `[m][units * padded]`.
    pub q: Vec<i8>,
    /// One scale for each block: `[m][blocks]`.
    pub scales: Vec<f32>,
    /// The sum of each unit: `[m][units]`.
    pub sums: Vec<i32>,
}

/// Quantizes `m` rows of `k` values by the kernel that a decision for `quantize_activations` on a GPU chose, in
/// units as a product wants them. Products do this for themselves; this is for looking at what they do.
///
/// # Errors
/// Why nothing was chosen; [`Error::ShapeMismatch`]; [`Error::NonFinite`], [`Error::ScaleOverflow`]; [`Error::Gpu`].
pub fn quantize_activations(
    decision: &Decision<'_>,
    unit: Unit,
    x: &[f32],
    m: usize,
    k: usize,
) -> Result<QuantizedActivations, Error> {
    let registry = decision.prepared().registry();
    let index = decision.prepared().device().index;
    let launcher = Launcher::<ActivationCode>::cuda(registry, decision.candidate()?, index)?;
    let info = registry.activations.get(launcher.entry.format);
    let block = info.ok_or_else(|| launcher.broken("its activation format is missing"))?.block;
    if unit.multiple == 0 || block == Some(0) {
        return Err(launcher.broken("a unit or a block is empty"));
    }
    let expected =
        m.checked_mul(k).filter(|values| *values > 0).ok_or(Error::TooLarge { what: "activations" })?;
    if x.len() != expected {
        return Err(Error::ShapeMismatch { what: "activations", unit: "values", expected, found: x.len() });
    }
    let layout = RowLayout::new(unit, k, block)?;
    let gpu = Arc::clone(&launcher.code().gpu);
    let mut scratch = Scratch::default();
    scratch.on(&gpu);
    let places = scratch.places(&gpu, m, &layout, block, layout.bytes())?;
    let (x, word) = upload(&gpu, &mut scratch, Input::F32(x))?;
    // SAFETY: all `m * k` values were copied to `x` just now; the scratch lives until the wait below.
    unsafe { launcher.rows(x, word, m, &layout, &places) }?;
    gpu.wait(launcher.entry.name)?;
    scratch.finish()?;
    let nothing = || Error::TooLarge { what: "activations" };
    Ok(QuantizedActivations {
        q: scratch.q.as_ref().ok_or_else(nothing)?.to_vec()?,
        scales: scratch.scales.as_ref().ok_or_else(nothing)?.to_vec()?,
        sums: scratch.sums.as_ref().ok_or_else(nothing)?.to_vec()?,
    })
}

/// Weights on a device.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(super) codes: DeviceBuffer<u8>,
    scales: DeviceBuffer<f32>,
    mins: DeviceBuffer<f32>,
    pub(super) outer: DeviceBuffer<f32>,
    table: Option<DeviceBuffer<u8>>,
}

impl Weights {
    pub(crate) fn bytes(&self) -> usize {
        self.codes.bytes() + self.scales.bytes() + self.mins.bytes() + self.outer.bytes()
    }
}

/// Memory of runs on a device, grown where a run needs more.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    x: Option<DeviceBuffer<f32>>,
    /// Activations of two bytes, as their bits.
    halves: Option<DeviceBuffer<u16>>,
    /// Activations that were rounded to two bytes.
    pub(super) rounded: Option<DeviceBuffer<u16>>,
    q: Option<DeviceBuffer<i8>>,
    scales: Option<DeviceBuffer<f32>>,
    sums: Option<DeviceBuffer<i32>>,
    pub(super) bias: Option<DeviceBuffer<f32>>,
    pub(super) y: Option<DeviceBuffer<f32>>,
    faults: Option<Faults>,
    /// Whether something was enqueued since the fault was read.
    pending: bool,
    /// The device that all of this is on.
    gpu: Option<Arc<Gpu>>,
}

/// Addresses of quantized activations.
#[derive(Clone, Copy, Debug)]
struct Places {
    q: u64,
    stride: usize,
    scales: u64,
    sums: u64,
    fault: u64,
}

/// A buffer with room for `len` numbers.
pub(super) fn room<'b, T: Number>(
    buffer: &'b mut Option<DeviceBuffer<T>>,
    gpu: &Arc<Gpu>,
    len: usize,
) -> Result<&'b mut DeviceBuffer<T>, Error> {
    if buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
        // The old one goes first: there may not be room for both.
        *buffer = None;
        *buffer = Some(DeviceBuffer::uninitialized(gpu, len)?);
    }
    buffer.as_mut().ok_or(Error::TooLarge { what: "a buffer of a device" })
}

impl Scratch {
    /// Everything is on `gpu` from now on.
    pub(super) fn on(&mut self, gpu: &Arc<Gpu>) {
        if !self.gpu.as_ref().is_some_and(|old| Arc::ptr_eq(old, gpu)) {
            *self = Scratch { gpu: Some(Arc::clone(gpu)), ..Scratch::default() };
        }
    }

    /// Where runs over such rows report what stops them.
    pub(super) fn fault_address(&mut self, gpu: &Arc<Gpu>, rows: Rows) -> Result<u64, Error> {
        let faults = match &mut self.faults {
            Some(faults) => faults,
            none => none.insert(Faults::new(gpu)?),
        };
        self.pending = true;
        faults.address(gpu, rows)
    }

    /// Copies a bias; its address, or 0 for none.
    pub(super) fn bias_at(&mut self, gpu: &Arc<Gpu>, bias: Option<&[f32]>) -> Result<u64, Error> {
        let Some(bias) = bias else { return Ok(0) };
        let room = room(&mut self.bias, gpu, bias.len())?;
        room.write(bias)?;
        Ok(room.input())
    }

    /// Room for `m` rows of this layout, `stride` bytes apart.
    fn places(
        &mut self,
        gpu: &Arc<Gpu>,
        m: usize,
        layout: &RowLayout,
        block: Option<usize>,
        stride: usize,
    ) -> Result<Places, Error> {
        let times = |a: usize| a.checked_mul(m).ok_or(Error::TooLarge { what: "activations" });
        Ok(Places {
            q: room(&mut self.q, gpu, times(stride)?)?.output(),
            stride,
            scales: room(&mut self.scales, gpu, times(layout.blocks)?)?.output(),
            sums: room(&mut self.sums, gpu, times(layout.units)?)?.output(),
            fault: self.fault_address(gpu, Rows { k: layout.k, block })?,
        })
    }

    /// As [`Scratch::finish`], where something was enqueued by this scratch's owner.
    pub(super) fn finish_pending(&mut self) -> Result<(), Error> {
        if self.pending { self.finish() } else { Ok(()) }
    }

    /// Waits for the runs since the last time, those of graphs included, and reports what stopped one of them.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        self.pending = false;
        let Some(faults) = &mut self.faults else { return Ok(()) };
        let Some((kind, at, Rows { k, block })) = faults.take()? else { return Ok(()) };
        let (row, column) = (at / k.max(1), at % k.max(1));
        if kind == FaultKind::Beyond {
            return Err(Error::BeyondPrecision { what: "the activation", row, column });
        }
        Err(kind.at(column, block.unwrap_or(k)).in_activations(row))
    }

    pub(crate) fn bytes(&self) -> usize {
        let f32s = [&self.x, &self.scales, &self.bias, &self.y];
        let f32s: usize = f32s.iter().map(|buffer| buffer.as_ref().map_or(0, DeviceBuffer::bytes)).sum();
        let halves = [&self.halves, &self.rounded];
        let halves: usize = halves.iter().map(|buffer| buffer.as_ref().map_or(0, DeviceBuffer::bytes)).sum();
        f32s + halves
            + self.q.as_ref().map_or(0, DeviceBuffer::bytes)
            + self.sums.as_ref().map_or(0, DeviceBuffer::bytes)
    }
}

/// A product on a device.
#[derive(Clone, Debug)]
pub(crate) struct ProductCode {
    pub(super) gpu: Arc<Gpu>,
    pub(super) function: Function,
    pub(super) threads: u32,
    pub(super) fewest: u32,
    pub(super) rows: u32,
    pub(super) tokens: u32,
    /// `None`: it reads the format's own rows.
    packing: Option<&'static PackInfo>,
    unit: Unit,
    /// What a product of floats needs besides.
    pub(super) floats: Option<Floats>,
}

impl ProductCode {
    /// The product with `n` rows of `m` tokens in as many launches as it takes: a grid's second side is short. `launch` gets
    /// the bytes in front of a launch's tokens, by values of a token and bytes of a value; their number; and the geometry.
    pub(super) fn in_launches(
        &self,
        n: u32,
        m: usize,
        launch: impl Fn(&dyn Fn(usize, usize) -> u64, u32, &Geometry) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let profile = self.gpu.profile();
        let most = (profile.grid.1 as usize).max(1).saturating_mul(self.tokens as usize);
        let mut done = 0;
        while done < m {
            let part = (m - done).min(most);
            let from = |values: usize, width: usize| (done as u64) * (values as u64) * (width as u64);
            let tokens = size("tokens", part)?;
            let blocks = (n.div_ceil(self.rows), tokens.div_ceil(self.tokens));
            let threads = block_threads(self.fewest, self.threads, blocks, profile.multiprocessors);
            launch(&from, tokens, &Geometry { blocks, threads })?;
            done += part;
        }
        Ok(())
    }
}

impl Launcher<ProductCode> {
    pub(crate) fn cuda(registry: &'static Registry, candidate: Candidate, index: u32) -> Result<Self, Error> {
        Launcher::on_gpu(registry, candidate, Op::Matmul, |code| {
            let gpu = || Gpu::open(index);
            let (gpu, function, [threads, fewest, rows, tokens], packing, unit, floats) = match code.launch {
                CudaLaunch::Matmul { function, threads, fewest, rows, tokens, packing, unit } => {
                    (gpu()?, function, [threads, fewest, rows, tokens], Some(packing), unit, None)
                }
                CudaLaunch::Rows { function, threads, fewest, rows, tokens, .. } => {
                    let gpu = gpu()?;
                    let floats = Floats::load(&gpu, registry, candidate.entry, code)?;
                    let unit = Unit { elements: 0, multiple: 1 };
                    (gpu, function, [threads, fewest, rows, tokens], None, unit, floats)
                }
                CudaLaunch::Dequantize { .. }
                | CudaLaunch::Quantize { .. }
                | CudaLaunch::QuantizeActivations { .. }
                | CudaLaunch::Convert { .. } => return Ok(None),
            };
            let function = gpu.function(candidate.entry.name, code, function, threads)?;
            let (rows, tokens) = (rows.max(1), tokens.max(1));
            Ok(Some(ProductCode { gpu, function, threads, fewest, rows, tokens, packing, unit, floats }))
        })
    }

    pub(crate) fn layout(&self) -> (Option<&'static PackInfo>, Unit) {
        (self.code().packing, self.code().unit)
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.code().gpu
    }

    pub(crate) fn shares_device_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.gpu(), other.gpu())
    }

    /// Moves packed weights to the device.
    pub(crate) fn upload(&self, packed: &mut PackedMatrix) -> Result<(), Error> {
        let gpu = self.gpu();
        let table = match self.code().packing.and_then(|packing| packing.table) {
            Some(table) => Some(DeviceBuffer::of(gpu, &table[..])?),
            None => None,
        };
        let weights = Weights {
            codes: DeviceBuffer::of(gpu, &packed.codes)?,
            scales: DeviceBuffer::of(gpu, &packed.scales)?,
            mins: DeviceBuffer::of(gpu, &packed.mins)?,
            outer: DeviceBuffer::of(gpu, &packed.outer)?,
            table,
        };
        // Copies from ordinary memory may still be reading it.
        gpu.synchronize()?;
        if let Some(floats) = &self.code().floats {
            floats.check(gpu, self.entry, &weights, packed)?;
        }
        packed.device = Some(Arc::new(weights));
        packed.codes = Aligned::empty();
        packed.scales = Aligned::empty();
        packed.mins = Aligned::empty();
        packed.outer = Aligned::empty();
        Ok(())
    }

    /// The weights, if they are on this device.
    pub(super) fn weights<'w>(&self, packed: &'w PackedMatrix) -> Result<&'w Weights, Error> {
        let here = packed.device.as_deref().filter(|weights| Arc::ptr_eq(weights.codes.gpu(), self.gpu()));
        here.ok_or(Error::WrongPacking {
            kernel: self.entry.name,
            expected: "weights on its own device",
            found: if packed.device.is_some() {
                "weights on another device"
            } else {
                "weights of the processor"
            },
        })
    }

    /// Enqueues the product of `m > 0` quantized rows at `places`.
    ///
    /// # Safety
    /// `places` are those of `m` rows of `layout`; `bias` is 0 or the address of `n` values, `y` that of room for
    /// `m * n`, on this device, which live until the kernel has run.
    unsafe fn product(
        &self,
        packed: &PackedMatrix,
        places: &Places,
        m: usize,
        layout: &RowLayout,
        bias: u64,
        y: u64,
    ) -> Result<(), Error> {
        let ProductCode { gpu, function, packing, .. } = self.code();
        let weights = self.weights(packed)?;
        let n = size("rows", packed.n)?;
        let or_null = |buffer: &DeviceBuffer<f32>| if buffer.is_empty() { 0 } else { buffer.input() };
        let all = Parameters {
            codes: weights.codes.input(),
            stride: packed.stride as u64,
            scales: or_null(&weights.scales),
            mins: or_null(&weights.mins),
            min: packing.map_or(0, |packing| packing.min),
            k: size("a row", packed.k)?,
            table: weights.table.as_ref().map_or(0, |table| table.input()),
            outer: weights.outer.input(),
            units: size("units", layout.units)?,
            x_blocks: size("blocks", layout.blocks)?,
            x: places.q,
            x_stride: places.stride as u64,
            x_scales: places.scales,
            x_sums: places.sums,
            bias,
            y,
            m: 0,
            n,
        };
        let bytes_in = packed.bytes() + m * (layout.bytes() + 4 * (layout.blocks + layout.units));
        self.enqueued(gpu, bytes_in, m.saturating_mul(packed.n).saturating_mul(4), || {
            self.code().in_launches(n, m, |from, m, geometry| {
                let parameters = Parameters {
                    x: all.x + from(places.stride, 1),
                    x_scales: all.x_scales + from(layout.blocks, 4),
                    x_sums: all.x_sums + from(layout.units, 4),
                    y: all.y + from(packed.n, 4),
                    m,
                    ..all
                };
                // SAFETY: the parameter is that of docs/cuda.md; weights are packed as this kernel reads them
                // (`Matmul::accepts`), the rest is the caller's.
                unsafe { gpu.launch(self.entry.name, function, geometry, &[Argument::Product(parameters)]) }
            })
        })
    }

    /// Whether operands are on this product's device.
    pub(super) fn are_here(
        &self,
        input: DeviceInput<'_>,
        bias: Option<&DeviceBuffer<f32>>,
        y: &DeviceBuffer<f32>,
    ) -> Result<(), Error> {
        let gpu = self.gpu();
        let all = [Some(input.gpu()), bias.map(DeviceBuffer::gpu), Some(y.gpu())];
        if all.into_iter().flatten().any(|other| !Arc::ptr_eq(other, gpu)) {
            return Err(Error::WrongDevice { kernel: self.entry.name, index: gpu.profile().index });
        }
        Ok(())
    }

    /// The product of `m > 0` rows in the processor's memory with `n > 0` rows of `k > 0`, into it. Sizes were
    /// checked.
    #[expect(clippy::too_many_arguments, reason = "the operands of a product")]
    pub(crate) fn run(
        &self,
        packed: &PackedMatrix,
        input: Input<'_>,
        m: usize,
        layout: &RowLayout,
        block: Option<usize>,
        bias: Option<&[f32]>,
        y: &mut [f32],
        quantizer: Option<&Launcher<ActivationCode>>,
        scratch: &mut Option<Box<Scratch>>,
    ) -> Result<(), Error> {
        self.weights(packed)?;
        if let Some(floats) = &self.code().floats {
            return self.run_floats(floats, packed, input, m, bias, y, scratch);
        }
        let gpu = self.gpu();
        let scratch = scratch.get_or_insert_default();
        scratch.on(gpu);
        // A fault of earlier runs is theirs.
        scratch.finish_pending()?;
        let places = match (input, quantizer) {
            (Input::I8 { .. }, _) => self.given(input, m, layout, scratch)?,
            (Input::F32(_) | Input::F16(_) | Input::Bf16(_), Some(quantizer)) => {
                let places = scratch.places(gpu, m, layout, block, layout.bytes())?;
                let (x, word) = upload(gpu, scratch, input)?;
                // SAFETY: all `m * k` values were copied to `x` just now; the scratch lives until the wait below.
                unsafe { quantizer.rows(x, word, m, layout, &places) }?;
                gpu.wait(quantizer.entry.name)?;
                scratch.finish()?;
                places
            }
            (Input::F32(_) | Input::F16(_) | Input::Bf16(_), None) => {
                return Err(Error::WrongInput {
                    kernel: self.entry.name,
                    expected: vec![DType::I8],
                    found: input.dtype(),
                });
            }
        };
        let bias_at = scratch.bias_at(gpu, bias)?;
        let out = room(&mut scratch.y, gpu, y.len())?;
        let y_at = out.output();
        // SAFETY: `places` were filled for `m` rows of this layout, `bias` and `y` have the sizes that the handle
        // compared with the shape; all is in the scratch, and waited for.
        unsafe { self.product(packed, &places, m, layout, bias_at, y_at) }?;
        gpu.wait(self.entry.name)?;
        out.read(y)
    }

    /// int8 rows of the caller's, laid out and summed on the processor.
    fn given(
        &self,
        input: Input<'_>,
        m: usize,
        layout: &RowLayout,
        scratch: &mut Scratch,
    ) -> Result<Places, Error> {
        let gpu = self.gpu();
        let mut workspace = Workspace::of_size(layout.workspace(m, 0)?)?;
        let rows = activations::quantize(None, input, m, *layout, &mut workspace, &Threads::single())?;
        let places = scratch.places(gpu, m, layout, None, layout.stride)?;
        room(&mut scratch.q, gpu, rows.q.len())?.write(rows.q)?;
        room(&mut scratch.scales, gpu, rows.scales.len())?.write(rows.scales)?;
        room(&mut scratch.sums, gpu, rows.sums.len())?.write(rows.sums)?;
        gpu.synchronize()?;
        Ok(places)
    }

    /// The same with operands on the device; enqueued, not waited for. Sizes were checked.
    #[expect(clippy::too_many_arguments, reason = "the operands of a product")]
    pub(crate) fn run_on_device(
        &self,
        packed: &PackedMatrix,
        input: DeviceInput<'_>,
        m: usize,
        layout: &RowLayout,
        block: Option<usize>,
        bias: Option<&DeviceBuffer<f32>>,
        y: &mut DeviceBuffer<f32>,
        quantizer: &Launcher<ActivationCode>,
        scratch: &mut Option<Box<Scratch>>,
    ) -> Result<(), Error> {
        let gpu = self.gpu();
        self.are_here(input, bias, y)?;
        self.weights(packed)?;
        let scratch = scratch.get_or_insert_default();
        scratch.on(gpu);
        let places = scratch.places(gpu, m, layout, block, layout.bytes())?;
        let bias = bias.map_or(0, |bias| bias.input());
        // SAFETY: the buffers have the sizes that the handle compared with the shape. What is dropped before the
        // kernels have run is freed behind them, in the order of the stream.
        unsafe {
            quantizer.rows(input.address(), input.word(), m, layout, &places)?;
            self.product(packed, &places, m, layout, bias, y.output())
        }
    }

    /// Row `row` of `packed` to `k` values.
    pub(crate) fn unpack(
        &self,
        packing: &PackInfo,
        packed: &PackedMatrix,
        row: usize,
        dst: &mut [f32],
    ) -> Result<(), Error> {
        let weights = self.weights(packed)?;
        let (panel, in_panel) = (row / packing.rows, row % packing.rows);
        let terms = packing.terms(packed.units).ok_or(Error::TooLarge { what: "packed weights" })?;
        let mut codes = Aligned::<u8>::zeroed(packed.stride)?;
        weights.codes.read_from(panel * packed.stride, &mut codes)?;
        let read = |buffer: &DeviceBuffer<f32>, there: bool| -> Result<Aligned<f32>, Error> {
            let mut values = Aligned::zeroed(if there { terms } else { 0 })?;
            if there {
                buffer.read_from(panel * terms, &mut values)?;
            }
            Ok(values)
        };
        let (scales, mins) = (read(&weights.scales, packing.scales)?, read(&weights.mins, packing.mins)?);
        let mut outer = [0.0];
        weights.outer.read_from(row, &mut outer)?;
        unpack_panel(packing, &codes, &scales, &mins, outer[0], in_panel, packed.k, dst);
        Ok(())
    }
}

/// Threads of a CUDA block where `fewest` to `most` will do: more of them share a row's k where the blocks alone would
/// leave the device's multiprocessors half empty.
pub(super) fn block_threads(fewest: u32, most: u32, blocks: (u32, u32), multiprocessors: u32) -> u32 {
    let wanted = u64::from(multiprocessors) * THREADS_PER_MULTIPROCESSOR;
    let blocks = u64::from(blocks.0) * u64::from(blocks.1);
    let mut threads = fewest.max(32);
    while threads * 2 <= most && blocks * u64::from(threads) < wanted {
        threads *= 2;
    }
    threads
}

/// CUDA blocks that share the blocks or units of a row of activations: one for each warp's worth, where so few rows leave
/// multiprocessors idle.
fn row_shares(runs: usize, threads: u32, m: usize, multiprocessors: u32) -> u32 {
    let warps = (threads / 32).max(1) as usize;
    let most = (8 * multiprocessors as usize / m.max(1)).clamp(1, 1024);
    runs.div_ceil(warps).clamp(1, most) as u32
}

/// Copies floats to the scratch; their address and the word of their type.
pub(super) fn upload(gpu: &Arc<Gpu>, scratch: &mut Scratch, input: Input<'_>) -> Result<(u64, u32), Error> {
    let (bits, word) = match input {
        Input::F32(x) => {
            let room = room(&mut scratch.x, gpu, x.len())?;
            room.write(x)?;
            return Ok((room.input(), F32));
        }
        Input::F16(x) => (x.reinterpret_cast(), F16),
        Input::Bf16(x) => (x.reinterpret_cast(), BF16),
        Input::I8 { .. } => {
            return Err(Error::WrongInput {
                kernel: "quantize_activations",
                expected: vec![DType::F32, DType::F16, DType::Bf16],
                found: DType::I8,
            });
        }
    };
    let room = room(&mut scratch.halves, gpu, bits.len())?;
    room.write(bits)?;
    Ok((room.input(), word))
}

#[cfg(test)]
mod tests {
    use super::{block_threads, row_shares};

    #[test]
    fn few_rows_are_shared() {
        let shares = |runs, m| row_shares(runs, 256, m, 132);
        // 2560 values in blocks of 32; rows with one unit; many rows.
        assert_eq!((shares(80, 1), shares(1, 1), shares(80, 512), shares(80, 5000)), (10, 1, 2, 1));
        assert_eq!((shares(usize::MAX, 1), row_shares(3, 0, 0, 0)), (1024, 1));
    }

    #[test]
    fn blocks_that_leave_a_device_empty_get_more_threads() {
        // 2560, 13824 and 131072 rows of sixteen to a block, on 132 multiprocessors.
        let threads = |blocks| block_threads(128, 512, (blocks, 1), 132);
        assert_eq!((threads(160), threads(864), threads(8192)), (512, 256, 128));
        assert_eq!(block_threads(256, 256, (1, 1), 132), 256);
        assert_eq!(block_threads(0, 0, (1, 1), 132), 32);
    }
}
