//! `gristmill bench --device cuda:0`: products whose operands stay on a GPU, launched as a graph and timed by its clock, so
//! that what is measured is the device's work and not the processor's.
//!
//! The ceiling of a product is its packed weights at the rate at which the device copies memory to memory, measured in
//! the same run; beside them stand cuBLASLt's int8 and f16 products of the same shapes. With `cold` memory, copies of the weights take turns, so that none is left in the second-level cache
//! from the run before.

use super::super::clock::median;
use super::super::error::CliError;
use super::super::random::Random;
use super::super::table::{Side, Table, measured};
use super::super::{gpu_time, print_json, progress};
use super::{Memory, Plan, cublaslt};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::half::{bf16, f16};
use gristmill::registry::FormatInfo;
use gristmill::vocab::DType;
use gristmill::{
    Device, Matmul, PackedMatrix, PrecisionMode, QuantizedMatrix, REGISTRY, Request, Shape, Threads,
};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;

/// Bytes that are copied to measure memory.
const COPY_BYTES: usize = 1 << 28;

/// One product.
struct Record {
    kernel: &'static str,
    format: &'static str,
    input: DType,
    m: usize,
    n: usize,
    k: usize,
    memory: Memory,
    /// Median of a launch, activations included.
    seconds: f64,
    /// Packed weights, each byte once.
    bytes: usize,
}

impl Record {
    fn gb_s(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }

    fn gmac_s(&self) -> f64 {
        self.m as f64 * self.n as f64 * self.k as f64 / self.seconds / 1e9
    }

    fn json(&self, device: Device, copy: f64) -> Value {
        json!({
            "kernel": self.kernel,
            "format": self.format,
            "device": device.to_string(),
            "input": self.input.name(),
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "memory": self.memory.name(),
            "seconds": self.seconds,
            "gmac_s": self.gmac_s(),
            "gb_s": self.gb_s(),
            "copy_gb_s": copy,
            "percent_of_copy": 100.0 * self.gb_s() / copy,
        })
    }
}

