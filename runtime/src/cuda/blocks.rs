//! Quantizing and dequantizing on a device.

use super::buffer::DeviceBuffer;
use super::device::{Function, Geometry, Gpu};
use super::fault::{Faults, Rows, fault_at};
use super::parameters::{Chunks, Dequantize, Finish, Quantize};
use super::place::Place;
use crate::decide::Candidate;
use crate::error::Error;
use crate::registry::{CudaLaunch, CudaStep, FormatInfo, Registry};
use crate::request::Shape;
use crate::run::launch::Launcher;
use crate::weights::QuantizedMatrix;
use gristmill_spec::vocab::Op;
use std::sync::Arc;

/// How often a kernel that loops over what is left fills the multiprocessors with blocks: so often that none waits long for the last
/// ones, and so seldom that starting them costs nothing.
const ROUNDS: u64 = 4;

/// Threads of a block of the kernel that finishes a step: a warp.
const FINISH_THREADS: u32 = 32;

/// A size as kernels take it.
pub(crate) fn size(what: &'static str, value: usize) -> Result<u32, Error> {
    u32::try_from(value).map_err(|_| Error::TooLarge { what })
}

/// How a function that loops is launched for `work` pieces, in blocks of so many threads.
pub(super) fn looping(gpu: &Gpu, function: &Function, threads: u32, work: u64) -> Geometry {
    let held = u64::from(gpu.profile().multiprocessors.max(1)) * u64::from(gpu.held(function, threads));
    let blocks = work.clamp(1, held * ROUNDS).min(u64::from(gpu.profile().grid.0));
    Geometry { blocks: (u32::try_from(blocks).unwrap_or(1), 1), threads, layers: 1 }
}

/// A kernel that gives each thread some elements, on a device.
#[derive(Clone, Debug)]
pub(crate) struct Elements {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) function: Function,
    threads: u32,
    per_thread: u32,
}

impl Elements {
    /// The kernel of a candidate for `op`, loaded on the device of this index.
    pub(crate) fn load<C>(
        registry: &'static Registry,
        candidate: Candidate,
        place: &Place,
        op: Op,
        made: impl FnOnce(Elements) -> C,
    ) -> Result<Launcher<C>, Error> {
        Launcher::on_gpu(registry, candidate, op, |code| {
            let CudaLaunch::Elements { function, threads, per_thread, .. } = code.launch else {
                return Ok(None);
            };
            let gpu = place.open()?;
            let function = gpu.function(candidate.entry.name, code, function, threads)?;
            Ok(Some(made(Elements { gpu, function, threads, per_thread: per_thread.max(1) })))
        })
    }

    /// How it is launched for so many values.
    pub(crate) fn geometry(&self, values: u64) -> Geometry {
        let work = values.div_ceil(u64::from(self.per_thread)).div_ceil(u64::from(self.threads));
        looping(&self.gpu, &self.function, self.threads, work)
    }
}

/// A dequantizer on a device.
#[derive(Clone, Debug)]
pub(crate) struct DequantizeCode(Elements);

impl Launcher<DequantizeCode> {
    pub(crate) fn cuda(
        registry: &'static Registry,
        candidate: Candidate,
        place: &Place,
    ) -> Result<Self, Error> {
        Elements::load(registry, candidate, place, Op::Dequantize, DequantizeCode)
    }

    /// Enqueues all values of a tensor that has some: `src` holds its bytes, `dst` has room for its values.
    pub(super) fn enqueue(
        &self,
        format: &FormatInfo,
        src: &DeviceBuffer<u8>,
        rows: usize,
        k: usize,
        dst: &mut DeviceBuffer<f32>,
        faults: &mut Faults,
    ) -> Result<(), Error> {
        let DequantizeCode(elements) = self.code();
        let Elements { gpu, function, .. } = elements;
        let values = rows.checked_mul(k).ok_or(Error::TooLarge { what: "a tensor" })?;
        let geometry = elements.geometry(values as u64);
        let arguments = Dequantize {
            src: src.input(),
            dst: dst.output(),
            rows: size("rows", rows)?,
            k: size("a row", k)?,
            row_bytes: format.row_bytes(k)? as u64,
            fault: faults.address(gpu, Rows { k, block: Some(format.elements) })?,
        };
        self.enqueued(gpu, Shape::matrix(rows, k), [src.bytes(), values.saturating_mul(4)], || {
            // SAFETY: the parameters are those of docs/cuda.md; the caller compared the sizes with the shape, and
            // what is dropped before the kernel has run is freed behind it.
            unsafe { gpu.launch(self.entry.name, function, &geometry, &arguments.arguments()) }
        })
    }

