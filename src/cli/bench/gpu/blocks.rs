//! Quantizing and dequantizing on the GPU: against a copy there, and against this machine's processor with nothing left
//! out, the way of the operands to the device and back included.

use super::super::super::clock::median;
use super::super::super::error::CliError;
use super::super::super::gpu_time::{self, Times};
use super::super::super::table::{Side, Table, measured};
use super::super::base::Compared;
use super::super::compare::{self, Verdict};
use super::super::plan::Memory;
use super::bench::Bench;
use gristmill::cuda::{DeviceBuffer, Gpu, GpuQuantizer};
use gristmill::oracle::Random;
use gristmill::registry::{FormatInfo, KernelId};
use gristmill::vocab::Op;
use gristmill::{Dequantizer, Device, Error, QuantizedMatrix, Quantizer, REGISTRY, Request, Shape};
use gristmill_records::bench::GpuConversion;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Elements of larger tensors that are measured: the rate of more is the same.
const MOST_ELEMENTS: usize = 1 << 26;
/// Elements that the processor converts: searching quantizers take a second for so many.
const PROCESSOR_ELEMENTS: usize = 1 << 20;
/// Time for the processor's runs, if that allows for more than one.
const PROCESSOR_TIME: Duration = Duration::from_millis(200);

/// One conversion.
pub struct Record {
    op: &'static str,
    pub(super) kernel: &'static str,
    id: KernelId,
    pub(super) format: &'static str,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) memory: Memory,
    /// Of a launch with both operands on the device.
    pub(super) times: Times,
    /// 1e9 bytes a second of a copy on the device.
    copy: f64,
    /// Read and written.
    bytes: usize,
    /// Median with both operands in the processor's memory.
    from_host: f64,
    /// The processor's kernel, and its median seconds for so many elements, on one thread.
    processor: (&'static str, f64),
}

impl Record {
    fn gb_s(&self) -> f64 {
        self.bytes as f64 / self.times.seconds / 1e9
    }

    pub fn line(&self, gpu: &Gpu, device: Device) -> GpuConversion {
        let (processor, seconds) = self.processor;
        GpuConversion {
            at: None,
            compiler: None,
            op: self.op.to_owned(),
            kernel: self.kernel.to_owned(),
            id: Some(self.id.to_string()),
            format: self.format.to_owned(),
            device: device.to_string(),
            machine: Some(gristmill::tuning::gpu(gpu.profile())),
            n: self.n as u64,
            k: self.k as u64,
            memory: self.memory.name().to_owned(),
            seconds: self.times.seconds,
            rounds: self.times.rounds.clone(),
            gb_s: self.gb_s(),
            copy_gb_s: self.copy,
            percent_of_copy: 100.0 * self.gb_s() / self.copy,
            seconds_with_copies: self.from_host,
            cpu_kernel: processor.to_owned(),
            cpu_seconds: seconds,
            times_cpu: seconds / self.times.seconds,
            times_cpu_with_copies: seconds / self.from_host,
        }
    }
}

/// A record with the device that it was measured on, to be compared.
struct Made<'b> {
    record: Record,
    gpu: &'b Gpu,
    device: Device,
}

impl compare::Measured for Made<'_> {
    fn compared(&self) -> Compared {
        Compared::of_conversion(&self.record.line(self.gpu, self.device))
    }
}

/// A table of them.
///
/// # Errors
/// Those of `out`.
pub fn print(records: &[Record], out: &mut dyn Write) -> io::Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let mut table = Table::new(&[
        ("kernel", Side::Left),
        ("NxK", Side::Right),
        ("memory", Side::Left),
        ("us", Side::Right),
        ("GB/s", Side::Right),
        ("% of copy", Side::Right),
        ("x cpu", Side::Right),
        ("us with copies", Side::Right),
        ("x cpu", Side::Right),
        ("cpu", Side::Left),
    ]);
    for record in records {
        let (processor, seconds) = record.processor;
        table.row([
            record.kernel.to_owned(),
            format!("{}x{}", record.n, record.k),
            record.memory.name().to_owned(),
            measured(record.times.seconds * 1e6),
            measured(record.gb_s()),
            format!("{:.0}", 100.0 * record.gb_s() / record.copy),
            measured(seconds / record.times.seconds),
            measured(record.from_host * 1e6),
            measured(seconds / record.from_host),
            processor.to_owned(),
        ]);
    }
    table.print(out)?;
    writeln!(
        out,
        "\nGB/s: read and written; with copies: from the processor's memory and back to it\n\
         x cpu: times as fast as this machine's processor, one thread, measured in this run"
    )
}

