//! A format of one's own beside the shipped ones: compiled in place, joined with their registry, and run by the same code.
//!
//!     cargo run --release --example custom_format

use gristmill::{
    Input, Linear, LinearOptions, QuantizedMatrix, Quantizer, Recording, Registry, Request, Restrict, Threads,
};

mod custom {
    // `custom_format`, in this crate: kernels for every instruction set, and their registry.
    gristmill::kernel!("examples/custom_format.toml");
}

/// Outputs and inputs of the layers.
const N: usize = 40;
const K: usize = 256;

/// Ends with an error if what it computes is wrong.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Once in a program. Kernels of the first registry come before those of the next.
    let registry = Registry::joined(&[&custom::REGISTRY, &gristmill::REGISTRY])?;
    let threads = Threads::new(2)?;
    let recording = Recording::new(registry);
    let weights: Vec<f32> = (0..N * K).map(|i| ((i * 37 + i / 11) % 101) as f32 / 50.0 - 1.0).collect();
    let x: Vec<f32> = (0..K).map(|i| ((i * 29) % 61) as f32 / 30.0 - 1.0).collect();
    for (name, most) in [("custom_format", 0.1), ("q8_0", 0.02)] {
        let (_, format) = registry.format(name)?;
        let prepared = registry.prepare(&Request::quantize(name, None, N, K))?;
        let mut bytes = vec![0; format.tensor_bytes(N, K)?];
        Quantizer::new(&prepared.decide_as_asked())?.run(&weights, N, K, &mut bytes)?;

        let options = LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() };
        let matrix = QuantizedMatrix::new(format, N, K, &bytes)?;
        let mut layer = Linear::new(registry, &matrix, &options, &threads)?;
        layer.record(Some(&recording))?;
        let (mut y, mut workspace) = (vec![0.0; N], layer.workspace(1, &threads)?);
        layer.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads)?;

        // Against the weights before they were quantized: what is left is the rounding of weights and activations.
        let (mut error, mut size) = (0.0, 0.0);
        for (row, y) in y.iter().enumerate() {
            let exact: f32 = weights[row * K..][..K].iter().zip(&x).map(|(w, x)| w * x).sum();
            error += (y - exact).powi(2);
            size += exact.powi(2);
        }
        println!("{name}: error {:.1e} of the outputs", (error / size).sqrt());
        if error.is_nan() || error > most * most * size {
            return Err(format!("{name}: the product is off").into());
        }
    }
    for kernel in recording.receipt().kernels() {
        println!("{:>2} x {} of {}", kernel.launches(), kernel.name(), kernel.package());
    }
    let packages: Vec<&str> = recording.receipt().kernels().iter().map(|kernel| kernel.package()).collect();
    match packages.contains(&"gristmill") && packages.contains(&"gristmill-kernels") {
        true => Ok(()),
        false => Err(format!("kernels of {packages:?} ran").into()),
    }
}
