//! Layers in several tensors that share their input: its tokens are quantized once, and each layer reads that.
//!
//!     cargo run --release --example shared_activations

use gristmill::{
    Error, Input, Linear, LinearOptions, QuantizedMatrix, Quantizer, REGISTRY, Request, Threads, Workspace,
};

/// Ends with an error if what it computes is wrong.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two formats whose products read the same int8 rows, and one that reads blocks with scales of their own.
    let (m, k) = (2, 256);
    let threads = Threads::new(2)?;
    let query = layer("i2_s", 64, k, &threads)?;
    let key = layer("iq2_bn", 32, k, &threads)?;
    let value = layer("tq2_0", 32, k, &threads)?;
    let layers = [&query, &key, &value];

    let x: Vec<f32> = (0..m * k).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect();
    let mut workspace = Workspace::for_all(layers, m, &threads)?;
    let alone = |layer: &Linear, workspace: &mut Workspace| -> Result<Vec<f32>, Error> {
        let mut y = vec![0.0; m * layer.n()];
        layer.forward(Input::F32(&x), m, None, &mut y, workspace, &threads)?;
        Ok(y)
    };
    let expected =
        [alone(&query, &mut workspace)?, alone(&key, &mut workspace)?, alone(&value, &mut workspace)?];

    // The activations lie in the workspace until they are dropped, so what does not share them comes before or behind.
    let mut shared = 0;
    {
        let activations = query.quantize(Input::F32(&x), m, &mut workspace, &threads)?;
        for (layer, expected) in layers.into_iter().zip(&expected) {
            if !layer.shares_activations_with(&query, m) {
                continue;
            }
            let mut y = vec![0.0; m * layer.n()];
            layer.forward_quantized(&activations, None, &mut y, &threads)?;
            if y != *expected {
                return Err("activations that were quantized for another layer give something else".into());
            }
            shared += 1;
        }
    }
    println!("{shared} of {} layers read the same activations", layers.len());
    if shared != 2 {
        return Err("the query's activations are those of the key and not those of the value".into());
    }
    Ok(())
}

/// A layer of ternary weights.
fn layer(format: &str, n: usize, k: usize, threads: &Threads) -> Result<Linear, Error> {
    let weights: Vec<f32> = (0..n * k).map(|i| [-0.5, 0.0, 0.5][(i * 7 + i / k) % 3]).collect();
    let (_, info) = REGISTRY.format(format)?;
    let mut bytes = vec![0; info.tensor_bytes(n, k)?];
    let prepared = REGISTRY.prepare(&Request::quantize(format, None, n, k))?;
    Quantizer::new(&prepared.decide_as_asked())?.run(&weights, n, k, &mut bytes)?;
    Linear::new(&REGISTRY, &QuantizedMatrix::new(info, n, k, &bytes)?, &LinearOptions::default(), threads)
}
