//! Products whose operands stay on the GPU.
//!
//! The ceiling of a product is its weights, as large as in a file, at the rate at which the device copies memory to memory;
//! beside them stand cuBLASLt's int8 and f16 products of the same shapes.

use super::super::super::error::CliError;
use super::super::super::gpu_time::{self, Times};
use super::super::super::table::{Side, Table, measured};
use super::super::base::Compared;
use super::super::compare::{self, Verdict};
use super::super::plan::Memory;
use super::super::record::bits_per_weight;
use super::bench::Bench;
use super::cublaslt::{Kind, Yardsticks};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::half::{bf16, f16};
use gristmill::oracle::Random;
use gristmill::registry::{FormatInfo, KernelId};
use gristmill::vocab::DType;
use gristmill::{Device, Matmul, PackedMatrix, PrecisionMode, QuantizedMatrix, Request, Shape, Threads};
use gristmill_records::bench::GpuProduct;
use std::io::{self, Write};

/// One product.
pub struct Record {
    pub(super) kernel: &'static str,
    id: KernelId,
    pub(super) format: &'static str,
    input: DType,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) memory: Memory,
    /// Of a launch, activations included.
    pub(super) times: Times,
    /// 1e9 bytes a second of a copy on the device.
    copy: f64,
    /// What the weights take in a file, each byte once.
    bytes: usize,
    /// What they take on the device.
    packed_bytes: usize,
}

impl Record {
    fn gb_s(&self) -> f64 {
        self.bytes as f64 / self.times.seconds / 1e9
    }

    fn gmac_s(&self) -> f64 {
        self.m as f64 * self.n as f64 * self.k as f64 / self.times.seconds / 1e9
    }

    /// Its rate in percent of cuBLASLt's, where that was measured.
    fn percent_of(&self, yardsticks: &Yardsticks, kind: Kind) -> Option<f64> {
        let theirs = yardsticks.seconds(kind, (self.m, self.n, self.k), self.memory)?;
        Some(100.0 * theirs / self.times.seconds)
    }

    pub fn line(&self, gpu: &Gpu, device: Device, yardsticks: &Yardsticks) -> GpuProduct {
        GpuProduct {
            at: None,
            compiler: None,
            op: "matmul".to_owned(),
            kernel: self.kernel.to_owned(),
            id: Some(self.id.to_string()),
            format: self.format.to_owned(),
            device: device.to_string(),
            machine: Some(gristmill::tuning::gpu(gpu.profile())),
            input: self.input.name().to_owned(),
            m: self.m as u64,
            n: self.n as u64,
            k: self.k as u64,
            memory: self.memory.name().to_owned(),
            seconds: self.times.seconds,
            rounds: self.times.rounds.clone(),
            gmac_s: self.gmac_s(),
            gb_s: self.gb_s(),
            copy_gb_s: self.copy,
            percent_of_copy: 100.0 * self.gb_s() / self.copy,
            file_bits_per_weight: bits_per_weight(self.bytes, self.n, self.k),
            memory_bits_per_weight: bits_per_weight(self.packed_bytes, self.n, self.k),
            percent_of_cublaslt_int8: self.percent_of(yardsticks, Kind::Int8),
            percent_of_cublaslt_f16: self.percent_of(yardsticks, Kind::F16),
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
        Compared::of_product(&self.record.line(self.gpu, self.device, &Yardsticks::none()))
    }
}

/// A table of them.
///
/// # Errors
/// Those of `out`.
pub fn print(records: &[Record], yardsticks: &Yardsticks, out: &mut dyn Write) -> io::Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        ("kernel", Side::Left),
        ("NxK", Side::Right),
        ("m", Side::Right),
        ("memory", Side::Left),
        ("bits", Side::Right),
        ("us", Side::Right),
        ("GB/s", Side::Right),
        ("GMAC/s", Side::Right),
        ("% of copy", Side::Right),
        ("% of int8", Side::Right),
        ("% of f16", Side::Right),
    ]);
    let percent = |percent: Option<f64>| percent.map_or("-".to_owned(), |percent| format!("{percent:.0}"));
    for record in records {
        table.row([
            record.kernel.to_owned(),
            format!("{}x{}", record.n, record.k),
            record.m.to_string(),
            record.memory.name().to_owned(),
            format!("{:.2}", bits_per_weight(record.packed_bytes, record.n, record.k)),
            measured(record.times.seconds * 1e6),
            measured(record.gb_s()),
            measured(record.gmac_s()),
            percent(Some(100.0 * record.gb_s() / record.copy)),
            percent(record.percent_of(yardsticks, Kind::Int8)),
            percent(record.percent_of(yardsticks, Kind::F16)),
        ]);
    }
    table.print(out)?;
    writeln!(
        out,
        "\nquantizing or rounding the activations is part of each time; operands stay on the device\n\
         GB/s and % of copy count the bytes that the weights take in a file; bits are those of a weight on the device\n\
         % of int8 and of f16: of the rate of cuBLASLt's product of the same shape"
    )
}

impl Bench<'_> {
    /// Measures a format's products of a shape.
    ///
    /// # Errors
    /// No kernel for it; what the device refuses.
    pub fn products(
        &self,
        format: &'static FormatInfo,
        (n, k): (usize, usize),
        records: &mut Vec<Record>,
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), CliError> {
        let Bench { plan, gpu, device, rounds, copy } = *self;
        let input = match plan.precision {
            PrecisionMode::F16 => DType::F16,
            PrecisionMode::Bf16 => DType::Bf16,
            PrecisionMode::Int8 | PrecisionMode::F32 | PrecisionMode::Fp4 | PrecisionMode::Auto => DType::F32,
        };
        let request = Request::matmul(format.name, Shape::new(1, n, k)).with_input(input).on(device);
        let request = request.with_precision(plan.precision);
        let prepared = plan.environment.prepare(&request)?;
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
            let packed_bytes = weights.first().map_or(0, PackedMatrix::bytes);
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
                    Memory::Cold => gpu_time::copies(gpu, packed_bytes),
                };
                while weights.len() < copies {
                    weights.push(matmul.pack_on(&matrix, &threads)?);
                }
                let mut once = || {
                    let times = gpu_time::seconds(gpu, &matmul, &weights[..copies], x, &mut y, m, rounds)?;
                    let record = Record {
                        input,
                        kernel: matmul.entry().name,
                        id: matmul.entry().id,
                        format: format.name,
                        m,
                        n,
                        k,
                        memory,
                        times,
                        copy,
                        bytes: tensor.len(),
                        packed_bytes,
                    };
                    Ok(Made { record, gpu, device })
                };
                let made = once()?;
                records.push(compare::judge(plan, made, verdicts, once)?.record);
            }
            packed = Some((matmul, weights));
        }
        Ok(())
    }
}
