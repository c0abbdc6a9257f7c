//! Products: every input type, packings, threads, and what is refused.

use crate::toy::{FORMATS, REGISTRY, TAIL2, TINY8, noise, tail2, tiny8};
use gristmill_runtime::half::{bf16, f16};
use gristmill_runtime::vocab::DType;
use gristmill_runtime::{
    CpuProfile, Dequantizer, Error, Input, Matmul, QuantizedMatrix, Recording, Request, Restrict, Shape,
    Threads, Workspace,
};

fn kernel(name: &str, format: &str, shape: Shape, input: DType) -> Result<Matmul, Error> {
    let restrict = Restrict { kernel: Some(name.to_owned()), ..Restrict::default() };
    let request = Request::matmul(format, shape).with_input(input);
    Matmul::new(&REGISTRY.prepare_for(&request, CpuProfile::detect(), &restrict)?.decide(shape))
}

fn values(matrix: &QuantizedMatrix<'_>) -> Result<Vec<f32>, Error> {
    let (n, k) = (matrix.n(), matrix.k());
    let prepared = REGISTRY.prepare(&Request::dequantize(matrix.format().name, n, k))?;
    let mut values = vec![0.0; n * k];
    Dequantizer::new(&prepared.decide_as_asked())?.run(matrix, &mut values)?;
    Ok(values)
}

/// The product in f64 with activations quantized over groups of `group`, straight from the definition.
fn oracle(x: &[f32], w: &[f32], k: usize, group: usize, bias: Option<&[f32]>) -> Vec<f64> {
    let n = w.len() / k;
    let mut y = Vec::new();
    for x in x.chunks(k) {
        let q: Vec<f64> = x
            .chunks(group)
            .flat_map(|x| {
                let max = x.iter().fold(1e-5f32, |max, x| max.max(x.abs()));
                let multiplier = 127.0 / max;
                x.iter().map(move |x| f64::from((x * multiplier).round_ties_even()) / f64::from(multiplier))
            })
            .collect();
        for row in 0..n {
            let dot: f64 = q.iter().zip(&w[row * k..]).map(|(q, w)| q * f64::from(*w)).sum();
            y.push(dot + bias.map_or(0.0, |bias| f64::from(bias[row])));
        }
    }
    y
}

fn assert_close(found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= 1e-4 * (1.0 + expected.abs()), "{i}: {found} instead of {expected}");
    }
}

#[test]
fn every_kernel_every_size_every_thread_count() -> Result<(), Error> {
    let names = ["matmul.tail2.avx2.decode", "matmul.tail2.avx2.prefill", "matmul.tail2.scalar"];
    for count in [1, 2, 3] {
        let threads = Threads::new(count)?.with_grain(1);
        for (n, k) in [(1, 8), (3, 24), (4, 16), (70, 40), (129, 8)] {
            let bytes = tail2(n, k);
            let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
            let w = values(&matrix)?;
            let bias = noise(n, 2);
            for (name, m) in [(names[0], 1), (names[0], 3), (names[1], 5), (names[2], 1), (names[2], 9)] {
                let kernel = kernel(name, "tail2", Shape { m, n, k }, DType::F32)?;
                let packed = kernel.pack_on(&matrix, &threads)?;
                let mut workspace = Workspace::for_(&kernel, m, k, &threads)?;
                let x = noise(m * k, 5);
                let mut y = vec![f32::NAN; m * n];
                kernel.run(&packed, Input::F32(&x), m, Some(&bias), &mut y, &mut workspace, &threads)?;
                assert_close(&y, &oracle(&x, &w, k, k, Some(&bias)));
            }
        }
    }
    Ok(())
}

#[test]
fn units_are_padded_and_scales_are_per_unit() -> Result<(), Error> {
    let threads = Threads::new(2)?.with_grain(1);
    for (m, n, k) in [(1, 1, 8), (3, 5, 16), (6, 9, 40)] {
        let bytes = tiny8(n, k);
        let matrix = QuantizedMatrix::new(&FORMATS[TINY8], n, k, &bytes)?;
        let kernel = kernel("matmul.tiny8.scalar", "tiny8", Shape { m, n, k }, DType::F32)?;
        let packed = kernel.pack(&matrix)?;
        // A workspace that is not clean: units must be padded with zeros anew.
        let mut workspace = Workspace::for_(&kernel, m, 2 * k, &threads)?;
        let wide = tiny8(n, 2 * k);
        let wide_matrix = QuantizedMatrix::new(&FORMATS[TINY8], n, 2 * k, &wide)?;
        let x = noise(m * 2 * k, 8);
        let mut y = vec![0.0; m * n];
        let wide = kernel.pack(&wide_matrix)?;
        kernel.run(&wide, Input::F32(&x), m, None, &mut y, &mut workspace, &threads)?;
        assert_close(&y, &oracle(&x, &values(&wide_matrix)?, 2 * k, 4, None));
        kernel.run(&packed, Input::F32(&x[..m * k]), m, None, &mut y, &mut workspace, &threads)?;
        assert_close(&y, &oracle(&x[..m * k], &values(&matrix)?, k, 4, None));
        // The kernel file of this format names f32 and i8, so f16 is refused though it could be converted.
        let halves = vec![f16::ZERO; m * k];
        let refused = kernel.run(&packed, Input::F16(&halves), m, None, &mut y, &mut workspace, &threads);
        let expected = vec![DType::F32, DType::I8];
        let kernel = "matmul.tiny8.scalar";
        assert_eq!(refused, Err(Error::WrongInput { kernel, expected, found: DType::F16 }));
    }
    Ok(())
}

