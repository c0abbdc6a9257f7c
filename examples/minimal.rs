//! One quantized product: quantize a matrix, choose a kernel, pack the weights, multiply.
//!
//!     cargo run --release --example minimal

use gristmill::{Input, Matmul, QuantizedMatrix, Quantizer, REGISTRY, Request, Shape, Threads, Workspace};

/// Ends with an error if what it computes is wrong.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (m, n, k) = (1, 64, 256);
    let weights: Vec<f32> = (0..n * k).map(|i| [-0.5, 0.0, 0.5][i * 7 % 3]).collect();
    let x: Vec<f32> = (0..m * k).map(|i| (i % 11) as f32 - 5.0).collect();

    // f32 to the bytes of a format.
    let (_, format) = REGISTRY.format("i2_s")?;
    let prepared = REGISTRY.prepare(&Request::quantize("i2_s", None, n, k))?;
    let mut bytes = vec![0; format.tensor_bytes(n, k)?];
    Quantizer::new(&prepared.decide_as_asked())?.run(&weights, n, k, &mut bytes)?;
    let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;

    // Names and features are resolved once; a shape then only compares numbers.
    let threads = Threads::single();
    let shape = Shape::new(m, n, k);
    let prepared = REGISTRY.prepare(&Request::matmul("i2_s", shape))?;
    let decision = prepared.decide(shape);
    let matmul = Matmul::new(&decision)?;
    println!("{}: {:.2} bits per weight", matmul.entry().name, decision.memory(&threads)?.bits_per_weight);

    // Weights are packed when they are loaded; a run allocates nothing.
    let packed = matmul.pack(&matrix)?;
    let mut workspace = Workspace::for_(&matmul, m, k, &threads)?;
    let mut y = vec![0.0; m * n];
    matmul.run(&packed, Input::F32(&x), m, None, &mut y, &mut workspace, &threads)?;

    let exact: f32 = weights[..k].iter().zip(&x).map(|(w, x)| w * x).sum();
    println!("y[0] = {} (in f32: {exact})", y[0]);
    if (y[0] - exact).abs() > 0.02 * k as f32 {
        return Err("the product is wrong".into());
    }
    Ok(())
}
