//! Quantizing, dequantizing and packing: bytes a second, against the rate at which they could be read.

use super::super::error::CliError;
use super::compare;
use super::found::Found;
use super::isa;
use super::machine::{Demand, Machine};
use super::measure::times;
use super::plan::{Measured, Memory, Plan};
use super::product::tensor;
use super::record::{Record, bits_per_weight};
use gristmill::oracle::{Oracle, Random};
use gristmill::registry::{Entry, FormatInfo};
use gristmill::vocab::Op;
use gristmill::{
    Dequantizer, Embedder, Matmul, Output, QuantizedMatrix, Quantizer, REGISTRY, Request, Shape,
};

/// Rows that are measured of larger matrices: the rate of more is the same, searching quantizers take seconds.
pub const MOST_ROWS: usize = 2560;

/// What is moved in a run.
struct Moved {
    entry: &'static Entry,
    /// Read and written.
    bytes: usize,
    /// What a rate is given in: f32 of quantizers and dequantizers, the format's bytes of packings.
    counted: usize,
    /// Of packed weights, where the op packs them.
    packed: Option<usize>,
    threads: usize,
}

/// Measures `op` for a format. Formats without a quantizer have nothing to quantize and are passed over.
pub fn measure(
    plan: &Plan,
    op: Measured,
    format: &'static FormatInfo,
    (n, k): (usize, usize),
    machine: &mut Machine,
    found: &mut Found,
) -> Result<(), CliError> {
    let n = n.min(MOST_ROWS);
    if plan.is_over() {
        found.skipped += 1;
        return Ok(());
    }
    let shape = Shape::matrix(n, k);
    let request = match op {
        Measured::Op(Op::Quantize) if format.quantizers.is_empty() => return Ok(()),
        Measured::Op(Op::Quantize) => Request::quantize(format.name, None, n, k),
        Measured::Op(Op::Dequantize) => Request::dequantize(format.name, n, k),
        Measured::Op(Op::Embed) => Request::embed(format.name, n, k),
        Measured::Pack => Request::matmul(format.name, shape),
        // Products are measured by number of tokens, and what makes activations int8 as a part of them.
        Measured::Op(Op::Matmul | Op::Prologue | Op::QuantizeActivations) => return Ok(()),
    };
    let requests = isa::requests(plan, format, &request)?;
    if !isa::some_kernel(plan, &requests, &[shape])? {
        found.none_of(plan, format);
        return Ok(());
    }
    let oracle = Oracle::new(&REGISTRY)?;
    let meaning = oracle.format(format.name)?;
    let mut random = Random::new(1, format.name);
    let bytes = tensor(&meaning, format, &mut random, n, k)?;
    let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
    match op {
        Measured::Op(Op::Quantize) => {
            let values = random.gauss_vec(n * k, 1.0);
            let mut out = vec![0; bytes.len()];
            for prepared in &requests {
                let kernel = Quantizer::new(&prepared.decide(shape))?;
                let moved = Moved {
                    entry: kernel.entry(),
                    bytes: 4 * values.len() + out.len(),
                    counted: 4 * values.len(),
                    packed: None,
                    threads: 1,
                };
                moved.measure(plan, (n, k), format, machine, found, || {
                    Ok(kernel.run(&values, n, k, &mut out)?)
                })?;
            }
        }
        Measured::Op(Op::Dequantize) => {
            let mut values = vec![0.0; n * k];
            for prepared in &requests {
                let kernel = Dequantizer::new(&prepared.decide(shape))?;
                let moved = Moved {
                    entry: kernel.entry(),
                    bytes: 4 * values.len() + bytes.len(),
                    counted: 4 * values.len(),
                    packed: None,
                    threads: 1,
                };
                moved.measure(plan, (n, k), format, machine, found, || {
                    Ok(kernel.run(&matrix, &mut values)?)
                })?;
            }
        }
        Measured::Op(Op::Embed) => {
            let mut values = vec![0.0; n * k];
            // Each row once, far from the one before it.
            let mut rows: Vec<u32> = (0..n as u32).collect();
            rows.sort_by_key(|row| row.wrapping_mul(0x9e37_79b1));
            for prepared in &requests {
                let kernel = Embedder::new(&prepared.decide(shape))?;
                let moved = Moved {
                    entry: kernel.entry(),
                    bytes: 4 * values.len() + bytes.len(),
                    counted: 4 * values.len(),
                    packed: None,
                    threads: 1,
                };
                moved.measure(plan, (n, k), format, machine, found, || {
                    Ok(kernel.run(&matrix, &rows, Output::F32(&mut values))?)
                })?;
            }
        }
        Measured::Pack => {
            for prepared in &requests {
                // A kernel of the ISA that is for other numbers of tokens.
                let Ok(kernel) = Matmul::new(&prepared.decide(shape)) else { continue };
                for count in &plan.threads {
                    let threads = plan.make_threads(*count)?;
                    let packed = kernel.pack_on(&matrix, &threads)?.bytes();
                    let moved = Moved {
                        entry: kernel.entry(),
                        bytes: bytes.len() + packed,
                        counted: bytes.len(),
                        packed: Some(packed),
                        threads: threads.count(),
                    };
                    moved.measure(plan, (n, k), format, machine, found, || {
                        kernel.pack_on(&matrix, &threads)?;
                        Ok(())
                    })?;
                }
            }
        }
        // These had no request.
        Measured::Op(Op::Matmul | Op::Prologue | Op::QuantizeActivations) => {}
    }
    Ok(())
}

impl Moved {
    fn measure(
        &self,
        plan: &Plan,
        (n, k): (usize, usize),
        format: &'static FormatInfo,
        machine: &mut Machine,
        found: &mut Found,
        mut work: impl FnMut() -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let file_bits = bits_per_weight(format.tensor_bytes(n, k)?, n, k);
        let memory_bits = self.packed.map_or(file_bits, |packed| bits_per_weight(packed, n, k));
        let demand = Demand { gmacs: 0.0, units: None, bytes: self.bytes, hot: true, threads: self.threads };
        let mut once = || {
            let times = times(plan.effort, &demand, machine, |_| work())?;
            Ok(Record {
                kernel: self.entry.name,
                id: self.entry.id,
                format: format.name,
                isa: self.entry.isa,
                m: 1,
                n,
                k,
                threads: self.threads,
                memory: Memory::Hot,
                quantizes_activations: None,
                seconds: times.seconds,
                rounds: times.rounds,
                noise: times.noise,
                gmac_s: None,
                gb_s: self.counted as f64 / times.seconds / 1e9,
                ceiling: times.ceiling,
                percent: times.percent,
                file_bits,
                memory_bits,
            })
        };
        let record = once()?;
        let record = compare::judge(plan, record, &mut found.verdicts, once)?;
        found.records.push(record);
        Ok(())
    }
}
