//! From a model file to layers by name: one matrix, and several that share their input.
//!
//!     cargo run --release --example gguf_layer

use gristmill::gguf::{LayerOptions, Model};
use gristmill::{Input, Threads, Workspace};
use std::path::Path;

/// Ends with an error if what it computes is wrong.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A file that lies beside the tests. Which format each tensor is in, the file says.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf/i2_s.gguf");
    let model = Model::open(path)?;
    for tensor in model.file().tensors() {
        println!("{}: {}, {:?}", tensor.name(), model.types().name_of(&tensor), tensor.dims());
    }

    // No environment variable counts here; `LayerOptions::from_env` lets them.
    let threads = Threads::new(2)?;
    let options = LayerOptions::new(&threads);
    let query = model.linear("blk.0.attn_q.weight", &options)?;
    let both = model.stacked(&["blk.0.attn_q.weight", "blk.0.attn_q.weight"], &options)?;

    // One workspace serves every layer of a model.
    let m = 3;
    let mut workspace = Workspace::for_all([&query, &both], m, &threads)?;
    let x: Vec<f32> = (0..m * query.k()).map(|i| (i % 13) as f32 / 6.0 - 1.0).collect();
    let mut y = vec![0.0; m * query.n()];
    query.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads)?;
    let mut pair = vec![0.0; m * both.n()];
    both.forward(Input::F32(&x), m, None, &mut pair, &mut workspace, &threads)?;
    println!("{} outputs of token 0: {:?}", query.n(), &y[..query.n()]);
    println!("{} bytes of packed weights", query.weight_bytes());

    // A row of a stacked layer has the outputs of the first matrix, then those of the second.
    for (token, pair) in pair.chunks(both.n()).enumerate() {
        let alone = &y[token * query.n()..][..query.n()];
        if pair[..query.n()] != *alone || pair[query.n()..] != *alone {
            return Err("a stacked layer gives something else".into());
        }
    }

    // What is not there is told by name, with what may have been meant.
    match model.linear("blk.0.attn_p.weight", &options) {
        Err(error) => println!("{error}"),
        Ok(_) => return Err("there is no such tensor".into()),
    }
    Ok(())
}
