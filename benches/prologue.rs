//! What a prologue costs: beside the same steps as passes of their own, and as a part of the product behind it. One thread.
//!
//! Both ways take turns, so their ratio holds better than the times do. The separate passes are compiled for the processor as the
//! kernels are, and go over all rows each, as an engine does them: from its buffers to another one, which is then quantized.

use gristmill::runtime::prologue::steps;
use gristmill::{
    Error, GateFunction, Hadamard, Input, Linear, LinearOptions, Prologue, PrologueInput, QuantizedMatrix,
    Quantizer, REGISTRY, Request, Rows, Threads, Workspace,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use values::values;

#[path = "operands/values.rs"]
mod values;

/// Square, so that one product serves all steps.
const K: usize = 5120;
/// Of a Hadamard transform.
const BLOCK: usize = 1024;
const ROUNDS: usize = 200;

/// Passes over `m` rows each.
#[derive(Clone, Copy, Debug)]
enum Steps {
    Norm,
    ResidualAndNorm,
    Gate,
    /// A norm, then a signed Hadamard transform.
    NormAndTransform,
}

/// The operands of a call.
struct Operands {
    x: Vec<f32>,
    other: Vec<f32>,
    weight: Vec<f32>,
    signs: Vec<f32>,
    /// What separate passes write.
    row: Vec<f32>,
    sum: Vec<f32>,
}

/// The separate passes, compiled for the caller's features.
#[inline(always)]
fn passes(steps: Steps, of: &mut Operands) -> bool {
    let Operands { x, other, weight, signs, row, sum } = of;
    let mut right = true;
    match steps {
        Steps::Norm => {
            for (row, x) in row.chunks_mut(K).zip(x.chunks(K)) {
                row.copy_from_slice(x);
                right &= steps::rms_norm(row, weight, 1e-5).is_ok();
            }
        }
        Steps::ResidualAndNorm => {
            for ((row, x), (other, sum)) in
                row.chunks_mut(K).zip(x.chunks(K)).zip(other.chunks(K).zip(sum.chunks_mut(K)))
            {
                row.copy_from_slice(x);
                right &= steps::add(row, other, sum).is_ok();
            }
            for row in row.chunks_mut(K) {
                right &= steps::rms_norm(row, weight, 1e-5).is_ok();
            }
        }
        Steps::Gate => {
            for ((row, x), other) in row.chunks_mut(K).zip(x.chunks(K)).zip(other.chunks(K)) {
                row.copy_from_slice(x);
                right &= steps::gate(row, other, GateFunction::Silu as u32).is_ok();
            }
        }
        Steps::NormAndTransform => {
            for (row, x) in row.chunks_mut(K).zip(x.chunks(K)) {
                row.copy_from_slice(x);
                right &= steps::rms_norm(row, weight, 1e-5).is_ok();
            }
            for row in row.chunks_mut(K) {
                right &= steps::hadamard(row, Some(signs), BLOCK).is_ok();
            }
        }
    }
    right
}

#[cfg(target_arch = "x86_64")]
fn separate(steps: Steps, of: &mut Operands) -> bool {
    #[target_feature(enable = "avx512f,avx512bw")]
    fn avx512(steps: Steps, of: &mut Operands) -> bool {
        passes(steps, of)
    }
    #[target_feature(enable = "avx2,f16c")]
    fn avx2(steps: Steps, of: &mut Operands) -> bool {
        passes(steps, of)
    }
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
        // SAFETY: the processor has the features.
        unsafe { avx512(steps, of) }
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has the features.
        unsafe { avx2(steps, of) }
    } else {
        passes(steps, of)
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn separate(steps: Steps, of: &mut Operands) -> bool {
    passes(steps, of)
}

fn layer(format: &str, threads: &Threads) -> Result<Linear, Error> {
    let info = REGISTRY.format(format)?.1;
    let mut bytes = vec![0; info.tensor_bytes(K, K)?];
    let prepared = REGISTRY.prepare_from_env(&Request::quantize(format, None, K, K))?;
    Quantizer::new(&prepared.decide_as_asked())?.run(&values(K * K), K, K, &mut bytes)?;
    let matrix = QuantizedMatrix::new(info, K, K, &bytes)?;
    Linear::new(&REGISTRY, &matrix, &LinearOptions::from_env(), threads)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

fn timed(into: &mut Vec<Duration>, run: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let begin = Instant::now();
    run()?;
    into.push(begin.elapsed());
    Ok(())
}

fn main() -> Result<(), Error> {
    let threads = Threads::single();
    let signs: Vec<i8> = values(K).iter().map(|value| if *value < 0.0 { -1 } else { 1 }).collect();
    println!("format  m    steps             prologue / separate passes  prologue / product");
    for format in ["i2_s", "q4_0", "q4_k"] {
        if REGISTRY.format(format).is_err() {
            println!("{format}: skipped, this build does not hold the format");
            continue;
        }
        let layer = layer(format, &threads)?;
        for (m, rounds) in [(1, ROUNDS), (64, ROUNDS / 20)] {
            let mut workspace = layer.workspace(m, &threads)?;
            let mut y = vec![0.0; m * K];
            for steps in [Steps::Norm, Steps::ResidualAndNorm, Steps::Gate, Steps::NormAndTransform] {
                let all = || values(m * K);
                let mut of = Operands {
                    x: all(),
                    other: all(),
                    weight: values(K),
                    signs: signs.iter().map(|sign| f32::from(*sign)).collect(),
                    row: vec![0.0; m * K],
                    sum: vec![0.0; m * K],
                };
                let prologue = match steps {
                    Steps::Norm | Steps::ResidualAndNorm => Prologue::new(K).rms_norm(&of.weight, 1e-5)?,
                    Steps::Gate => Prologue::new(K).gated(GateFunction::Silu),
                    Steps::NormAndTransform => Prologue::new(K)
                        .rms_norm(&of.weight, 1e-5)?
                        .transformed(Arc::new(Hadamard::new(K, BLOCK, Some(&signs))?))?,
                };
                let (mut fused, mut apart, mut product) = (Vec::new(), Vec::new(), Vec::new());
                for _ in 0..rounds {
                    timed(&mut apart, || {
                        assert!(separate(steps, &mut of), "all values are finite");
                        layer.quantize(Input::F32(&of.row), m, &mut workspace, &threads).map(|_| ())
                    })?;
                    timed(&mut fused, || {
                        one_pass(steps, &layer, &prologue, &mut of, m, &mut workspace, &threads)
                    })?;
                    timed(&mut product, || {
                        layer.forward(Input::F32(&of.x), m, None, &mut y, &mut workspace, &threads)
                    })?;
                }
                let [fused, apart, product] = [fused, apart, product].map(median);
                let name = format!("{steps:?}");
                println!("{format:<6}  {m:<3}  {name:<16}  {:<26.2}  {:.3}", fused / apart, fused / product);
            }
        }
    }
    Ok(())
}

/// The same in one pass.
fn one_pass(
    steps: Steps,
    layer: &Linear,
    prologue: &Prologue,
    of: &mut Operands,
    m: usize,
    workspace: &mut Workspace,
    threads: &Threads,
) -> Result<(), Error> {
    let input = PrologueInput::new(Rows::dense(&of.x));
    let input = match steps {
        Steps::Norm | Steps::NormAndTransform => input,
        Steps::ResidualAndNorm => input.add(Rows::dense(&of.other), &mut of.sum),
        Steps::Gate => input.gate(Rows::dense(&of.other)),
    };
    layer.quantize_with(prologue, input, m, workspace, threads).map(|_| ())
}
