//! Products of floats on a device: weights as the format's own rows, activations rounded where the kernel wants it.

use super::activations::{DeviceInput, upload};
use super::blocks::{looping, size};
use super::buffer::DeviceBuffer;
use super::convert::{Convert, Values};
use super::device::{Argument, Function, Geometry, Gpu};
use super::fault::{FaultKind, Faults, Rows};
use super::product::{ProductCode, Weights};
use super::scratch::{DeviceScratch, Scratch, room};
use super::types::{BF16, F16, F32, width};
use crate::activations::{Input, Tokens};
use crate::error::Error;
use crate::launch::Launcher;
use crate::registry::{CudaCode, CudaLaunch, Entry, Registry};
use crate::weights::PackedMatrix;
use gristmill_spec::vocab::{DType, Precision};
use std::sync::Arc;

/// k of a stage of the kernels that round: rows of activations are whole stages of them.
const STAGE: usize = 32;

/// The parameter of a product over rows: `docs/cuda.md`, in its order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Parameters {
    blocks: u64,
    row_bytes: u64,
    outer: u64,
    x: u64,
    x_stride: u64,
    x_first: u64,
    bias: u64,
    y: u64,
    fault: u64,
    x_type: u32,
    k: u32,
    m: u32,
    n: u32,
}

/// What a product of floats needs besides its kernel.
#[derive(Clone, Debug)]
pub(crate) struct Floats {
    /// The type that activations are rounded to, as kernels are told; that of f32 for none.
    word: u32,
    check: Function,
    check_threads: u32,
    /// Rounds activations, or looks at those that are of the type.
    convert: Option<Convert>,
}

/// Activations on the device: `m` rows of `k` values of type `word`.
#[derive(Clone, Copy)]
struct Activations {
    address: u64,
    word: u32,
    m: usize,
    k: usize,
}

impl Floats {
    /// `None` where the code is another kernel's.
    pub(super) fn load(
        gpu: &Gpu,
        registry: &'static Registry,
        entry: &'static Entry,
        code: &CudaCode,
    ) -> Result<Option<Floats>, Error> {
        let CudaLaunch::Rows { check, check_threads, precision, .. } = code.launch else { return Ok(None) };
        let word = match precision {
            Precision::F32 | Precision::Int8 => F32,
            Precision::F16 => F16,
            Precision::Bf16 => BF16,
        };
        let check = gpu.function(entry.name, code, check, check_threads)?;
        let convert = if word == F32 { None } else { Some(Convert::load(gpu, registry)?) };
        Ok(Some(Floats { word, check, check_threads, convert }))
    }

    /// Looks whether all weights can be used, and waits for the answer.
    pub(super) fn check(
        &self,
        gpu: &Arc<Gpu>,
        entry: &'static Entry,
        weights: &Weights,
        packed: &PackedMatrix,
    ) -> Result<(), Error> {
        let (n, k) = (packed.n(), packed.k());
        if n == 0 || k == 0 {
            return Ok(());
        }
        let mut faults = Faults::new(gpu)?;
        let arguments = [
            Argument::U64(weights.codes.input()),
            Argument::U64(packed.stride as u64),
            Argument::U64(weights.outer.input()),
            Argument::U32(size("rows", n)?),
            Argument::U32(size("a row", k)?),
            Argument::U32(self.word),
            Argument::U64(faults.address(gpu, Rows { k, block: None })?),
        ];
        let work = (n as u64).saturating_mul(k as u64).div_ceil(8 * u64::from(self.check_threads));
        let geometry = Geometry { blocks: looping(gpu, work), threads: self.check_threads, layers: 1 };
        // SAFETY: the parameters are those of docs/cuda.md; the weights are `n` rows of `k`, `stride` bytes apart.
        unsafe { gpu.launch(entry.name, &self.check, &geometry, &arguments) }?;
        let Some((kind, at, _)) = faults.take()? else { return Ok(()) };
        let (row, column) = (at / k, at % k);
        Err(match kind {
            FaultKind::InvalidCode => Error::InvalidCode { format: packed.layout.format.name, row, column },
            FaultKind::NonFinite | FaultKind::ScaleOverflow | FaultKind::Beyond => {
                Error::BeyondPrecision { what: "the weight", row, column }
            }
        })
    }
}

impl Launcher<ProductCode> {
    /// Whether it multiplies floats, and takes activations as they are.
    pub(crate) fn multiplies_floats(&self) -> bool {
        self.code().floats.is_some()
    }

    /// Copies the blocks of a row of weights back; the scale outside them.
    pub(crate) fn read_row(
        &self,
        packed: &PackedMatrix,
        row: usize,
        blocks: &mut [u8],
    ) -> Result<f32, Error> {
        let weights = self.weights(packed)?;
        weights.codes.read_from(row * packed.stride, blocks)?;
        let mut outer = [0.0];
        weights.outer.read_from(row, &mut outer)?;
        Ok(outer[0])
    }

