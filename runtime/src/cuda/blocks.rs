//! Quantizing and dequantizing on a device.

use super::buffer::DeviceBuffer;
use super::device::{Argument, Geometry, Gpu};
use crate::abi::Fault;
use crate::decide::Candidate;
use crate::error::Error;
use crate::launch::Launcher;
use crate::registry::{CudaLaunch, CudaStep, FormatInfo, Registry};
use crate::weights::QuantizedMatrix;
use cudarc::driver::CudaFunction;
use gristmill_spec::vocab::Op;
use std::sync::Arc;

/// Blocks of a grid for each multiprocessor, where a kernel loops over what is left: enough to fill any device, and few
/// enough that starting them costs nothing.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 32;

/// Threads of a block of the kernel that finishes a step: a warp.
const FINISH_THREADS: u32 = 32;

/// The word in which kernels leave the first thing that stopped them.
#[derive(Debug)]
pub(super) struct FaultWord(DeviceBuffer<u64>);

impl FaultWord {
    /// What it holds while there is nothing.
    const NONE: u64 = u64::MAX;

    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<FaultWord, Error> {
        let mut word = DeviceBuffer::uninitialized(gpu, 1)?;
        word.fill_bytes(0xff)?;
        Ok(FaultWord(word))
    }

    pub(super) fn address(&mut self) -> u64 {
        self.0.output()
    }

    /// Waits for what was enqueued, and tells what stopped it, with the index of an element. The word is as new then.
    pub(super) fn take(&mut self) -> Result<Option<(FaultKind, usize)>, Error> {
        let mut word = [0];
        self.0.read(&mut word)?;
        if word[0] == FaultWord::NONE {
            return Ok(None);
        }
        self.0.fill_bytes(0xff)?;
        let kind = match word[0] % 4 {
            0 => FaultKind::NonFinite,
            1 => FaultKind::InvalidCode,
            _ => FaultKind::ScaleOverflow,
        };
        Ok(Some((kind, usize::try_from(word[0] / 4).unwrap_or(usize::MAX))))
    }
}

/// What can stop a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    NonFinite,
    InvalidCode,
    ScaleOverflow,
}

impl FaultKind {
    /// As kernels of the processor report it: overflowed scales by block and not by element.
    pub(super) fn at(self, index: usize, block: usize) -> Fault {
        match self {
            FaultKind::NonFinite => Fault::NonFinite(index),
            FaultKind::InvalidCode => Fault::InvalidCode(index),
            FaultKind::ScaleOverflow => Fault::ScaleOverflow(index / block.max(1)),
        }
    }
}

/// A size as kernels take it.
pub(super) fn size(what: &'static str, value: usize) -> Result<u32, Error> {
    u32::try_from(value).map_err(|_| Error::TooLarge { what })
}

/// Blocks of a grid for `work` pieces, where the kernel loops.
pub(super) fn looping(gpu: &Gpu, work: u64) -> (u32, u32) {
    let most = u64::from(gpu.profile().multiprocessors.max(1)) * BLOCKS_PER_MULTIPROCESSOR;
    let blocks = work.clamp(1, most).min(u64::from(gpu.profile().grid.0));
    (u32::try_from(blocks).unwrap_or(1), 1)
}

/// A dequantizer on a device.
#[derive(Clone, Debug)]
pub(crate) struct DequantizeCode {
    gpu: Arc<Gpu>,
    function: CudaFunction,
    threads: u32,
    per_thread: u32,
}

impl Launcher<DequantizeCode> {
    pub(crate) fn cuda(registry: &'static Registry, candidate: Candidate, index: u32) -> Result<Self, Error> {
        Launcher::on_gpu(registry, candidate, Op::Dequantize, |code| {
            let CudaLaunch::Dequantize { function, threads, per_thread } = code.launch else {
                return Ok(None);
            };
            let gpu = Gpu::open(index)?;
            let function = gpu.function(candidate.entry, code, function, threads)?;
            Ok(Some(DequantizeCode { gpu, function, threads, per_thread: per_thread.max(1) }))
        })
    }