    /// All values of a matrix that has some; without a destination they are only looked at.
    pub(crate) fn tensor(&self, matrix: &QuantizedMatrix<'_>, dst: Option<&mut [f32]>) -> Result<(), Error> {
        let (gpu, format) = (&self.code().0.gpu, matrix.format());
        let (rows, k) = (matrix.n(), matrix.k());
        let values = rows.checked_mul(k).ok_or(Error::TooLarge { what: "a tensor" })?;
        let src = DeviceBuffer::of(gpu, matrix.data())?;
        let mut out = DeviceBuffer::<f32>::uninitialized(gpu, values)?;
        let mut faults = Faults::new(gpu)?;
        self.enqueue(format, &src, rows, k, &mut out, &mut faults)?;
        gpu.wait(self.entry.name)?;
        report(format, &mut faults)?;
        match dst {
            Some(dst) => out.read(dst),
            None => Ok(()),
        }
    }
}

/// A quantizer on a device.
#[derive(Clone, Debug)]
pub(crate) struct QuantizeCode {
    gpu: Arc<Gpu>,
    function: Function,
    threads: u32,
    blocks: u32,
    step: Option<(CudaStep, Function, Function)>,
}

impl Launcher<QuantizeCode> {
    pub(crate) fn cuda(
        registry: &'static Registry,
        candidate: Candidate,
        place: &Place,
    ) -> Result<Self, Error> {
        Launcher::on_gpu(registry, candidate, Op::Quantize, |code| {
            let CudaLaunch::Quantize { function, threads, blocks, step } = code.launch else {
                return Ok(None);
            };
            let gpu = place.open()?;
            let load = |name, threads| gpu.function(candidate.entry.name, code, name, threads);
            let function = load(function, threads)?;
            let step = match step {
                Some(step) => {
                    Some((step, load(step.chunks, step.threads)?, load(step.finish, FINISH_THREADS)?))
                }
                None => None,
            };
            Ok(Some(QuantizeCode { gpu, function, threads, blocks: blocks.max(1), step }))
        })
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.code().gpu
    }

    /// Numbers that a scale over more than a block takes on its way, for a tensor of this shape: those of its steps, and
    /// those of its chunks.
    pub(super) fn step_numbers(
        &self,
        format: &FormatInfo,
        rows: usize,
        k: usize,
    ) -> Result<[usize; 2], Error> {
        let Some((step, _, _)) = &self.code().step else { return Ok([0, 0]) };
        let nothing = || Error::TooLarge { what: "a tensor" };
        let (runs, len) = runs(format, rows, k).ok_or_else(nothing)?;
        let chunks = len.div_ceil(step.chunk.max(1) as usize).checked_mul(runs).ok_or_else(nothing)?;
        Ok([runs, chunks])
    }

