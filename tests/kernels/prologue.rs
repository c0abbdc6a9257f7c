//! Prologues through layers: the bits of a product of rows that the oracle took through the same steps, and what is refused.
#![cfg(feature = "cli")]

use crate::random::Random;
use gristmill::oracle::{Oracle, PrologueRow, PrologueSteps};
use gristmill::{
    Error, GateFunction, Hadamard, Input, Linear, LinearOptions, Prologue, PrologueInput, QuantizedMatrix,
    Quantizer, REGISTRY, Recording, Request, Restrict, Rows, Threads, Workspace,
};
use std::sync::Arc;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const N: usize = 24;
const K: usize = 512;

/// A layer of each activation format: `int8_row`, `q8_0`, `q8_k`.
fn layers(threads: &Threads) -> Result<Vec<Linear>, Error> {
    let layer = |format: &&str| {
        let values = Random::new(7, format).gauss_vec(N * K, 1.0);
        let prepared = REGISTRY.prepare(&Request::quantize(format, None, N, K))?;
        let info = REGISTRY.format(format)?.1;
        let mut bytes = vec![0; info.tensor_bytes(N, K)?];
        Quantizer::new(&prepared.decide_as_asked())?.run(&values, N, K, &mut bytes)?;
        let matrix = QuantizedMatrix::new(info, N, K, &bytes)?;
        let options = LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() };
        Linear::new(&REGISTRY, &matrix, &options, threads)
    };
    ["i2_s", "q4_0", "q4_k"].iter().map(layer).collect()
}

/// Rows `stride` values apart, without what is behind each.
fn dense(rows: &[f32], stride: usize) -> Vec<f32> {
    rows.chunks(stride).flat_map(|row| &row[..K]).copied().collect()
}

#[test]
fn products_behind_a_prologue_are_those_of_the_oracle_s_rows() -> Outcome {
    let oracle = Oracle::new(&REGISTRY)?;
    let mut random = Random::new(1, "prologue");
    let weight = random.gauss_vec(K, 1.0);
    let signs: Vec<i8> = (0..K).map(|_| if random.below(2) == 0 { 1 } else { -1 }).collect();
    let signs_f32: Vec<f32> = signs.iter().map(|sign| f32::from(*sign)).collect();
    let all = Prologue::new(K)
        .gated(GateFunction::Silu)
        .rms_norm(&weight, 1e-5)?
        .transformed(Arc::new(Hadamard::new(K, 128, Some(&signs))?))?;
    let recording = Recording::new(&REGISTRY);
    for (m, count) in [(1, 1), (1, 2), (7, 1), (7, 2), (7, 3)] {
        let threads = Threads::new(count)?.with_grain(1);
        let stride = K + 40;
        // Gate and up side by side, as a stacked product gives them.
        let [x, up] = [(); 2].map(|()| random.gauss_vec((m - 1) * stride + K, 1.0));
        let residual = random.gauss_vec(m * K, 1.0);
        let mut expected = (Vec::new(), Vec::new());
        for mut layer in layers(&threads)? {
            layer.record(Some(&recording))?;
            let format = REGISTRY.format(layer.prepared().format_name())?.1;
            let activations = oracle.activations(REGISTRY.activations[format.activations].name)?;
            expected.0.clear();
            expected.1.clear();
            let rows = dense(&x, stride);
            let ups = dense(&up, stride);
            for ((x, up), residual) in rows.chunks(K).zip(ups.chunks(K)).zip(residual.chunks(K)) {
                let steps = PrologueSteps {
                    gate: Some((GateFunction::Silu, up)),
                    residual: Some(residual),
                    norm: Some((&weight, 1e-5)),
                    transform: Some((128, Some(&signs_f32))),
                };
                let row =
                    PrologueRow::of(activations, x, &steps).map_err(|refused| format!("{refused:?}"))?;
                expected.0.extend(row.row);
                expected.1.extend(row.sum.ok_or("something is added")?);
            }
            let (mut y, mut found, mut sum) =
                (vec![0.0; m * N], vec![f32::NAN; m * N], vec![f32::NAN; m * K]);
            let mut workspace = layer.workspace(m, &threads)?;
            layer.forward(Input::F32(&expected.0), m, None, &mut y, &mut workspace, &threads)?;
            let input = PrologueInput::new(Rows::strided(&x, stride)).gate(Rows::strided(&up, stride));
            let input = input.add(Rows::dense(&residual), &mut sum);
            let shared = layer.quantize_with(&all, input, m, &mut workspace, &threads)?;
            layer.forward_quantized(&shared, None, &mut found, &threads)?;
            let what = format!("{}, m = {m}, {count} threads", format.name);
            assert!(y.iter().any(|y| *y != 0.0) && y == found, "{what}");
            assert_eq!(sum, expected.1, "{what}");
        }
    }
    let receipt = recording.receipt();
    let ran = receipt.kernels().iter().filter(|kernel| kernel.name().starts_with("prologue.")).count();
    assert_eq!(ran, 3, "one kernel for each activation format");
    Ok(())
}