    /// All values of a matrix that has some; without a destination they are only looked at.
    pub(crate) fn tensor(&self, matrix: &QuantizedMatrix<'_>, dst: Option<&mut [f32]>) -> Result<(), Error> {
        let DequantizeCode { gpu, function, threads, per_thread } = self.code();
        let (rows, k) = (matrix.n(), matrix.k());
        let values = rows.checked_mul(k).ok_or(Error::TooLarge { what: "a tensor" })?;
        let src = DeviceBuffer::of(gpu, matrix.data())?;
        let mut out = DeviceBuffer::<f32>::uninitialized(gpu, values)?;
        let mut fault = FaultWord::new(gpu)?;
        let work = (values as u64).div_ceil(u64::from(*per_thread)).div_ceil(u64::from(*threads));
        let geometry = Geometry { blocks: looping(gpu, work), threads: *threads };
        let arguments = [
            Argument::U64(src.input()),
            Argument::U64(out.output()),
            Argument::U32(size("rows", rows)?),
            Argument::U32(size("a row", k)?),
            Argument::U64(matrix.row_bytes() as u64),
            Argument::U64(fault.address()),
        ];
        self.enqueued(gpu, matrix.total_bytes(), out.bytes(), || {
            // SAFETY: the parameters are those of docs/cuda.md; `src` is a whole tensor of this format and shape
            // (`QuantizedMatrix::new`), `out` has its values; all live until the fault was read.
            unsafe { gpu.launch(self.entry.name, function, &geometry, &arguments) }
        })?;
        gpu.wait(self.entry.name)?;
        if let Some((kind, at)) = fault.take()? {
            let format = matrix.format();
            return Err(kind.at(at, format.elements).in_rows(format, 0, k));
        }
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
    function: CudaFunction,
    threads: u32,
    blocks: u32,
    step: Option<(CudaStep, CudaFunction, CudaFunction)>,
}

impl Launcher<QuantizeCode> {
    pub(crate) fn cuda(registry: &'static Registry, candidate: Candidate, index: u32) -> Result<Self, Error> {
        Launcher::on_gpu(registry, candidate, Op::Quantize, |code| {
            let CudaLaunch::Quantize { function, threads, blocks, step } = code.launch else {
                return Ok(None);
            };
            let gpu = Gpu::open(index)?;
            let load = |name, threads| gpu.function(candidate.entry, code, name, threads);
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

    /// Whether a scale covers more than a block.
    pub(crate) fn has_step(&self) -> bool {
        self.code().step.is_some()
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
        let QuantizeCode { gpu, function, threads, blocks, step } = self.code();
        let (rows32, k32) = (size("rows", rows)?, size("a row", k)?);
        let values = DeviceBuffer::of(gpu, src)?;
        let mut out = DeviceBuffer::<u8>::zeroed(gpu, dst.len())?;
        let mut fault = FaultWord::new(gpu)?;
        let (runs, len) = if format.row_header.is_some() { (rows32, k) } else { (1, src.len()) };
        let (mut steps, mut partial) = (None, None);
        if let Some((step, _, _)) = step {
            let chunks = len.div_ceil(step.chunk.max(1) as usize);
            let numbers = chunks.checked_mul(runs as usize).ok_or(Error::TooLarge { what: "a tensor" })?;
            // Two f32 each.
            steps = Some(DeviceBuffer::<u64>::uninitialized(gpu, runs as usize)?);
            partial = Some(DeviceBuffer::<u64>::uninitialized(gpu, numbers)?);
        }
        let (src_at, fault_at) = (values.input(), fault.address());
        let steps_at = steps.as_mut().map_or(0, |steps| steps.output());
        let work = (src.len() as u64).div_ceil(format.elements.max(1) as u64).div_ceil(u64::from(*blocks));
        let name = self.entry.name;
        self.enqueued(gpu, size_of_val(src), out.bytes(), || {
            if let (Some((step, chunks, finish)), Some(partial)) = (step, &mut partial) {
                let partial_at = partial.output();
                let common = [Argument::U64(src_at), Argument::U32(runs), Argument::U64(len as u64)];
                let geometry = Geometry { blocks: looping(gpu, partial.len() as u64), threads: step.threads };
                let [a, b, c] = common;
                let arguments = [a, b, c, Argument::U64(partial_at), Argument::U64(fault_at)];
                // SAFETY: the parameters are those of docs/cuda.md; `partial` has a number for each chunk of each
                // run, `steps` two for each run; all live until the fault was read.
                unsafe { gpu.launch(name, chunks, &geometry, &arguments) }?;
                let [a, b, c, partial, fault] = arguments;
                let arguments = [a, b, c, partial, Argument::U64(steps_at), fault];
                let geometry = Geometry { blocks: (runs, 1), threads: FINISH_THREADS };
                // SAFETY: as above.
                unsafe { gpu.launch(name, finish, &geometry, &arguments) }?;
            }
            let arguments = [
                Argument::U64(src_at),
                Argument::U64(out.output()),
                Argument::U32(rows32),
                Argument::U32(k32),
                Argument::U64(format.row_bytes(k)? as u64),
                Argument::U64(steps_at),
                Argument::U64(fault_at),
            ];
            let geometry = Geometry { blocks: looping(gpu, work), threads: *threads };
            // SAFETY: the parameters are those of docs/cuda.md; `src` has `rows * k` values, `out` the bytes of the
            // tensor (the handle compared both with the shape); all live until the fault was read.
            unsafe { gpu.launch(name, function, &geometry, &arguments) }
        })?;
        gpu.wait(name)?;
        if let Some((kind, at)) = fault.take()? {
            return Err(kind.at(at, format.elements).in_rows(format, 0, k));
        }
        out.read(dst)
    }
}
