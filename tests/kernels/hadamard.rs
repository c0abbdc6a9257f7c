//! The Hadamard transform of activations: golden vectors, the matrix of its definition, layers that apply it.

use crate::random::Random;
use crate::vectors::of;
use gristmill::{
    Error, Hadamard, Input, Linear, LinearOptions, NonFinite, Output, QuantizedMatrix, Quantizer, REGISTRY,
    Request, Restrict, Threads, Workspace,
};
use std::sync::Arc;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// `H (s * x)` in f64 by the definition: each entry of the matrix from the parity of its indices.
fn by_definition(x: &[f32], block: usize, signs: Option<&[i8]>) -> Vec<f64> {
    let scale = 1.0 / (block as f64).sqrt();
    let term = |row: usize, column: usize, start: usize| {
        let sign = signs.map_or(1.0, |signs| f64::from(signs[start + column]));
        let entry = if (row & column).count_ones().is_multiple_of(2) { scale } else { -scale };
        entry * sign * f64::from(x[start + column])
    };
    (0..x.len()).map(|i| (0..block).map(|column| term(i % block, column, i - i % block)).sum()).collect()
}

fn near(found: &[f32], expected: &[f64], bound: f64) -> bool {
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| (f64::from(*found) - expected).abs() <= bound)
}

fn signs(seed: u64, width: usize) -> Vec<i8> {
    let values = Random::new(seed, "signs").gauss_vec(width, 1.0);
    values.iter().map(|value| if *value < 0.0 { -1 } else { 1 }).collect()
}

#[test]
fn golden_vectors() -> Outcome {
    let mut cases = 0;
    for entry in of("HADAMARD") {
        let floats = |key: &str| entry.floats(key).ok_or("an array");
        let signs: Vec<i8> = entry.bytes("signs").ok_or("signs")?.iter().map(|sign| *sign as i8).collect();
        let (width, block) = (entry.number("row_len"), entry.number("block"));
        let transform = Hadamard::new(width, block, Some(&signs))?;
        let (x, exact) = (floats("x")?, floats("y64")?);
        let mut row = x.clone();
        transform.forward(&mut row)?;
        assert_eq!(row, floats("y")?, "{}", entry["case"]);
        let exact: Vec<f64> = exact.into_iter().map(f64::from).collect();
        assert!(near(&row, &exact, 1e-5), "{}", entry["case"]);
        transform.inverse(&mut row)?;
        let x: Vec<f64> = x.into_iter().map(f64::from).collect();
        assert!(near(&row, &x, 1e-5), "{}", entry["case"]);
        cases += 1;
    }
    assert_eq!(cases, 4);
    Ok(())
}

#[test]
fn blocks_of_every_size_are_the_matrix_of_the_definition() -> Outcome {
    for power in 1..=10 {
        let block = 1 << power;
        let width = 3 * block;
        for signs in [None, Some(signs(power, width))] {
            let transform = Hadamard::new(width, block, signs.as_deref())?;
            let x = Random::new(power, "rows").gauss_vec(2 * width, 1.0);
            let mut rows = x.clone();
            transform.forward(&mut rows)?;
            for (row, x) in rows.chunks(width).zip(x.chunks(width)) {
                assert!(near(row, &by_definition(x, block, signs.as_deref()), 1e-5), "{block}");
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_no_transform_is_refused() {
    let refused = |width, block, signs: Option<&[i8]>, why: &str| {
        let error = Hadamard::new(width, block, signs).expect_err("it is none");
        assert!(matches!(error, Error::Hadamard { .. }) && error.to_string().contains(why), "{error}");
    };
    refused(8, 0, None, "power of two");
    refused(8, 1, None, "power of two");
    refused(12, 6, None, "power of two");
    refused(1 << 25, 1 << 25, None, "from 2 to 16777216");
    refused(12, 8, None, "whole blocks");
    refused(4, 4, Some(&[1, 1, 1]), "3 signs");
    refused(4, 4, Some(&[1, 1, 1, -1, 1]), "5 signs");
    refused(4, 4, Some(&[1, 1, 0, -1]), "sign 2 is 0");
    refused(4, 4, Some(&[1, 1, 1, i8::MIN]), "sign 3 is -128");
    let four = Hadamard::new(4, 4, None).expect("it is one");
    assert!(matches!(four.forward(&mut [0.0; 6]), Err(Error::ShapeMismatch { found: 6, .. })));
    assert!(matches!(four.inverse(&mut [0.0; 3]), Err(Error::ShapeMismatch { found: 3, .. })));
}

/// A layer of `n` rows of `k`, plain and with a transform.
fn layers(n: usize, transform: &Arc<Hadamard>) -> Result<[Linear; 2], Error> {
    let k = transform.width();
    let values = Random::new(7, "weights").gauss_vec(n * k, 1.0);
    let prepared = REGISTRY.prepare(&Request::quantize("q4_0", None, n, k))?;
    let format = REGISTRY.format("q4_0")?.1;
    let mut bytes = vec![0; format.tensor_bytes(n, k)?];
    Quantizer::new(&prepared.decide_as_asked())?.run(&values, n, k, &mut bytes)?;
    let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
    let options = LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() };
    let layer = || Linear::new(&REGISTRY, &matrix, &options, &Threads::single());
    Ok([layer()?, layer()?.transformed(transform.clone())?])
}

#[test]
fn a_layer_transforms_what_it_takes() -> Outcome {
    let (n, k) = (24, 256);
    let transform = Arc::new(Hadamard::new(k, 64, Some(&signs(9, k)))?);
    let [plain, layer] = layers(n, &transform)?;
    let threads = Threads::new(2)?;
    for m in [1, 5] {
        let mut x = Random::new(m as u64, "activations").gauss_vec(m * k, 1.0);
        let (mut y, mut expected) = (vec![f32::NAN; m * n], vec![f32::NAN; m * n]);
        let mut workspace = layer.workspace(m, &threads)?;
        layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads)?;
        transform.forward(&mut x)?;
        let mut plain_workspace = plain.workspace(m, &threads)?;
        plain.forward(Input::F32(&x), m, None, &mut expected, &mut plain_workspace, &threads)?;
        assert_eq!(y, expected);
        // It gives its place back, also behind an error.
        x[(m - 1) * k + 70] = f32::NAN;
        let error = layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads);
        assert_eq!(error, Err(Error::NonFinite { row: m - 1, column: 70 }));
        x[(m - 1) * k + 70] = 0.0;
        layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads)?;
        let mut empty = Workspace::new();
        let too_small = layer.forward(Input::F32(&x), m, None, &mut y, &mut empty, &threads);
        assert!(matches!(too_small, Err(Error::WorkspaceTooSmall { .. })), "{too_small:?}");
        let short = layer.forward(Input::F32(&x[1..]), m, None, &mut y, &mut workspace, &threads);
        assert!(matches!(short, Err(Error::ShapeMismatch { .. })), "{short:?}");
    }
    Ok(())
}