#[test]
fn half_inputs_are_the_same_as_their_f32_values() -> Result<(), Error> {
    let (m, n, k) = (5, 6, 16);
    let bytes = tail2(n, k);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
    let x = noise(m * k, 4);
    let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let brains: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
    let as_f32 = [
        halves.iter().map(|x| x.to_f32()).collect::<Vec<f32>>(),
        brains.iter().map(|x| x.to_f32()).collect(),
    ];
    for count in [1, 2] {
        let threads = Threads::new(count)?.with_grain(1);
        let kernel = kernel("matmul.tail2.avx2.prefill", "tail2", Shape { m, n, k }, DType::F16)?;
        let packed = kernel.pack(&matrix)?;
        let mut workspace = Workspace::for_(&kernel, m, k, &threads)?;
        for (input, same) in [(Input::F16(&halves), &as_f32[0]), (Input::Bf16(&brains), &as_f32[1])] {
            let (mut y, mut expected) = (vec![0.0; m * n], vec![0.0; m * n]);
            kernel.run(&packed, input, m, None, &mut y, &mut workspace, &threads)?;
            kernel.run(&packed, Input::F32(same), m, None, &mut expected, &mut workspace, &threads)?;
            assert_eq!(y, expected);
        }
    }
    Ok(())
}

#[test]
fn int8_input_needs_no_activation_kernel() -> Result<(), Error> {
    let (m, n, k) = (2, 5, 16);
    let bytes = tiny8(n, k);
    let matrix = QuantizedMatrix::new(&FORMATS[TINY8], n, k, &bytes)?;
    let kernel = kernel("matmul.tiny8.scalar", "tiny8", Shape { m, n, k }, DType::I8)?;
    assert_eq!(kernel.dtypes(), [DType::I8]);
    let threads = Threads::single();
    let packed = kernel.pack(&matrix)?;
    let mut workspace = Workspace::for_(&kernel, m, 3 * k, &threads)?;
    // A kernel that has no padding within the row runs first, so that the workspace is not clean.
    let wide = tail2(n, 3 * k);
    let wide = QuantizedMatrix::new(&FORMATS[TAIL2], n, 3 * k, &wide)?;
    let other =
        crate::matmul::kernel("matmul.tail2.avx2.decode", "tail2", Shape { m, n, k: 3 * k }, DType::I8)?;
    let input = Input::I8 { q: &vec![1; 3 * m * k], scales: &vec![1.0; m] };
    other.run(&other.pack(&wide)?, input, m, None, &mut vec![0.0; m * n], &mut workspace, &threads)?;
    let q: Vec<i8> = (0..m * k).map(|i| (i as i32 * 37 % 256 - 128) as i8).collect();
    let mut scales = noise(m * k / 4, 6);
    let mut y = vec![0.0; m * n];
    kernel.run(&packed, Input::I8 { q: &q, scales: &scales }, m, None, &mut y, &mut workspace, &threads)?;
    let w = values(&matrix)?;
    let expected: Vec<f64> = (0..m * n)
        .map(|at| {
            let (token, row) = (at / n, at % n);
            let x = |i| f64::from(q[token * k + i]) * f64::from(scales[(token * k + i) / 4]);
            (0..k).map(|i| x(i) * f64::from(w[row * k + i])).sum()
        })
        .collect();
    assert_close(&y, &expected);
    scales[5] = f32::INFINITY;
    let input = Input::I8 { q: &q, scales: &scales };
    let error = kernel.run(&packed, input, m, None, &mut y, &mut workspace, &threads);
    assert_eq!(error, Err(Error::NonFiniteScale { row: 1, block: 1 }));
    let input = Input::I8 { q: &q, scales: &scales[..7] };
    let error = kernel.run(&packed, input, m, None, &mut y, &mut workspace, &threads);
    let what = "activation scales";
    assert_eq!(error, Err(Error::ShapeMismatch { what, unit: "values", expected: 8, found: 7 }));
    let x = vec![0.0; m * k];
    let error =
        kernel.run(&packed, Input::F32(&x), m, None, &mut y, &mut workspace, &threads).expect_err("f32");
    assert!(matches!(error, Error::WrongInput { found: DType::F32, .. }), "{error}");
    Ok(())
}

