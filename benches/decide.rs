//! What a decision costs once its request is prepared. The bound is 20 ns: a decision stands on the path of
//! every call whose shape may change.

use criterion::Criterion;
use gristmill::{Error, REGISTRY, Request, Shape};
use std::hint::black_box;

fn main() -> Result<(), Error> {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("decide");
    for format in ["i2_s", "q4_k"] {
        if REGISTRY.format(format).is_err() {
            println!("decide/{format}: skipped, this build does not hold the format");
            continue;
        }
        let prepared = REGISTRY.prepare_from_env(&Request::matmul(format, Shape::new(1, 2560, 2560)))?;
        let cases = [
            ("decode", Shape::new(1, 2560, 2560)),
            ("prefill", Shape::new(128, 2560, 2560)),
            ("refused", Shape::new(1, 2560, 2561)),
        ];
        for (name, shape) in cases {
            group.bench_function(format!("{format}/{name}"), |b| {
                b.iter(|| black_box(&prepared).decide(black_box(shape)).chosen());
            });
        }
    }
    group.finish();
    // Resolving the names of a request allocates; it is done once, before the first call.
    criterion.bench_function("prepare/i2_s", |b| {
        b.iter(|| REGISTRY.prepare(black_box(&Request::matmul("i2_s", Shape::new(1, 2560, 2560)))));
    });
    criterion.final_summary();
    Ok(())
}