/// Median seconds that `work` takes by this processor's clock.
fn median_of(least: usize, mut work: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut times = Vec::new();
    let started = Instant::now();
    while times.len() < least || (started.elapsed() < PROCESSOR_TIME && times.len() < 100) {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(median(&mut times))
}

impl Bench<'_> {
    /// Measures how a format is made of f32, or made f32 of. Formats without a quantizer are passed over.
    ///
    /// # Errors
    /// No kernel for it; what the device refuses.
    pub fn conversion(
        &self,
        op: Op,
        format: &'static FormatInfo,
        (n, k): (usize, usize),
        records: &mut Vec<Record>,
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), CliError> {
        if format.quantizers.is_empty() {
            return Ok(());
        }
        let n = n.min(MOST_ELEMENTS / k).max(1);
        let few = n.min(PROCESSOR_ELEMENTS / k).max(1);
        let mut random = Random::new(1, format.name);
        let bytes = gpu_time::tensor(format, &mut random, n, k)?;
        // Values repeat after a while, which no kernel can notice.
        let distinct = random.gauss_vec(few * k, 1.0);
        let mut values: Vec<f32> = distinct.iter().copied().cycle().take(n * k).collect();
        let (kernel, from_host, processor) = match op {
            Op::Quantize => {
                let prepared = |device, n| {
                    self.plan.environment.prepare(&Request::quantize(format.name, None, n, k).on(device))
                };
                let (there, here) = (prepared(self.device, n)?, prepared(Device::CPU, few)?);
                let there = Quantizer::new(&there.decide(Shape::matrix(n, k)))?;
                let here = Quantizer::new(&here.decide(Shape::matrix(few, k)))?;
                let mut out = vec![0; bytes.len()];
                let from_host = median_of(self.rounds, || there.run(&values, n, k, &mut out))?;
                let mut out = vec![0; format.tensor_bytes(few, k)?];
                let seconds = median_of(1, || here.run(&distinct, few, k, &mut out))?;
                (there.entry(), from_host, (here.entry().name, seconds))
            }
            Op::Dequantize => {
                let prepared = |device, n| {
                    self.plan.environment.prepare(&Request::dequantize(format.name, n, k).on(device))
                };
                let (there, here) = (prepared(self.device, n)?, prepared(Device::CPU, few)?);
                let there = Dequantizer::new(&there.decide(Shape::matrix(n, k)))?;
                let here = Dequantizer::new(&here.decide(Shape::matrix(few, k)))?;
                let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
                let from_host = median_of(self.rounds, || there.run(&matrix, &mut values))?;
                let bytes = gpu_time::tensor(format, &mut random, few, k)?;
                let matrix = QuantizedMatrix::new(format, few, k, &bytes)?;
                let few = values.get_mut(..few * k).unwrap_or_default();
                let seconds = median_of(1, || here.run(&matrix, few))?;
                (there.entry(), from_host, (here.entry().name, seconds))
            }
            _ => return Ok(()),
        };
        let mut quantizer = GpuQuantizer::new(&REGISTRY, format.name, None, self.device.index)?;
        let moved = 4 * values.len() + bytes.len();
        let mut buffers = Vec::new();
        for &memory in &self.plan.memory {
            let copies = match memory {
                Memory::Hot => 1,
                Memory::Cold => gpu_time::copies(self.gpu, moved),
            };
            while buffers.len() < copies {
                buffers.push((DeviceBuffer::of(self.gpu, &values)?, DeviceBuffer::of(self.gpu, &bytes)?));
            }
            let (kind, seconds_here) = processor;
            // The same number of elements on both sides.
            let processor = (kind, seconds_here * n as f64 / few as f64);
            let mut once = || {
                let times = gpu_time::in_graph(self.gpu, copies, self.rounds, |turn| {
                    let Some((values, bytes)) = buffers.get_mut(turn) else { return Ok(()) };
                    match op {
                        Op::Quantize => quantizer.quantize(values, n, k, bytes),
                        _ => quantizer.dequantize(bytes, n, k, values),
                    }
                })?;
                quantizer.finish()?;
                let (op, format, copy) = (op.name(), format.name, self.copy);
                let record = Record {
                    op,
                    kernel: kernel.name,
                    id: kernel.id,
                    format,
                    n,
                    k,
                    memory,
                    times,
                    copy,
                    bytes: moved,
                    from_host,
                    processor,
                };
                Ok(Made { record, gpu: self.gpu, device: self.device })
            };
            let made = once()?;
            records.push(compare::judge(self.plan, made, verdicts, once)?.record);
        }
        Ok(())
    }
}
