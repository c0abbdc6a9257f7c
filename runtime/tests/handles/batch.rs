//! Products of several layers as one job.

use crate::toy::{FORMATS, REGISTRY, TAIL2, TINY8, noise, tail2, tiny8};
use gristmill_runtime::half::f16;
use gristmill_runtime::{
    Batch, Error, Executor, Input, Linear, LinearOptions, Output, QuantizedMatrix, Recording, Restrict,
    Threads, Workspace,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const K: usize = 24;

fn layer(format: usize, n: usize) -> Result<Linear, Error> {
    let bytes = if format == TAIL2 { tail2(n, K) } else { tiny8(n, K) };
    let matrix = QuantizedMatrix::new(&FORMATS[format], n, K, &bytes)?;
    let options = LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() };
    Linear::new(&REGISTRY, &matrix, &options, &Threads::single())
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

/// Threads of the program itself that count their jobs.
struct Counted(Arc<AtomicUsize>);

impl Executor for Counted {
    fn count(&self) -> usize {
        2
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        self.0.fetch_add(1, Ordering::Relaxed);
        (0..parts).rev().for_each(part);
    }
}

#[test]
fn each_product_is_what_it_is_alone() -> Result<(), Error> {
    // More than a batch holds in place, of two formats and shapes that nothing divides.
    let mut layers = Vec::new();
    for (index, n) in [9, 4, 70, 1, 33, 2, 130, 16, 3, 64, 5].into_iter().enumerate() {
        layers.push(layer(if index.is_multiple_of(3) { TINY8 } else { TAIL2 }, n)?);
    }
    let recording = Recording::new(&REGISTRY);
    for layer in &mut layers {
        layer.record(Some(&recording))?;
    }
    let (x, single) = (noise(5 * K, 3), Threads::single());
    let others = [Threads::single(), Threads::new(2)?.with_grain(1), Threads::new(5)?.with_grain(1)];
    let mut runs = 0;
    for m in [0, 1, 2, 5] {
        let input = Input::F32(&x[..m * K]);
        let mut workspaces = [layers[0].workspace(m, &single)?, layers[1].workspace(m, &single)?];
        let [steps, rows] = &mut workspaces;
        let shared =
            [layers[0].quantize(input, m, steps, &single)?, layers[1].quantize(input, m, rows, &single)?];
        let bias: Vec<Vec<f32>> = layers.iter().map(|layer| noise(layer.n(), 8)).collect();
        let x_of = |index: usize| &shared[usize::from(!index.is_multiple_of(3))];
        let mut expected = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            let mut y = vec![f32::NAN; m * layer.n()];
            layer.forward_quantized(x_of(index), Some(&bias[index]), &mut y, &single)?;
            expected.push(bits(&y));
        }
        runs += if m == 0 { 0 } else { 1 };
        for threads in &others {
            for count in [0, 1, 3, layers.len()] {
                let mut outputs: Vec<Vec<f32>> =
                    layers.iter().map(|layer| vec![f32::NAN; m * layer.n()]).collect();
                let mut batch = Batch::new();
                for (index, y) in outputs.iter_mut().enumerate().take(count) {
                    let product = layers[index].product_of(x_of(index)).bias(&bias[index]);
                    batch.push(product, Output::F32(y))?;
                }
                assert_eq!((batch.len(), batch.is_empty()), (count, count == 0));
                batch.run(threads);
                for (index, y) in outputs.iter().enumerate() {
                    if index < count {
                        assert_eq!(bits(y), expected[index], "product {index} of {count}, m = {m}");
                    } else {
                        assert!(y.iter().all(|y| y.is_nan()), "nobody asked for product {index}");
                    }
                }
            }
            runs += if m == 0 { 0 } else { 1 };
        }
    }
    // Each product is a launch: those alone, and of each kind of threads 1, 3 and 11.
    let receipt = recording.receipt();
    let products = receipt.kernels().iter().filter(|kernel| kernel.name().starts_with("matmul"));
    let launches: u64 = products.map(|kernel| kernel.launches()).sum();
    assert_eq!((launches, runs), (3 * (11 + 3 * (1 + 3 + 11)), 3 * 4));
    Ok(())
}

