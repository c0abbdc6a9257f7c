//! Throughput of generated kernels through their safe handles, one thread, operands hot in cache.
//!
//! The best kernel that decide gives on this machine is what is measured; its name is in the id. The
//! environment (`GRISTMILL_ISA`) restricts the choice as everywhere else. `gristmill bench` compares kernels
//! with the machine's ceilings; these benches compare them with their own past (`--save-baseline`).

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use gristmill::{
    Dequantizer, Error, Input, Matmul, QuantizedMatrix, Quantizer, REGISTRY, Request, Shape, Threads,
    Workspace,
};
use std::time::Duration;
use values::values;

#[path = "operands/values.rs"]
mod values;

/// Ternary with one integer sum a row, radix three, 4 and 8 bits by block, super-blocks with minima, a table.
const FORMATS: &[&str] = &["i2_s", "tq2_0", "tq1_0", "q4_0", "q8_0", "q4_k", "iq4_nl"];

/// The attention output projection of BitNet b1.58 2B-4T.
const N: usize = 2560;
const K: usize = 2560;

fn main() -> Result<(), Error> {
    let mut criterion = Criterion::default().configure_from_args();
    let formats: Vec<&str> = FORMATS
        .iter()
        .copied()
        .filter(|format| {
            let held = REGISTRY.format(format).is_ok();
            if !held {
                println!("{format}: skipped, this build does not hold the format");
            }
            held
        })
        .collect();
    let per_op: [(&str, Bench); 4] =
        [("quantize", quantize), ("dequantize", dequantize), ("pack", pack), ("matmul", matmul)];
    for (op, bench) in per_op {
        let mut group = criterion.benchmark_group(op);
        group
            .sample_size(20)
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_secs(1));
        for format in &formats {
            bench(&mut group, format)?;
        }
        group.finish();
    }
    criterion.final_summary();
    Ok(())
}

type Bench = fn(&mut BenchmarkGroup<'_, WallTime>, &str) -> Result<(), Error>;

/// A weight matrix of `N` by `K`: quantized where the format has a quantizer, else bytes that are valid blocks
/// (the formats here without one give every code a value, and bytes below 0x40 make finite f16 scales).
fn weights(format: &str) -> Result<Vec<u8>, Error> {
    let (_, info) = REGISTRY.format(format)?;
    let mut bytes = vec![0; info.tensor_bytes(N, K)?];
    if info.quantizers.is_empty() {
        for (byte, value) in bytes.iter_mut().zip(values(N * K)) {
            *byte = (value.abs() * 63.0) as u8;
        }
    } else {
        quantizer(format)?.run(&values(N * K), N, K, &mut bytes)?;
    }
    Ok(bytes)
}

fn quantizer(format: &str) -> Result<Quantizer, Error> {
    Quantizer::new(&REGISTRY.prepare_from_env(&Request::quantize(format, None, N, K))?.decide_as_asked())
}

/// f32 read a second.
fn quantize(group: &mut BenchmarkGroup<'_, WallTime>, format: &str) -> Result<(), Error> {
    let (_, info) = REGISTRY.format(format)?;
    if info.quantizers.is_empty() {
        return Ok(());
    }
    let kernel = quantizer(format)?;
    let source = values(N * K);
    let mut bytes = vec![0; info.tensor_bytes(N, K)?];
    kernel.run(&source, N, K, &mut bytes)?;
    group.throughput(Throughput::Bytes((4 * N * K) as u64));
    group.bench_function(kernel.entry().name, |b| b.iter(|| kernel.run(&source, N, K, &mut bytes)));
    Ok(())
}

/// f32 written a second.
fn dequantize(group: &mut BenchmarkGroup<'_, WallTime>, format: &str) -> Result<(), Error> {
    let (_, info) = REGISTRY.format(format)?;
    let bytes = weights(format)?;
    let matrix = QuantizedMatrix::new(info, N, K, &bytes)?;
    let kernel =
        Dequantizer::new(&REGISTRY.prepare_from_env(&Request::dequantize(format, N, K))?.decide_as_asked())?;
    let mut out = vec![0.0; N * K];
    kernel.run(&matrix, &mut out)?;
    group.throughput(Throughput::Bytes((4 * N * K) as u64));
    group.bench_function(kernel.entry().name, |b| b.iter(|| kernel.run(&matrix, &mut out)));
    Ok(())
}

/// Bytes of the format read a second, on the way into the kernel's packing.
fn pack(group: &mut BenchmarkGroup<'_, WallTime>, format: &str) -> Result<(), Error> {
    let (_, info) = REGISTRY.format(format)?;
    let bytes = weights(format)?;
    let matrix = QuantizedMatrix::new(info, N, K, &bytes)?;
    let shape = Shape::new(1, N, K);
    let kernel = Matmul::new(&REGISTRY.prepare_from_env(&Request::matmul(format, shape))?.decide(shape))?;
    let packed = kernel.pack(&matrix)?;
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    let id = BenchmarkId::new(format, packed.packing().unwrap_or("rows"));
    group.bench_function(id, |b| b.iter(|| kernel.pack(&matrix)));
    Ok(())
}

/// Multiply-accumulates a second, with the quantization of f32 activations and without (`i8`).
fn matmul(group: &mut BenchmarkGroup<'_, WallTime>, format: &str) -> Result<(), Error> {
    let (_, info) = REGISTRY.format(format)?;
    let bytes = weights(format)?;
    let matrix = QuantizedMatrix::new(info, N, K, &bytes)?;
    let prepared = REGISTRY.prepare_from_env(&Request::matmul(format, Shape::new(1, N, K)))?;
    let threads = Threads::single();
    let blocks =
        REGISTRY.activations.get(info.activations).and_then(|info| info.block).map_or(1, |block| K / block);
    for m in [1, 32] {
        let kernel = Matmul::new(&prepared.decide(Shape::new(m, N, K)))?;
        let packed = kernel.pack(&matrix)?;
        let mut workspace = Workspace::for_(&kernel, m, K, &threads)?;
        let mut y = vec![0.0; m * N];
        let x = values(m * K);
        let q: Vec<i8> = x.iter().map(|x| (x * 127.0) as i8).collect();
        let scales = vec![1.0 / 127.0; m * blocks];
        group.throughput(Throughput::Elements((m * N * K) as u64));
        for (name, input) in [("f32", Input::F32(&x)), ("i8", Input::I8 { q: &q, scales: &scales })] {
            kernel.run(&packed, input, m, None, &mut y, &mut workspace, &threads)?;
            let id = BenchmarkId::new(kernel.entry().name, format!("m={m}/{name}"));
            group.bench_function(id, |b| {
                b.iter(|| kernel.run(&packed, input, m, None, &mut y, &mut workspace, &threads));
            });
        }
    }
    // Activation quantization alone is what the f32 row adds to the i8 row.
    Ok(())
}