/// Rows that are apart are transformed as they would be one behind the other, and a token that is set aside changes no other.
#[test]
fn a_product_of_strided_rows_is_transformed() -> Outcome {
    let (n, k, m, stride) = (24, 256, 3, 300);
    let transform = Arc::new(Hadamard::new(k, 64, Some(&signs(9, k)))?);
    let [_, layer] = layers(n, &transform)?;
    let threads = Threads::new(2)?;
    let mut workspace = layer.workspace(m, &threads)?;
    let mut x = Random::new(3, "activations").gauss_vec((m - 1) * stride + k, 1.0);
    let dense: Vec<f32> = x.chunks(stride).flat_map(|row| &row[..k]).copied().collect();
    let mut expected = vec![f32::NAN; m * n];
    layer.forward(Input::F32(&dense), m, None, &mut expected, &mut workspace, &threads)?;
    let mut y = vec![f32::NAN; m * n];
    layer.product(Input::F32(&x), m).x_stride(stride).run(Output::F32(&mut y), &mut workspace, &threads)?;
    assert_eq!(y, expected);
    x[stride + 7] = f32::INFINITY;
    let product = layer.product(Input::F32(&x), m).x_stride(stride);
    let refused = product.run(Output::F32(&mut y), &mut workspace, &threads);
    assert_eq!(refused, Err(Error::NonFinite { row: 1, column: 7 }));
    let product = layer.product(Input::F32(&x), m).x_stride(stride).non_finite(NonFinite::Nan);
    product.run(Output::F32(&mut y), &mut workspace, &threads)?;
    assert!(y[n..2 * n].iter().all(|y| y.is_nan()), "{y:?}");
    assert_eq!((&y[..n], &y[2 * n..]), (&expected[..n], &expected[2 * n..]));
    Ok(())
}

#[test]
fn a_layer_refuses_what_it_cannot_transform() -> Outcome {
    let (n, k) = (8, 128);
    let transform = Arc::new(Hadamard::new(k, 32, None)?);
    let [plain, layer] = layers(n, &transform)?;
    let threads = Threads::single();
    let mut workspace = layer.workspace(1, &threads)?;
    let (x, mut y) = (vec![1.0; k], vec![0.0; n]);
    let before = "before activations are quantized";
    let is = |error: Error| matches!(&error, Error::Hadamard { why, .. } if why.contains(before));
    let int8 = Input::I8 { q: &[1; 128], scales: &[1.0; 4] };
    assert!(is(layer.forward(int8, 1, None, &mut y, &mut workspace, &threads).expect_err("int8")));
    assert!(is(layer.quantize(Input::F32(&x), 1, &mut workspace, &threads).expect_err("for others")));
    let quantized = plain.quantize(Input::F32(&x), 1, &mut workspace, &threads)?;
    assert!(is(layer.forward_quantized(&quantized, None, &mut y, &threads).expect_err("by another")));
    assert!(!layer.shares_activations_with(&plain, 1) && !plain.shares_activations_with(&layer, 1));
    let other = Arc::new(Hadamard::new(64, 32, None)?);
    let error = plain.transformed(other).expect_err("of another width");
    assert!(error.to_string().contains("the layer has 128 inputs"), "{error}");
    Ok(())
}
