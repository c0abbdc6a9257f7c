//! `gristmill bench --device cuda:0`: work whose operands stay on a GPU, launched as a graph and timed by its clock, so
//! that what is measured is the device's work and not the processor's.
//!
//! Beside it stand a copy from memory to memory, cuBLASLt's products, this machine's processor, and what others have
//! published. With `cold` memory, copies of the operands take turns, so that none is left in the second-level cache
//! from the run before.

mod bench;
mod blocks;
mod cublaslt;
mod products;
mod published;

use super::super::clock::{median, now};
use super::super::error::CliError;
use super::super::json::print_json;
use super::super::progress;
use super::compare::Verdict;
use super::plan::{Measured, Plan};
use bench::Bench;
use cublaslt::Yardsticks;
use gristmill::Device;
use gristmill::cuda::{DeviceBuffer, Gpu};
use gristmill::vocab::Op;
use gristmill_records::bench::{GpuConversion, GpuProduct, Line};
use std::io::Write;
use std::sync::Arc;

/// Bytes that are copied to measure memory.
const COPY_BYTES: usize = 1 << 28;

/// Shapes that are measured where none are named: BitNet b1.58 2B-4T's, and those that others have published.
pub const SHAPES: &[(usize, usize)] =
    &[(2560, 2560), (6912, 2560), (2560, 6912), (13_824, 2560), (20_480, 3200), (128_256, 2560)];
/// Numbers of tokens.
pub const TOKENS: &[usize] = &[1, 8, 64, 512, 1024, 2048];

/// Measures what `plan` names on a GPU. Returns whether there was anything, and how it compares with the base, where there is one.
///
/// # Errors
/// No such device; no kernel for a format and an op that were named; a base of another GPU.
pub fn run(
    plan: &Plan,
    device: Device,
    named: bool,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<(bool, Vec<Verdict>), CliError> {
    let gpu = Gpu::open(device.index)?;
    same_gpu(plan, &gpu)?;
    let rounds = plan.effort.rounds();
    let copy = copy_rate(&gpu, rounds)?;
    let bench = Bench { plan, gpu: &gpu, device, rounds, copy };
    let mut verdicts = Vec::new();
    let (mut products, mut conversions) = (Vec::new(), Vec::new());
    let mut left = Vec::new();
    let bar = progress::bar((plan.formats.len() * plan.shapes.len()) as u64);
    for format in &plan.formats {
        bar.set_message(format.name);
        for shape in &plan.shapes {
            bar.inc(1);
            for op in &plan.ops {
                let outcome = match op {
                    Measured::Op(op) if op.info().product => {
                        bench.products(format, *shape, &mut products, &mut verdicts)
                    }
                    Measured::Op(op @ (Op::Quantize | Op::Dequantize)) => {
                        bench.conversion(*op, format, *shape, &mut conversions, &mut verdicts)
                    }
                    Measured::Op(op) => {
                        return Err(CliError::usage(
                            format!(
                                "--op {op}: its operands come from the processor's memory, which is what would be measured"
                            ),
                            "measure it with --device cpu",
                        ));
                    }
                    Measured::Pack => {
                        return Err(CliError::usage(
                            "--op pack: weights for a GPU are packed by the processor",
                            "measure it with --device cpu",
                        ));
                    }
                };
                match outcome {
                    // What is asked for by name alone has to be there.
                    Err(error) if error.is_no_kernel() && !(named && plan.ops.len() == 1) => {
                        let why = error.to_string();
                        left.push(format!("{}: {}", format.name, why.lines().nth(1).unwrap_or(&why).trim()));
                    }
                    outcome => outcome?,
                }
            }
        }
    }
    bar.finish_and_clear();
    let yardsticks = match plan.ops.contains(&Measured::MATMUL) {
        true => cublaslt::measure(plan, &gpu, bench.rounds),
        false => Yardsticks::none(),
    };
    let any = !products.is_empty() || !conversions.is_empty();
    let others = published::beside(plan);
    if as_json {
        // What a history keeps them by.
        let (at, compiler) = (Some(now()), Some(gristmill::kernels::COMPILER.to_owned()));
        let products = products.iter().map(|record| {
            let line = record.line(&gpu, device, &yardsticks);
            Line::GpuProduct(GpuProduct { at, compiler: compiler.clone(), ..line })
        });
        let conversions = conversions.iter().map(|record| {
            let line = record.line(&gpu, device);
            Line::GpuConversion(GpuConversion { at, compiler: compiler.clone(), ..line })
        });
        let beside = yardsticks.lines(device).into_iter().chain(published::lines(&others));
        let all: Vec<Line> = products.chain(conversions).chain(beside).collect();
        print_json(out, &all)?;
        return Ok((any, verdicts));
    }
    let profile = gpu.profile();
    writeln!(
        out,
        "{device}: {}, compute capability {}.{}, {} multiprocessors; copies {copy:.0} GB/s (read and written)\n",
        profile.name, profile.cc.0, profile.cc.1, profile.multiprocessors
    )?;
    products::print(&products, &yardsticks, out)?;
    blocks::print(&conversions, out)?;
    yardsticks.print(out)?;
    published::print(&others, out)?;
    left.dedup();
    for line in left {
        writeln!(out, "not measured: {line}")?;
    }
    Ok((any, verdicts))
}

/// Refuses a base whose records are of another GPU. Older ones did not say of which they are.
fn same_gpu(plan: &Plan, gpu: &Gpu) -> Result<(), CliError> {
    let this = gristmill::tuning::gpu(gpu.profile());
    match plan.base.as_ref().and_then(|base| base.gpus.iter().find(|other| **other != this)) {
        None => Ok(()),
        Some(other) => Err(CliError::usage(
            format!("the base was measured on `{other}`, this is `{this}`"),
            "compare with records of this GPU and driver; other ones say nothing of what changed",
        )),
    }
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