#[test]
fn rows_unpack_to_what_dequantizing_gives() -> Result<(), Error> {
    let (n, k) = (6, 16);
    let (tail, tiny) = (tail2(n, k), tiny8(n, k));
    for (name, format, bytes) in [
        ("matmul.tail2.avx2.decode", TAIL2, &tail),
        ("matmul.tail2.scalar", TAIL2, &tail),
        ("matmul.tiny8.scalar", TINY8, &tiny),
    ] {
        let matrix = QuantizedMatrix::new(&FORMATS[format], n, k, bytes)?;
        let kernel = kernel(name, FORMATS[format].name, Shape { m: 1, n, k }, DType::F32)?;
        let packed = kernel.pack(&matrix)?;
        let expected = values(&matrix)?;
        let mut row = vec![0.0; k];
        for (i, expected) in expected.chunks(k).enumerate() {
            kernel.unpack_row(&packed, i, &mut row)?;
            assert_eq!(row, expected, "{name}, row {i}");
        }
        assert_eq!(kernel.unpack_row(&packed, n, &mut row), Err(Error::NoSuchRow { row: n, rows: n }));
        assert!(kernel.unpack_row(&packed, 0, &mut row[1..]).is_err());
    }
    Ok(())
}

#[test]
fn packed_weights_are_shared_by_kernels_of_one_packing_only() -> Result<(), Error> {
    let (m, n, k) = (4, 6, 16);
    let bytes = tail2(n, k);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
    let decode = kernel("matmul.tail2.avx2.decode", "tail2", Shape { m: 1, n, k }, DType::F32)?;
    let prefill = kernel("matmul.tail2.avx2.prefill", "tail2", Shape { m, n, k }, DType::F32)?;
    let scalar = kernel("matmul.tail2.scalar", "tail2", Shape { m, n, k }, DType::F32)?;
    let packed = decode.pack(&matrix)?;
    assert_eq!((packed.packing(), scalar.pack(&matrix)?.packing()), (Some("p4"), None));
    let threads = Threads::single();
    let mut workspace = Workspace::for_(&prefill, m, k, &threads)?;
    let (x, mut y) = (noise(m * k, 1), vec![0.0; m * n]);
    assert!(decode.shares_packing_with(&prefill) && !decode.shares_packing_with(&scalar));
    prefill.run(&packed, Input::F32(&x), m, None, &mut y, &mut workspace, &threads)?;
    let error =
        scalar.run(&packed, Input::F32(&x), m, None, &mut y, &mut workspace, &threads).expect_err("rows");
    assert_eq!(error, Error::WrongPacking { kernel: "matmul.tail2.scalar", expected: "rows", found: "p4" });
    let tiny = tiny8(n, k);
    let tiny = QuantizedMatrix::new(&FORMATS[TINY8], n, k, &tiny)?;
    assert!(matches!(decode.pack(&tiny), Err(Error::WrongFormat { .. })));
    Ok(())
}

#[test]
fn empty_dimensions_give_nothing_or_the_bias() -> Result<(), Error> {
    let threads = Threads::single();
    for name in ["matmul.tail2.avx2.decode", "matmul.tail2.scalar"] {
        for (m, n, k) in [(0, 3, 8), (2, 0, 8), (2, 3, 0)] {
            let bytes = tail2(n, k);
            let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
            let kernel = kernel(name, "tail2", Shape { m: 1, n, k }, DType::F32)?;
            let packed = kernel.pack(&matrix)?;
            let mut workspace = Workspace::for_(&kernel, m, k, &threads)?;
            let (x, bias, mut y) = (noise(m * k, 1), noise(n, 1), vec![f32::NAN; m * n]);
            kernel.run(&packed, Input::F32(&x), m, Some(&bias), &mut y, &mut workspace, &threads)?;
            assert!(y.chunks(n.max(1)).all(|row| row == bias));
            kernel.run(&packed, Input::F32(&x), m, None, &mut y, &mut workspace, &threads)?;
            assert!(y.iter().all(|y| *y == 0.0));
        }
    }
    Ok(())
}

