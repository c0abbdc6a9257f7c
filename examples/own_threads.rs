//! Layers on the program's own threads: here those of rayon (with the feature `rayon`), and threads behind a trait.
//!
//!     cargo run --release --features rayon --example own_threads

use gristmill::gguf::{LayerOptions, Model};
use gristmill::{Executor, Input, RayonGlobal, Threads};
use std::path::Path;
use std::sync::Arc;

/// Threads for each job. An engine would hand the parts to threads that it keeps.
struct Scoped(usize);

impl Executor for Scoped {
    fn count(&self) -> usize {
        self.0
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for thread in 1..self.0 {
                scope.spawn(move || (thread..parts).step_by(self.0).for_each(part));
            }
            (0..parts).step_by(self.0).for_each(part);
        });
    }
}

/// Ends with an error if what it computes is wrong.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf/i2_s.gguf");
    let model = Model::open(path)?;
    let outputs = |threads: &Threads| -> Result<Vec<u32>, Box<dyn std::error::Error>> {
        let layer = model.linear("blk.0.attn_q.weight", &LayerOptions::new(threads))?;
        let m = 64;
        let mut workspace = layer.workspace(m, threads)?;
        let x: Vec<f32> = (0..m * layer.k()).map(|i| (i % 13) as f32 / 6.0 - 1.0).collect();
        let mut y = vec![f32::NAN; m * layer.n()];
        layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, threads)?;
        Ok(y.into_iter().map(f32::to_bits).collect())
    };

    let alone = outputs(&Threads::single())?;
    // A grain so small that even these products are divided.
    let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(3).build()?);
    let lent = [Threads::lent(Arc::clone(&pool))?, Threads::lent(RayonGlobal)?, Threads::lent(Scoped(2))?];
    for threads in lent.map(|threads| threads.with_grain(1)) {
        println!("{} threads", threads.count());
        if outputs(&threads)? != alone {
            return Err("other threads give other bits".into());
        }
    }
    println!("the pool is still the program's: {}", pool.install(|| (0..10).sum::<i32>()));
    Ok(())
}
