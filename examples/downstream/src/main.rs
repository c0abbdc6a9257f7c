//! A crate with a format of its own: decide, quantize, pack, multiply, and say what ran.

use gristmill::request::Restrict;
use gristmill::vocab::Isa;
use gristmill::{
    CpuProfile, Dequantizer, Input, Matmul, QuantizedMatrix, Quantizer, Recording, Request, Shape, Threads,
    Workspace,
};

// Its only function is for x86; elsewhere the spec's variant is not compiled either.
#[cfg(target_arch = "x86_64")]
mod by_hand;

/// What `build.rs` compiled: a module for each format, and the registry of them all.
mod kernels {
    gristmill::include_kernels!();
}

use kernels::REGISTRY;

// This program makes no sense without these kernels, so it does not compile without them.
gristmill::require!(crate::kernels, matmul, q3_seq, f32, cpu);
gristmill::require!(crate::kernels, matmul, i2_s, f32, cpu);

type Failed = Box<dyn std::error::Error>;

/// Outputs and inner dimension of the layer.
const N: usize = 48;
const K: usize = 256;

fn main() -> Result<(), Failed> {
    let weights: Vec<f32> = (0..N * K).map(|i| ((i * 37 + i / 11) % 101) as f32 / 50.0 - 1.0).collect();
    let x: Vec<f32> = (0..K).map(|i| ((i * 29) % 61) as f32 / 30.0 - 1.0).collect();
    let recording = Recording::new(&REGISTRY);
    for name in ["q3_seq", "i2_s"] {
        let (_, format) = REGISTRY.format(name)?;
        println!("# {name}: {}", format.doc);
        let bytes = quantize(name, &weights, &recording)?;
        let matrix = QuantizedMatrix::new(format, N, K, &bytes)?;
        let values = dequantize(&matrix, &recording)?;
        let y = multiply(&matrix, &x, &recording)?;

        // Against the same weights in f32: what is left is the rounding of activations to int8.
        let row = |row: usize| values[row * K..][..K].iter().zip(&x).map(|(w, x)| w * x).sum::<f32>();
        let error = y.iter().enumerate().map(|(i, y)| (y - row(i)).abs()).fold(0.0, f32::max);
        let size = (0..N).map(|i| row(i).abs()).fold(0.0, f32::max);
        println!("largest error {error:.4} of values up to {size:.2}\n");
        if error.is_nan() || error > 0.02 * size {
            return Err(format!("{name}: the product is off by {error}").into());
        }
    }
    println!("{}", recording.receipt().to_json());
    Ok(())
}

fn quantize(name: &str, weights: &[f32], recording: &Recording) -> Result<Vec<u8>, Failed> {
    let prepared = REGISTRY.prepare(&Request::quantize(name, None, N, K))?;
    let mut quantizer = Quantizer::new(&prepared.decide_as_asked())?;
    quantizer.record(Some(recording))?;
    let mut bytes = vec![0; quantizer.format().tensor_bytes(N, K)?];
    quantizer.run(weights, N, K, &mut bytes)?;
    Ok(bytes)
}

/// By the best kernel there is, by the best one for AVX2 (written by hand for `q3_seq`) and by the portable
/// reference: all must give the same bits.
fn dequantize(matrix: &QuantizedMatrix<'_>, recording: &Recording) -> Result<Vec<f32>, Failed> {
    let mut reference: Option<Vec<f32>> = None;
    for isa in [Some(Isa::Scalar), Some(Isa::Avx2), None] {
        let (request, limit) =
            (Request::dequantize(matrix.format().name, N, K), Restrict { isa, ..Restrict::default() });
        let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &limit)?;
        let mut dequantizer = Dequantizer::new(&prepared.decide_as_asked())?;
        dequantizer.record(Some(recording))?;
        let mut values = vec![0.0; N * K];
        dequantizer.run(matrix, &mut values)?;
        println!("dequantized by {}", dequantizer.entry().name);
        let reference = reference.get_or_insert_with(|| values.clone());
        if values.iter().zip(reference.iter()).any(|(a, b)| a.to_bits() != b.to_bits()) {
            return Err(format!("{} gives other bits than the reference", dequantizer.entry().name).into());
        }
    }
    reference.ok_or_else(|| "nothing ran".into())
}

/// Decide once, hold the handle, run as often as there are tokens.
fn multiply(matrix: &QuantizedMatrix<'_>, x: &[f32], recording: &Recording) -> Result<Vec<f32>, Failed> {
    let prepared = REGISTRY.prepare(&Request::matmul(matrix.format().name, Shape::new(1, N, K)))?;
    let decision = prepared.decide_as_asked();
    println!("{decision}");
    let mut kernel = Matmul::new(&decision)?;
    kernel.record(Some(recording))?;
    let packed = kernel.pack(matrix)?;
    let threads = Threads::single();
    let mut workspace = Workspace::for_(&kernel, 1, K, &threads)?;
    let mut y = vec![0.0; N];
    kernel.run(&packed, Input::F32(x), 1, None, &mut y, &mut workspace, &threads)?;
    Ok(y)
}