/// Measures what `plan` names on a GPU. Returns whether there was anything.
///
/// # Errors
/// No such device; no kernel for a format that was named.
pub fn run(
    plan: &Plan,
    device: Device,
    named: bool,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<bool, CliError> {
    let gpu = Gpu::open(device.index)?;
    let rounds = plan.effort.rounds();
    let copy = copy_rate(&gpu, rounds)?;
    let mut records = Vec::new();
    let mut left = Vec::new();
    let bar = progress::bar((plan.formats.len() * plan.shapes.len()) as u64);
    for format in &plan.formats {
        bar.set_message(format.name);
        for shape in &plan.shapes {
            bar.inc(1);
            match products(plan, &gpu, device, format, *shape, rounds, &mut records) {
                Err(error) if !named && error.is_no_kernel() => {
                    let why = error.to_string();
                    left.push(format!("{}: {}", format.name, why.lines().nth(1).unwrap_or(&why).trim()));
                }
                outcome => outcome?,
            }
        }
    }
    bar.finish_and_clear();
    let yardsticks = cublaslt::measure(plan, &gpu, rounds);
    if as_json {
        let own = records.iter().map(|record| record.json(device, copy));
        print_json(out, &own.chain(cublaslt::json(&yardsticks, device)).collect())?;
        return Ok(!records.is_empty());
    }
    let profile = gpu.profile();
    writeln!(
        out,
        "{device}: {}, compute capability {}.{}, {} multiprocessors; copies {copy:.0} GB/s (read and written)\n",
        profile.name, profile.cc.0, profile.cc.1, profile.multiprocessors
    )?;
    let mut table = Table::new(&[
        ("kernel", Side::Left),
        ("NxK", Side::Right),
        ("m", Side::Right),
        ("memory", Side::Left),
        ("us", Side::Right),
        ("GB/s", Side::Right),
        ("GMAC/s", Side::Right),
        ("% of copy", Side::Right),
    ]);
    for record in &records {
        table.row([
            record.kernel.to_owned(),
            format!("{}x{}", record.n, record.k),
            record.m.to_string(),
            record.memory.name().to_owned(),
            measured(record.seconds * 1e6),
            measured(record.gb_s()),
            measured(record.gmac_s()),
            format!("{:.0}", 100.0 * record.gb_s() / copy),
        ]);
    }
    table.print(out)?;
    writeln!(
        out,
        "\nquantizing or rounding the activations is part of each time; operands stay on the device"
    )?;
    cublaslt::print(&yardsticks, out)?;
    left.dedup();
    for line in left {
        writeln!(out, "not measured: {line}")?;
    }
    Ok(!records.is_empty())
}

/// Bytes a second, read and written, of a copy from memory to memory.
fn copy_rate(gpu: &Arc<Gpu>, rounds: usize) -> Result<f64, CliError> {
    // A small device copies less.
    let (free, _) = gpu.memory()?;
    let bytes = COPY_BYTES.min(usize::try_from(free / 4).unwrap_or(COPY_BYTES)).max(1);
    let from = DeviceBuffer::<u8>::zeroed(gpu, bytes)?;
    let mut to = DeviceBuffer::<u8>::zeroed(gpu, bytes)?;
    let mut seconds = Vec::new();
    for _ in 0..rounds {
        let ((), time) = gpu.time(|| to.copy(&from))?;
        seconds.push(time.as_secs_f64());
    }
    Ok(2.0 * bytes as f64 / median(&mut seconds) / 1e9)
}

fn products(
    plan: &Plan,
    gpu: &Arc<Gpu>,
    device: Device,
    format: &'static FormatInfo,
    (n, k): (usize, usize),
    rounds: usize,
    records: &mut Vec<Record>,
) -> Result<(), CliError> {
    let input = match plan.precision {
        PrecisionMode::F16 => DType::F16,
        PrecisionMode::Bf16 => DType::Bf16,
        PrecisionMode::Int8 | PrecisionMode::F32 | PrecisionMode::Auto => DType::F32,
    };
    let request = Request::matmul(format.name, Shape::new(1, n, k)).with_input(input).on(device);
    let request = request.with_precision(plan.precision);
    let prepared = REGISTRY.prepare(&request)?;
    let mut random = Random::new(1, format.name);
    let tensor = gpu_time::tensor(format, &mut random, n, k)?;
    let matrix = QuantizedMatrix::new(format, n, k, &tensor)?;
    let threads = Threads::new(gristmill::CpuProfile::detect().cores)?;
    let mut packed: Option<(Matmul, Vec<PackedMatrix>)> = None;
    for &m in &plan.tokens {
        let matmul = Matmul::new(&prepared.decide(Shape::new(m, n, k)))?;
        let mut weights = match packed.take() {
            Some((other, weights)) if matmul.shares_packing_with(&other) => weights,
            Some(_) | None => vec![matmul.pack_on(&matrix, &threads)?],
        };
        let bytes = weights.first().map_or(0, PackedMatrix::bytes);
        let x = random.gauss_vec(m * k, 1.0);
        let halves: Vec<u16> = match input {
            DType::F16 => x.iter().map(|x| f16::from_f32(*x).to_bits()).collect(),
            DType::Bf16 => x.iter().map(|x| bf16::from_f32(*x).to_bits()).collect(),
            DType::F32 | DType::I8 => Vec::new(),
        };
        let (x, halves) = (DeviceBuffer::of(gpu, &x)?, DeviceBuffer::of(gpu, &halves)?);
        let x = match input {
            DType::F16 => DeviceInput::F16(&halves),
            DType::Bf16 => DeviceInput::Bf16(&halves),
            DType::F32 | DType::I8 => DeviceInput::F32(&x),
        };
        let mut y = DeviceBuffer::zeroed(gpu, m * n)?;
        for &memory in &plan.memory {
            let copies = match memory {
                Memory::Hot => 1,
                Memory::Cold => gpu_time::copies(gpu, bytes),
            };
            while weights.len() < copies {
                weights.push(matmul.pack_on(&matrix, &threads)?);
            }
            let seconds = gpu_time::seconds(gpu, &matmul, &weights[..copies], x, &mut y, m, rounds)?;
            let kernel = matmul.entry().name;
            records.push(Record { input, kernel, format: format.name, m, n, k, memory, seconds, bytes });
        }
        packed = Some((matmul, weights));
    }
    Ok(())
}
