//! Products on a device: weights that lie there, activations quantized there.

use super::activations::{ActivationCode, upload};
use super::block_threads::{side_by_side, threads_of_blocks};
use super::blocks::size;
use super::buffer::{DeviceBuffer, made, room};
use super::device::{Function, Geometry, Gpu};
use super::fault::Rows;
use super::float_operands::Floats;
use super::input::DeviceInput;
use super::parameters::{Argument, Parameters, Quantized, Raw};
use super::place::Place;
use super::prologue::{DevicePrologue, DevicePrologueInput, PrologueCode};
use super::scratch::{DeviceScratch, Places, Scratch};
use super::types::{F32, width};
use super::weights::Weights;
use crate::activations::{self, Input, InputRows, RowLayout, Tokens};
use crate::decide::Candidate;
use crate::decisions::split::Tiles;
use crate::error::Error;
use crate::memory::aligned::Aligned;
use crate::registry::{CudaLaunch, CudaSplit, PackInfo, Registry, Unit};
use crate::request::Shape;
use crate::run::launch::{Launcher, unpack_panel};
use crate::threads::Threads;
use crate::weights::PackedMatrix;
use crate::workspace::Workspace;
use gristmill_spec::vocab::{DType, Op};
use std::sync::Arc;

/// Floats on the device that a product quantizes: `m` rows of type `word`, and where faults go.
#[derive(Clone, Copy)]
struct Floating {
    address: u64,
    word: u32,
    m: usize,
    fault: u64,
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
    /// How k may be divided over CUDA blocks.
    split: Option<CudaSplit>,
    /// It takes floats and quantizes them.
    fused: bool,
    /// The same over tiles of tokens of several matrices.
    pub(super) grouped: Option<Function>,
    /// What a product of floats needs besides.
    pub(super) floats: Option<Floats>,
}

impl ProductCode {
    /// The product of `n` rows of `k` with `m` tokens in as many launches as it takes: a grid's second side is short. `launch`
    /// gets the bytes in front of a launch's tokens, by values of a token and bytes of a value; their number; and the geometry.
    pub(super) fn in_launches(
        &self,
        (n, k): (u32, usize),
        m: usize,
        mut launch: impl FnMut(&dyn Fn(usize, usize) -> u64, u32, &Geometry) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let profile = self.gpu.profile();
        let most = (profile.grid.1 as usize).max(1).saturating_mul(self.tokens as usize);
        let mut done = 0;
        while done < m {
            let part = (m - done).min(most);
            let from = |values: usize, width: usize| (done as u64) * (values as u64) * (width as u64);
            let tokens = size("tokens", part)?;
            let blocks = (n.div_ceil(self.rows), tokens.div_ceil(self.tokens));
            let threads = threads_of_blocks(&self.gpu, &self.function, (self.fewest, self.threads), blocks);
            let tiles = Tiles::new((self.rows, self.tokens), (tokens as usize, n as usize, k));
            let layers = self.split.map_or(1, |split| tiles.layers(split, profile.multiprocessors));
            launch(&from, tokens, &Geometry { blocks, layers, threads })?;
            done += part;
        }
        Ok(())
    }
}