#[test]
fn what_is_not_finite_is_named_and_nothing_is_lost() -> Outcome {
    let threads = Threads::new(2)?.with_grain(1);
    let norm = Prologue::new(K).rms_norm(&[1.0; K], 1e-5)?;
    for layer in layers(&threads)? {
        let mut workspace = layer.workspace(5, &threads)?;
        for (row, column, value) in [(0, 0, f32::NAN), (4, 511, f32::INFINITY), (2, 300, f32::NEG_INFINITY)] {
            let mut x = vec![0.5; 5 * K];
            x[row * K + column] = value;
            let input = PrologueInput::new(Rows::dense(&x));
            let found = layer.quantize_with(&norm, input, 5, &mut workspace, &threads).map(|_| ());
            assert_eq!(found, Err(Error::NonFinite { row, column }));
            // In the residual, and as a sum: the row's place in the output stays as it was.
            let (residual, x) = (x, vec![0.25; 5 * K]);
            let mut sum = vec![7.0; 5 * K];
            let input = PrologueInput::new(Rows::dense(&x)).add(Rows::dense(&residual), &mut sum);
            let found = layer.quantize_with(&norm, input, 5, &mut workspace, &threads).map(|_| ());
            assert_eq!(found, Err(Error::NonFinite { row, column }));
            assert!(sum[row * K..][..K].iter().all(|sum| *sum == 7.0));
        }
        // The same workspace serves again.
        let x = vec![0.5; K];
        layer.quantize_with(&norm, PrologueInput::new(Rows::dense(&x)), 1, &mut workspace, &threads)?;
    }
    Ok(())
}

#[test]
fn rows_of_other_sizes_and_gates_without_rows_are_refused() -> Outcome {
    let threads = Threads::single();
    let layer = layers(&threads)?.remove(0);
    let mut workspace = layer.workspace(2, &threads)?;
    let x = vec![0.5; 2 * K];
    let refused = |prologue: &Prologue, input: PrologueInput<'_>, workspace: &mut Workspace| {
        layer.quantize_with(prologue, input, 2, workspace, &threads).map(|_| ()).expect_err("it is wrong")
    };
    let (none, gate) = (Prologue::new(K), Prologue::new(K).gated(GateFunction::GeluTanh));
    let rows = || PrologueInput::new(Rows::dense(&x));
    let short = || Rows::dense(&x[1..]);
    for error in [
        refused(&Prologue::new(K / 2), rows(), &mut workspace),
        refused(&none, PrologueInput::new(short()), &mut workspace),
        refused(&none, PrologueInput::new(Rows::strided(&x[1..], K)), &mut workspace),
        refused(&gate, rows().gate(short()), &mut workspace),
        refused(&none, rows().add(short(), &mut vec![0.0; 2 * K]), &mut workspace),
        refused(&none, rows().add(Rows::dense(&x), &mut [0.0; 3]), &mut workspace),
    ] {
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    }
    let narrow = refused(&none, PrologueInput::new(Rows::strided(&x, K - 1)), &mut workspace);
    assert!(matches!(narrow, Error::StrideTooSmall { .. }), "{narrow}");
    for (error, why) in [
        (refused(&gate, rows(), &mut workspace), "its gate `gelu-tanh` has no rows"),
        (refused(&none, rows().gate(Rows::dense(&x)), &mut workspace), "rows for a gate, which it has not"),
    ] {
        assert!(matches!(&error, Error::Prologue { k: K, .. }) && error.to_string().contains(why), "{error}");
    }
    let empty = refused(&none, rows(), &mut Workspace::new());
    assert!(matches!(empty, Error::WorkspaceTooSmall { .. }), "{empty}");
    // No tokens are no work, and no error.
    let nothing = PrologueInput::new(Rows::dense(&[]));
    assert_eq!(layer.quantize_with(&none, nothing, 0, &mut workspace, &threads)?.m(), 0);
    // A layer that transforms its input by itself takes no prologue.
    let transform = Arc::new(Hadamard::new(K, 64, None)?);
    let folded = layers(&threads)?.remove(1).transformed(transform)?;
    let error = folded.quantize_with(&none, rows(), 2, &mut workspace, &threads).expect_err("it is folded");
    assert!(matches!(error, Error::Hadamard { .. }), "{error}");
    Ok(())
}