    /// Enqueues a whole tensor that has values: row headers, blocks and tail. The sizes of `src` and `dst` are those of
    /// the format for the shape, those of `steps` and `partial` are [`step_numbers`](Launcher::step_numbers).
    #[expect(
        clippy::too_many_arguments,
        reason = "the operands, and the places of what is computed on the way"
    )]
    pub(super) fn enqueue(
        &self,
        format: &FormatInfo,
        src: &DeviceBuffer<f32>,
        rows: usize,
        k: usize,
        dst: &mut DeviceBuffer<u8>,
        [steps, partial]: &mut [DeviceBuffer<u64>; 2],
        faults: &mut Faults,
    ) -> Result<(), Error> {
        let QuantizeCode { gpu, function, threads, blocks, step } = self.code();
        if format.tensor_tail.is_some() {
            // The kernel writes the number in the tail and not what fills it up.
            dst.fill_bytes(0)?;
        }
        let (rows32, k32) = (size("rows", rows)?, size("a row", k)?);
        let src_at = src.input();
        let fault_at = faults.address(gpu, Rows { k, block: Some(format.elements) })?;
        let steps_at = if step.is_some() { steps.output() } else { 0 };
        let work = (src.len() as u64).div_ceil(format.elements.max(1) as u64).div_ceil(u64::from(*blocks));
        let name = self.entry.name;
        self.enqueued(gpu, Shape::matrix(rows, k), [src.bytes(), dst.bytes()], || {
            if let Some((step, chunks, finish)) = step {
                let (runs, len) = runs(format, rows, k).ok_or(Error::TooLarge { what: "a tensor" })?;
                let runs = size("rows", runs)?;
                let work = partial.len() as u64;
                let partial_at = partial.output();
                let len = len as u64;
                let geometry = looping(gpu, chunks, step.threads, work);
                let arguments = Chunks { src: src_at, rows: runs, len, partial: partial_at, fault: fault_at };
                // SAFETY: the parameters are those of docs/cuda.md; `partial` has a number for each chunk of each
                // run, `steps` two f32 for each run; what is dropped meanwhile is freed behind the kernels.
                unsafe { gpu.launch(name, chunks, &geometry, &arguments.arguments()) }?;
                let Chunks { src, rows, len, partial, fault } = arguments;
                let arguments = Finish { src, rows, len, partial, steps: steps_at, fault };
                let geometry = Geometry { blocks: (runs, 1), threads: FINISH_THREADS, layers: 1 };
                // SAFETY: as above.
                unsafe { gpu.launch(name, finish, &geometry, &arguments.arguments()) }?;
            }
            let arguments = Quantize {
                src: src_at,
                dst: dst.output(),
                rows: rows32,
                k: k32,
                row_bytes: format.row_bytes(k)? as u64,
                steps: steps_at,
                fault: fault_at,
            };
            let geometry = looping(gpu, function, *threads, work);
            // SAFETY: the parameters are those of docs/cuda.md; `src` has `rows * k` values, `dst` the bytes of the
            // tensor; what is dropped meanwhile is freed behind the kernel.
            unsafe { gpu.launch(name, function, &geometry, &arguments.arguments()) }
        })
    }

    /// A whole tensor: row headers, blocks and tail. `dst` has the format's size for the shape.
    pub(crate) fn tensor(
        &self,
        format: &FormatInfo,
        src: &[f32],
        rows: usize,
        k: usize,
        dst: &mut [u8],
    ) -> Result<(), Error> {
        if src.is_empty() {
            // No values: headers and tail hold the step of nothing, which is 0.
            dst.fill(0);
            return Ok(());
        }
        let gpu = self.gpu();
        let values = DeviceBuffer::of(gpu, src)?;
        let mut out = DeviceBuffer::uninitialized(gpu, dst.len())?;
        let mut faults = Faults::new(gpu)?;
        let [steps, partial] = self.step_numbers(format, rows, k)?;
        let mut steps =
            [DeviceBuffer::uninitialized(gpu, steps)?, DeviceBuffer::uninitialized(gpu, partial)?];
        self.enqueue(format, &values, rows, k, &mut out, &mut steps, &mut faults)?;
        gpu.wait(self.entry.name)?;
        report(format, &mut faults)?;
        out.read(dst)
    }
}

/// Waits for conversions of this format, and reports what stopped one.
pub(super) fn report(format: &FormatInfo, faults: &mut Faults) -> Result<(), Error> {
    match faults.take()? {
        Some((kind, at, Rows { k, .. })) => Err(fault_at(kind, at, format.elements).in_rows(format, 0, k)),
        None => Ok(()),
    }
}

/// Runs of values that share a scale outside of blocks, and the length of each.
fn runs(format: &FormatInfo, rows: usize, k: usize) -> Option<(usize, usize)> {
    if format.row_header.is_some() { Some((rows, k)) } else { Some((1, rows.checked_mul(k)?)) }
}