#[test]
fn refusals_of_run() -> Result<(), Error> {
    let (m, n, k) = (2, 6, 16);
    let bytes = tail2(n, k);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
    let kernel = kernel("matmul.tail2.avx2.decode", "tail2", Shape { m, n, k }, DType::F32)?;
    let packed = kernel.pack(&matrix)?;
    let threads = Threads::single();
    let mut workspace = Workspace::for_(&kernel, 1, k, &threads)?;
    let (mut x, mut y) = (noise(m * k, 1), vec![0.0; m * n]);
    let small = kernel.run(&packed, Input::F32(&x), m, None, &mut y, &mut workspace, &threads);
    assert_eq!(small, Err(Error::WorkspaceTooSmall { what: "int8 activations", needed: 128, found: 64 }));
    workspace.grow(kernel.workspace_size(4, k, &threads)?)?;
    let lengths = |what, expected, found| Err(Error::ShapeMismatch { what, unit: "values", expected, found });
    let short = kernel.run(&packed, Input::F32(&x[1..]), m, None, &mut y, &mut workspace, &threads);
    assert_eq!(short, lengths("activations", 32, 31));
    let short = kernel.run(&packed, Input::F32(&x), m, Some(&[0.0; 5]), &mut y, &mut workspace, &threads);
    assert_eq!(short, lengths("the bias", 6, 5));
    let short = kernel.run(&packed, Input::F32(&x), m, None, &mut y[1..], &mut workspace, &threads);
    assert_eq!(short, lengths("the output", 12, 11));
    let huge = kernel.run(&packed, Input::F32(&x), usize::MAX, None, &mut y, &mut workspace, &threads);
    assert!(matches!(huge, Err(Error::TooLarge { .. })));
    let many = noise(4 * k, 1);
    let mut y4 = vec![0.0; 4 * n];
    let many = kernel.run(&packed, Input::F32(&many), 4, None, &mut y4, &mut workspace, &threads);
    let many = many.expect_err("a decode kernel").to_string();
    assert!(many.contains("m = 4, but must be at most 3"), "{many}");
    x[k + 3] = f32::NEG_INFINITY;
    let infinite = kernel.run(&packed, Input::F32(&x), m, None, &mut y, &mut workspace, &threads);
    assert_eq!(infinite, Err(Error::NonFinite { row: 1, column: 3 }));
    Ok(())
}

#[test]
fn codes_that_mean_nothing_are_found_when_packing() -> Result<(), Error> {
    let (n, k) = (7, 16);
    let mut bytes = tail2(n, k);
    bytes[5 * 4 + 2] |= 0b11_00;
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
    let threads = Threads::new(2)?.with_grain(1);
    for name in ["matmul.tail2.avx2.decode", "matmul.tail2.scalar"] {
        let kernel = kernel(name, "tail2", Shape { m: 1, n, k }, DType::F32)?;
        let error = kernel.pack_on(&matrix, &threads).expect_err("code 3");
        assert_eq!(error, Error::InvalidCode { format: "tail2", row: 5, column: 9 }, "{name}");
    }
    Ok(())
}

#[test]
fn recordings_hold_what_their_handles_launched() -> Result<(), Error> {
    let (n, k) = (4, 8);
    let bytes = tail2(n, k);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
    let mut kernel = kernel("matmul.tail2.avx2.decode", "tail2", Shape { m: 1, n, k }, DType::F32)?;
    let packed = kernel.pack(&matrix)?;
    let threads = Threads::single();
    let mut workspace = Workspace::for_(&kernel, 1, k, &threads)?;
    let (x, mut y) = (noise(k, 1), vec![0.0; n]);
    let recording = Recording::new(&REGISTRY);
    let mut run =
        |kernel: &Matmul| kernel.run(&packed, Input::F32(&x), 1, None, &mut y, &mut workspace, &threads);
    run(&kernel)?;
    assert!(recording.receipt().kernels().is_empty());
    kernel.record(Some(&recording))?;
    run(&kernel)?;
    run(&kernel)?;
    kernel.record(None)?;
    run(&kernel)?;
    let receipt = recording.receipt();
    let launches: Vec<(&str, u64)> = receipt.kernels().iter().map(|k| (k.name(), k.launches())).collect();
    assert_eq!(launches, [("matmul.tail2.avx2.decode", 2), ("quantize_activations.row.scalar", 2)]);
    let json = receipt.to_json();
    assert!(
        json.starts_with("{\"schema_version\":1,\"package\":\"toy\",\"devices\":[\"cpu\"],\"cpu\":{"),
        "{json}"
    );
    let kernel_json = "{\"id\":\"0000000000001001\",\"name\":\"matmul.tail2.avx2.decode\",\
                       \"source\":\"toy/kernels.toml:1\",\"launches\":2}";
    assert!(json.contains(kernel_json), "{json}");
    assert!(json.ends_with("\"fallbacks\":[]}"), "{json}");
    Ok(())
}