#[test]
fn they_are_one_job_in_any_order_of_its_parts() -> Result<(), Error> {
    let layers = [layer(TAIL2, 200)?, layer(TAIL2, 3)?, layer(TAIL2, 90)?];
    let jobs = Arc::new(AtomicUsize::new(0));
    let threads = Threads::lent(Counted(jobs.clone()))?.with_grain(1);
    let x = noise(K, 3);
    let mut workspace = layers[0].workspace(1, &threads)?;
    let shared = layers[0].quantize(Input::F32(&x), 1, &mut workspace, &Threads::single())?;
    let (mut y, mut alone) = (vec![f32::NAN; 293], vec![f32::NAN; 293]);
    let mut batch = Batch::new();
    let mut rest = &mut y[..];
    for layer in &layers {
        let (own, others) = rest.split_at_mut(layer.n());
        batch.push(layer.product_of(&shared), Output::F32(own))?;
        rest = others;
    }
    batch.run(&threads);
    assert_eq!(jobs.load(Ordering::Relaxed), 1);
    let mut at = 0;
    for layer in &layers {
        let own = &mut alone[at..][..layer.n()];
        layer.forward_quantized(&shared, None, own, &Threads::single())?;
        at += layer.n();
    }
    assert_eq!(bits(&y), bits(&alone));
    Ok(())
}

#[test]
fn products_are_stored_as_they_are_asked_for() -> Result<(), Error> {
    let threads = Threads::new(2)?.with_grain(1);
    let layers = [layer(TAIL2, 40)?, layer(TAIL2, 70)?, layer(TAIL2, 9)?];
    let x = noise(3 * K, 5);
    let mut workspace = Workspace::for_all(&layers, 3, &threads)?;
    let shared = layers[0].quantize(Input::F32(&x), 3, &mut workspace, &threads)?;
    let run = |alone: bool| {
        let (mut halves, mut sums, mut rows) = (vec![f16::ONE; 3 * 45], vec![1.5; 3 * 70], vec![-1.0; 3 * 6]);
        let products = [
            (layers[0].product_of(&shared).y_stride(45), Output::F16(&mut halves)),
            (layers[1].product_of(&shared).accumulate(), Output::F32(&mut sums)),
            (layers[2].product_of(&shared).rows(3..9), Output::F32(&mut rows)),
        ];
        let mut batch = Batch::new();
        for (product, y) in products {
            match alone {
                true => product.run(y, &mut Workspace::new(), &threads)?,
                false => batch.push(product, y)?,
            }
        }
        batch.run(&threads);
        Ok::<_, Error>((halves, sums, rows))
    };
    assert_eq!(run(false)?, run(true)?);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_the_others() -> Result<(), Error> {
    let threads = Threads::single();
    let (row, step) = (layer(TAIL2, 4)?, layer(TINY8, 4)?);
    let x = noise(K, 1);
    let mut workspace = row.workspace(1, &threads)?;
    let shared = row.quantize(Input::F32(&x), 1, &mut workspace, &threads)?;
    let (mut y, mut short, mut other, mut floats) = ([0.0; 4], [0.0; 3], [0.0; 4], [0.0; 4]);
    let mut batch = Batch::new();
    batch.push(row.product_of(&shared), Output::F32(&mut y))?;
    let refused = batch.push(row.product_of(&shared), Output::F32(&mut short));
    let (what, unit) = ("the output", "values");
    assert_eq!(refused, Err(Error::ShapeMismatch { what, unit, expected: 4, found: 3 }));
    let refused = batch.push(step.product_of(&shared), Output::F32(&mut other));
    assert!(matches!(refused, Err(Error::ActivationLayout { .. })), "{refused:?}");
    let refused = batch.push(row.product(Input::F32(&x), 1), Output::F32(&mut floats));
    assert_eq!(refused, Err(Error::NotQuantized { index: 1 }));
    assert_eq!(batch.len(), 1);
    batch.run(&threads);
    let mut alone = [0.0; 4];
    row.forward_quantized(&shared, None, &mut alone, &threads)?;
    assert_eq!((y, short, other, floats), (alone, [0.0; 3], [0.0; 4], [0.0; 4]));
    Ok(())
}
