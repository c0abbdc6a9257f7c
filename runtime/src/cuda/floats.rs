//! Products of floats on a device: weights as the format's own rows, activations rounded where the kernel wants it.

use super::activations::upload;
use super::blocks::size;
use super::buffer::{DeviceBuffer, made, room};
use super::convert::Values;
use super::fault::Rows;
use super::float_operands::Floats;
use super::input::DeviceInput;
use super::parameters::{Argument, RowsParameters};
use super::product::ProductCode;
use super::scratch::{DeviceScratch, Scratch};
use super::types::width;
use crate::activations::{Input, Tokens};
use crate::error::Error;
use crate::request::Shape;
use crate::run::launch::Launcher;
use crate::weights::PackedMatrix;
use gristmill_spec::vocab::DType;

/// Activations on the device: `m` rows of `k` values of type `word`.
#[derive(Clone, Copy)]
struct Activations {
    address: u64,
    word: u32,
    m: usize,
    k: usize,
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
        made(&mut scratch.y)?.read(y)
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
        let in_place = floats.takes(x.word, k);
        let (address, word, stride) = if in_place {
            (x.address, x.word, k)
        } else {
            let too_large = || Error::TooLarge { what: "activations" };
            let stride = floats.stride(k).ok_or_else(too_large)?;
            let bytes = m.checked_mul(stride).and_then(|values| values.checked_mul(width(floats.word)));
            let halves = bytes.ok_or_else(too_large)?.div_ceil(2);
            (room(&mut scratch.rounded, gpu, halves)?.output(), floats.word, stride)
        };
        let all = RowsParameters {
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
        let shape = Shape { m, n: packed.n(), k };
        self.enqueued(gpu, shape, [bytes_in, m.saturating_mul(packed.n()).saturating_mul(4)], || {
            if let Some(convert) = &floats.convert {
                let src = Values { address: x.address, word: x.word, stride: k };
                let to = if in_place { 0 } else { address };
                let dst = Values { address: to, word: floats.word, stride };
                // SAFETY: `x` is the caller's; the scratch has room for `m` rows, `stride` values apart.
                unsafe { convert.rows(gpu, src, dst, (m, k), fault) }?;
            }
            self.code().in_launches((n, k), m, |from, m, geometry| {
                let parameters = RowsParameters {
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