    /// As [`run`](Launcher::run), with memory for all rows.
    pub(super) fn run_floats(
        &self,
        floats: &Floats,
        packed: &PackedMatrix,
        x: Tokens<'_>,
        y: &mut [f32],
        scratch: &mut Option<Box<Scratch>>,
    ) -> Result<(), Error> {
        let Tokens { input, m, bias, .. } = x;
        if let Input::I8 { .. } = input {
            return Err(Error::WrongInput {
                kernel: self.entry.name,
                expected: vec![DType::F32, DType::F16, DType::Bf16],
                found: DType::I8,
            });
        }
        let gpu = self.gpu();
        let scratch = scratch.get_or_insert_default().on(gpu);
        // A fault of earlier runs is theirs.
        scratch.finish_pending()?;
        let (address, word) = upload(gpu, scratch, input)?;
        let bias_at = scratch.bias_at(gpu, bias)?;
        let y_at = room(&mut scratch.y, gpu, y.len())?.output();
        let x = Activations { address, word, m, k: packed.k() };
        // SAFETY: all values were copied just now; `y` has room for `m * n`; all is in the scratch, and waited for.
        unsafe { self.floats(floats, packed, x, bias_at, y_at, scratch) }?;
        gpu.wait(self.entry.name)?;
        scratch.finish()?;
        room(&mut scratch.y, gpu, y.len())?.read(y)
    }

    /// The same with operands on the device; enqueued, not waited for. Sizes were checked.
    pub(crate) fn floats_on_device(
        &self,
        packed: &PackedMatrix,
        input: DeviceInput<'_>,
        m: usize,
        bias: Option<&DeviceBuffer<f32>>,
        y: &mut DeviceBuffer<f32>,
        scratch: &mut Option<Box<Scratch>>,
    ) -> Result<(), Error> {
        let gpu = self.gpu();
        self.are_here(input, bias, y)?;
        let floats = self.code().floats.as_ref().ok_or_else(|| self.broken("it multiplies no floats"))?;
        let scratch = scratch.get_or_insert_default().on(gpu);
        let x = Activations { address: input.address(), word: input.word(), m, k: packed.k() };
        let bias = bias.map_or(0, |bias| bias.input());
        // SAFETY: the buffers have the sizes that the handle compared with the shape. What is dropped before the kernels
        // have run is freed behind them, in the order of the stream.
        unsafe { self.floats(floats, packed, x, bias, y.output(), scratch) }
    }

    /// Enqueues what rounds the activations, and the product.
    ///
    /// # Safety
    /// `x` are as many values as it says; `bias` is 0 or the address of `n` values, `y` that of room for `m * n`, on this
    /// device, which live until the kernels have run.
    unsafe fn floats(
        &self,
        floats: &Floats,
        packed: &PackedMatrix,
        x: Activations,
        bias: u64,
        y: u64,
        scratch: &mut DeviceScratch,
    ) -> Result<(), Error> {
        let ProductCode { gpu, function, .. } = self.code();
        let weights = self.weights(packed)?;
        let Activations { m, k, .. } = x;
        let n = size("rows", packed.n())?;
        let fault = scratch.fault_address(gpu, Rows { k, block: None })?;
        // Rows that are whole stages of the right type are used where they are, once they were looked at.
        let in_place = floats.convert.is_none() || (x.word == floats.word && k.is_multiple_of(STAGE));
        let (address, word, stride) = if in_place {
            (x.address, x.word, k)
        } else {
            let stride = k.checked_next_multiple_of(STAGE).ok_or(Error::TooLarge { what: "activations" })?;
            let len = m.checked_mul(stride).ok_or(Error::TooLarge { what: "activations" })?;
            (room(&mut scratch.rounded, gpu, len)?.output(), floats.word, stride)
        };
        let all = Parameters {
            blocks: weights.codes.input(),
            row_bytes: packed.stride as u64,
            outer: weights.outer.input(),
            x: address,
            x_stride: stride as u64,
            x_first: 0,
            bias,
            y,
            fault,
            x_type: word,
            k: size("a row", k)?,
            m: 0,
            n,
        };
        let bytes_in = packed.bytes() + m.saturating_mul(k).saturating_mul(width(x.word));
        self.enqueued(gpu, bytes_in, m.saturating_mul(packed.n()).saturating_mul(4), || {
            if let Some(convert) = &floats.convert {
                let src = Values { address: x.address, word: x.word, stride: k };
                let to = if in_place { 0 } else { address };
                let dst = Values { address: to, word: floats.word, stride };
                // SAFETY: `x` is the caller's; the scratch has room for `m` rows of whole stages.
                unsafe { convert.rows(gpu, src, dst, (m, k), fault) }?;
            }
            self.code().in_launches((n, k), m, |from, m, geometry| {
                let parameters = Parameters {
                    x: all.x + from(stride, width(word)),
                    x_first: from(k, 1),
                    y: all.y + from(packed.n(), 4),
                    m,
                    ..all
                };
                // SAFETY: the parameter is that of docs/cuda.md; weights are rows as this kernel reads them
                // (`Matmul::accepts`), the rest is the caller's.
                unsafe { gpu.launch(self.entry.name, function, geometry, &[Argument::Rows(parameters)]) }
            })
        })
    }
}