impl Launcher<ProductCode> {
    pub(crate) fn cuda(
        registry: &'static Registry,
        candidate: Candidate,
        place: &Place,
    ) -> Result<Self, Error> {
        Launcher::on_gpu(registry, candidate, Op::Matmul, |code| {
            let name = candidate.entry.name;
            let of = |gpu: &Arc<Gpu>, function, threads, shared| {
                gpu.sharing(name, gpu.function(name, code, function, threads)?, shared)
            };
            Ok(Some(match code.launch {
                CudaLaunch::Matmul {
                    function,
                    threads,
                    fewest,
                    rows,
                    tokens,
                    packing,
                    unit,
                    split,
                    shared,
                    fused,
                    grouped,
                } => {
                    let gpu = place.open()?;
                    let grouped = grouped.map(|grouped| of(&gpu, grouped, threads, 0)).transpose()?;
                    ProductCode {
                        grouped,
                        function: of(&gpu, function, threads, shared)?,
                        gpu,
                        threads,
                        fewest,
                        rows: rows.max(1),
                        tokens: tokens.max(1),
                        packing: Some(packing),
                        unit,
                        split,
                        fused,
                        floats: None,
                    }
                }
                CudaLaunch::Rows { function, threads, fewest, rows, tokens, shared, .. } => {
                    let gpu = place.open()?;
                    ProductCode {
                        floats: Floats::load(&gpu, registry, candidate.entry, code)?,
                        function: of(&gpu, function, threads, shared)?,
                        gpu,
                        threads,
                        fewest,
                        rows: rows.max(1),
                        tokens: tokens.max(1),
                        packing: None,
                        unit: Unit::ROW,
                        split: None,
                        fused: false,
                        grouped: None,
                    }
                }
                _ => return Ok(None),
            }))
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
            Some(table) => Some(DeviceBuffer::of_weights(gpu, &table[..])?),
            None => None,
        };
        let weights = Weights {
            codes: DeviceBuffer::of_weights(gpu, &packed.codes)?,
            scales: DeviceBuffer::of_weights(gpu, &packed.scales)?,
            mins: DeviceBuffer::of_weights(gpu, &packed.mins)?,
            outer: DeviceBuffer::of_weights(gpu, &packed.outer)?,
            table,
        };
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
    #[expect(clippy::too_many_arguments, reason = "the operands of a product")]
    pub(super) unsafe fn product(
        &self,
        packed: &PackedMatrix,
        places: &Places,
        m: usize,
        layout: &RowLayout,
        bias: u64,
        y: u64,
        scratch: &mut DeviceScratch,
    ) -> Result<(), Error> {
        let ProductCode { gpu, function, .. } = self.code();
        let x =
            Quantized { x: places.q, stride: places.stride as u64, scales: places.scales, sums: places.sums };
        let all = self.parameters(packed, layout, x, bias, y)?;
        let bytes_in = packed.bytes() + m * (layout.bytes() + 4 * (layout.blocks + layout.units));
        let shape = Shape { m, n: packed.n, k: packed.k };
        self.enqueued(gpu, shape, [bytes_in, m.saturating_mul(packed.n).saturating_mul(4)], || {
            self.code().in_launches((all.n, packed.k), m, |from, m, geometry| {
                let parts = match geometry.layers {
                    1 => 0,
                    _ => scratch.parts(gpu, geometry, self.code().rows * self.code().tokens)?,
                };
                let x = Quantized {
                    x: x.x + from(places.stride, 1),
                    scales: x.scales + from(layout.blocks, 4),
                    sums: x.sums + from(layout.units, 4),
                    ..x
                };
                let parameters = Parameters { x, y: all.y + from(packed.n, 4), m, parts, ..all };
                // SAFETY: the parameter is that of docs/cuda.md; weights are packed as this kernel reads them
                // (`Matmul::accepts`), the rest is the caller's.
                unsafe { gpu.launch(self.entry.name, function, geometry, &[Argument::Product(parameters)]) }
            })
        })
    }

    /// The parameter but for the number of tokens.
    pub(super) fn parameters<X>(
        &self,
        packed: &PackedMatrix,
        layout: &RowLayout,
        x: X,
        bias: u64,
        y: u64,
    ) -> Result<Parameters<X>, Error> {
        let weights = self.weights(packed)?;
        let or_null = |buffer: &DeviceBuffer<f32>| if buffer.is_empty() { 0 } else { buffer.input() };
        Ok(Parameters {
            codes: weights.codes.input(),
            stride: packed.stride as u64,
            scales: or_null(&weights.scales),
            mins: or_null(&weights.mins),
            min: self.code().packing.map_or(0, |packing| packing.min),
            k: size("a row", packed.k)?,
            table: weights.table.as_ref().map_or(0, |table| table.input()),
            outer: weights.outer.input(),
            units: size("units", layout.units)?,
            x_blocks: size("blocks", layout.blocks)?,
            x,
            bias,
            y,
            m: 0,
            n: size("rows", packed.n)?,
            parts: 0,
        })
    }

    /// Enqueues the product of `x`, which it quantizes.
    ///
    /// # Safety
    /// `x` are `m > 0` rows of `k` values; `bias` is 0 or the address of `n` values, `y` that of room for `m * n`, on this
    /// device, which live until the kernel has run.
    unsafe fn fused(
        &self,
        packed: &PackedMatrix,
        x: Floating,
        layout: &RowLayout,
        bias: u64,
        y: u64,
    ) -> Result<(), Error> {
        let code = self.code();
        let ProductCode { gpu, function, threads, rows, .. } = code;
        let Floating { address, word, m, fault } = x;
        let panels = size("rows", packed.n)?.div_ceil(*rows);
        let held = gpu.held(function, *threads);
        let (blocks, sides) = side_by_side(panels, *threads, gpu.profile().multiprocessors, held);
        let raw = Raw { x: address, first: 0, fault, word, sides };
        let all = self.parameters(packed, layout, raw, bias, y)?;
        let bytes_in = packed.bytes() + m.saturating_mul(packed.k).saturating_mul(width(word));
        let shape = Shape { m, n: packed.n, k: packed.k };
        self.enqueued(gpu, shape, [bytes_in, m.saturating_mul(packed.n).saturating_mul(4)], || {
            code.in_launches((all.n, packed.k), m, |from, m, geometry| {
                let x = Raw { x: raw.x + from(packed.k, width(word)), first: from(packed.k, 1), ..raw };
                let parameters = Parameters { x, y: all.y + from(packed.n, 4), m, ..all };
                let geometry =
                    Geometry { blocks: (blocks, geometry.blocks.1), threads: *threads, ..*geometry };
                // SAFETY: the parameter is that of docs/cuda.md; weights are packed as this kernel reads them
                // (`Matmul::accepts`), the rest is the caller's.
                unsafe { gpu.launch(self.entry.name, function, &geometry, &[Argument::Fused(parameters)]) }
            })
        })
    }

    /// Whether operands are on this product's device, and none of them in the output.
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
        let overlap = |what| Err(Error::Overlap { kernel: self.entry.name, what });
        if input.overlaps(y) {
            return overlap("the activations");
        }
        if bias.is_some_and(|bias| bias.overlaps(y)) {
            return overlap("the bias");
        }
        Ok(())
    }

    /// As [`run`](Launcher::run), with memory for all rows.
    pub(super) fn run_at_once(
        &self,
        packed: &PackedMatrix,
        x: Tokens<'_>,
        y: &mut [f32],
        quantizer: Option<&Launcher<ActivationCode>>,
        scratch: &mut Option<Box<Scratch>>,
    ) -> Result<(), Error> {
        self.weights(packed)?;
        if let Some(floats) = &self.code().floats {
            return self.run_floats(floats, packed, x, y, scratch);
        }
        let Tokens { input, m, layout, block, bias } = x;
        let layout = &layout;
        let gpu = self.gpu();
        let scratch = scratch.get_or_insert_default().on(gpu);
        // A fault of earlier runs is theirs.
        scratch.finish_pending()?;
        if self.code().fused {
            let fault = scratch.fault_address(gpu, Rows { k: layout.k, block })?;
            let (address, word) = upload(gpu, scratch, input)?;
            let bias_at = scratch.bias_at(gpu, bias)?;
            let y_at = room(&mut scratch.y, gpu, y.len())?.output();
            let x = Floating { address, word, m, fault };
            // SAFETY: all values were copied just now; `bias` and `y` have the sizes that the handle compared with the
            // shape; all is in the scratch, and waited for.
            unsafe { self.fused(packed, x, layout, bias_at, y_at) }?;
            gpu.wait(self.entry.name)?;
            scratch.finish()?;
            return made(&mut scratch.y)?.read(y);
        }
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
        let y_at = room(&mut scratch.y, gpu, y.len())?.output();
        // SAFETY: `places` were filled for `m` rows of this layout, `bias` and `y` have the sizes that the handle
        // compared with the shape; all is in the scratch, and waited for.
        unsafe { self.product(packed, &places, m, layout, bias_at, y_at, scratch) }?;
        gpu.wait(self.entry.name)?;
        made(&mut scratch.y)?.read(y)
    }

    /// int8 rows of the caller's, laid out and summed on the processor.
    fn given(
        &self,
        input: Input<'_>,
        m: usize,
        layout: &RowLayout,
        scratch: &mut DeviceScratch,
    ) -> Result<Places, Error> {
        let gpu = self.gpu();
        let mut workspace = Workspace::of_size(layout.workspace(m, 0)?)?;
        let rows = {
            let x = InputRows::dense(input, m, layout.k);
            activations::quantize(None, x, *layout, &mut workspace, &Threads::single())?
        };
        let places = scratch.places(gpu, m, layout, None, layout.stride)?;
        made(&mut scratch.q)?.write(rows.q)?;
        made(&mut scratch.scales)?.write(rows.scales)?;
        made(&mut scratch.sums)?.write(rows.sums)?;
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
        quantizer: Option<&Launcher<ActivationCode>>,
        scratch: &mut Option<Box<Scratch>>,
    ) -> Result<(), Error> {
        let gpu = self.gpu();
        self.are_here(input, bias, y)?;
        self.weights(packed)?;
        let scratch = scratch.get_or_insert_default().on(gpu);
        if self.code().fused {
            let fault = scratch.fault_address(gpu, Rows { k: layout.k, block })?;
            let bias = bias.map_or(0, |bias| bias.input());
            let x = Floating { address: input.address(), word: input.word(), m, fault };
            // SAFETY: the buffers have the sizes that the handle compared with the shape. What is dropped before the
            // kernel has run is freed behind it, in the order of the stream.
            return unsafe { self.fused(packed, x, layout, bias, y.output()) };
        }
        let quantizer =
            quantizer.ok_or_else(|| self.broken("its activations have no quantizer on its device"))?;
        let places = scratch.places(gpu, m, layout, block, layout.bytes())?;
        let bias = bias.map_or(0, |bias| bias.input());
        // SAFETY: the buffers have the sizes that the handle compared with the shape. What is dropped before the
        // kernels have run is freed behind them, in the order of the stream.
        unsafe {
            quantizer.rows(input.address(), input.word(), m, layout, &places)?;
            self.product(packed, &places, m, layout, bias, y.output(), scratch)
        }
    }

    /// The same behind a prologue: a product that quantizes for itself takes the f32 that it leaves. Sizes of weights, bias and
    /// output were checked, and the steps.
    #[expect(clippy::too_many_arguments, reason = "the operands of a product and of what is in front")]
    pub(crate) fn run_behind(
        &self,
        first: &Launcher<PrologueCode>,
        prologue: &DevicePrologue,
        input: DevicePrologueInput<'_>,
        (packed, m, layout, block): (&PackedMatrix, usize, &RowLayout, Option<usize>),
        bias: Option<&DeviceBuffer<f32>>,
        y: &mut DeviceBuffer<f32>,
        scratch: &mut Option<Box<Scratch>>,
    ) -> Result<(), Error> {
        let gpu = self.gpu();
        let name = self.entry.name;
        if self.multiplies_floats() {
            return Err(Error::WrongInput {
                kernel: name,
                expected: vec![DType::F32, DType::F16, DType::Bf16],
                found: DType::I8,
            });
        }
        let others = [Some(first.gpu()), bias.map(DeviceBuffer::gpu), Some(y.gpu())];
        if others.into_iter().flatten().any(|other| !Arc::ptr_eq(other, gpu)) {
            return Err(Error::WrongDevice { kernel: name, index: gpu.profile().index });
        }
        if bias.is_some_and(|bias| bias.overlaps(y)) {
            return Err(Error::Overlap { kernel: name, what: "the bias" });
        }
        input.check(name, prologue, gpu, m, Some(y))?;
        self.weights(packed)?;
        let scratch = scratch.get_or_insert_default().on(gpu);
        let values = m.checked_mul(layout.k).ok_or(Error::TooLarge { what: "activations" })?;
        let rows = scratch.rows_at(gpu, values)?;
        let bias = bias.map_or(0, |bias| bias.input());
        if self.code().fused {
            let fault = scratch.fault_address(gpu, Rows { k: layout.k, block })?;
            let x = Floating { address: rows, word: F32, m, fault };
            // SAFETY: operands were compared with the shape just now, `rows` is as large. What is dropped before the kernels have
            // run is freed behind them, in the order of the stream.
            return unsafe {
                first.rows(prologue, input, m, layout, [rows, fault], None)?;
                self.fused(packed, x, layout, bias, y.output())
            };
        }
        let places = scratch.places(gpu, m, layout, block, layout.bytes())?;
        // SAFETY: likewise, and the places are those of `m` rows.
        unsafe {
            first.rows(prologue, input, m, layout, [rows, places.fault], Some(&places))?;
            self.product(packed, &places, m, layout, bias, y.output(), scratch)
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
        let mut codes = Aligned::<u8>::zeroed(packed.stride)?;
        weights.codes.read_from(panel * packed.stride, &mut codes)?;
        let read = |buffer: &DeviceBuffer<f32>, words: Option<usize>| -> Result<Aligned<f32>, Error> {
            let words = words.ok_or(Error::TooLarge { what: "packed weights" })?;
            let mut values = Aligned::zeroed(words)?;
            if words > 0 {
                buffer.read_from(panel * words, &mut values)?;
            }
            Ok(values)
        };
        let scales = read(&weights.scales, packing.scale_words(packed.units))?;
        let mins = read(&weights.mins, packing.min_words(packed.units))?;
        let mut outer = [0.0];
        weights.outer.read_from(row, &mut outer)?;
        unpack_panel(packing, &codes, &scales, &mins, outer[0], in_panel, packed.k, dst);
        Ok(())
    }
}
