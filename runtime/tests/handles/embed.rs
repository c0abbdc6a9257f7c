//! Rows by index.

use crate::toy::{FORMATS, REGISTRY, TAIL2, tail2, tiny8};
use gristmill_runtime::half::{bf16, f16};
use gristmill_runtime::vocab::DType;
use gristmill_runtime::{Dequantizer, Embedder, Error, Output, QuantizedMatrix, Recording, Request, Threads};

fn embedder(to: DType, n: usize, k: usize) -> Result<Embedder, Error> {
    let request = Request::embed("tail2", n, k).with_input(to);
    Embedder::new(&REGISTRY.prepare(&request)?.decide_as_asked())
}

/// A matrix of seven rows of sixteen, and its values.
fn matrix(bytes: &[u8]) -> Result<(QuantizedMatrix<'_>, Vec<f32>), Error> {
    let (n, k) = (7, 16);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, bytes)?;
    let all = REGISTRY.prepare(&Request::dequantize("tail2", n, k))?;
    let mut values = vec![0.0; n * k];
    Dequantizer::new(&all.decide_as_asked())?.run(&matrix, &mut values)?;
    Ok((matrix, values))
}

#[test]
fn rows_come_in_the_order_of_their_indices() -> Result<(), Error> {
    let bytes = tail2(7, 16);
    let (matrix, values) = matrix(&bytes)?;
    let rows = [6, 0, 3, 3, 1];
    let expected: Vec<f32> =
        rows.iter().flat_map(|row| &values[*row as usize * 16..][..16]).copied().collect();
    let recording = Recording::new(&REGISTRY);
    let mut handle = embedder(DType::F32, 7, 16)?;
    assert_eq!((handle.entry().name, handle.format().name), ("embed.tail2.scalar", "tail2"));
    handle.record(Some(&recording))?;
    let mut full = vec![f32::NAN; expected.len()];
    handle.run(&matrix, &rows, Output::F32(&mut full))?;
    assert_eq!(full, expected);
    let mut halves = vec![f16::NAN; expected.len()];
    embedder(DType::F16, 7, 16)?.run(&matrix, &rows, Output::F16(&mut halves))?;
    assert_eq!(halves, expected.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>());
    let mut halves = vec![bf16::NAN; expected.len()];
    embedder(DType::Bf16, 7, 16)?.run(&matrix, &rows, Output::Bf16(&mut halves))?;
    assert_eq!(halves, expected.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>());
    let receipt = recording.receipt();
    let kernels: Vec<_> = receipt.kernels().iter().map(|kernel| (kernel.name(), kernel.launches())).collect();
    assert_eq!(kernels, [("embed.tail2.scalar", 1)], "one launch for all rows, of the handle that records");
    Ok(())
}

#[test]
fn any_number_of_threads_gives_the_same_rows_in_one_launch() -> Result<(), Error> {
    let mut bytes = tail2(7, 16);
    let rows: Vec<u32> = (0..101).map(|i| i * i % 7).collect();
    let recording = Recording::new(&REGISTRY);
    let mut handle = embedder(DType::Bf16, 7, 16)?;
    handle.record(Some(&recording))?;
    for length in [1, 2, 3, 101] {
        let (matrix, values) = matrix(&bytes)?;
        let rows = &rows[..length];
        let expected: Vec<bf16> = rows
            .iter()
            .flat_map(|row| &values[*row as usize * 16..][..16])
            .copied()
            .map(bf16::from_f32)
            .collect();
        for count in [1, 2, 5] {
            let threads = Threads::new(count)?.with_grain(1);
            let mut out = vec![bf16::NAN; length * 16];
            handle.run_on(&matrix, rows, Output::Bf16(&mut out), &threads)?;
            assert_eq!(out, expected, "{length} rows, {count} threads");
        }
    }
    assert_eq!(recording.receipt().kernels()[0].launches(), 12);
    // Codes without meaning in rows 4 and 2: the row is told that is asked for first.
    bytes[4 * 4 + 2] |= 0b11_00;
    bytes[2 * 4] |= 0b11;
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], 7, 16, &bytes)?;
    for count in [1, 2, 5] {
        let threads = Threads::new(count)?.with_grain(1);
        let mut out = vec![0.0; 101 * 16];
        let error = embedder(DType::F32, 7, 16)?
            .run_on(&matrix, &rows, Output::F32(&mut out), &threads)
            .expect_err("no code 3");
        assert_eq!(error, Error::InvalidCode { format: "tail2", row: 4, column: 9 }, "{count} threads");
    }
    Ok(())
}

#[test]
fn no_rows_are_no_launch() -> Result<(), Error> {
    let bytes = tail2(7, 16);
    let (matrix, _) = matrix(&bytes)?;
    let recording = Recording::new(&REGISTRY);
    let mut handle = embedder(DType::F32, 7, 16)?;
    handle.record(Some(&recording))?;
    handle.run(&matrix, &[], Output::F32(&mut []))?;
    let empty = tail2(0, 16);
    let nothing = QuantizedMatrix::new(&FORMATS[TAIL2], 0, 16, &empty)?;
    handle.run(&nothing, &[], Output::F32(&mut []))?;
    assert!(recording.receipt().kernels().is_empty());
    let error = handle.run(&nothing, &[0], Output::F32(&mut [0.0; 16])).expect_err("there is no row 0");
    assert_eq!(error, Error::RowIndexOutOfRange { position: 0, index: 0, rows: 0 });
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_written() -> Result<(), Error> {
    let mut bytes = tail2(7, 16);
    let (matrix, _) = matrix(&bytes)?;
    let handle = embedder(DType::F32, 7, 16)?;
    let mut out = vec![0.5; 48];
    let error = handle.run(&matrix, &[0, 6, 7], Output::F32(&mut out)).expect_err("there are seven rows");
    assert_eq!(error, Error::RowIndexOutOfRange { position: 2, index: 7, rows: 7 });
    assert_eq!(error.to_string(), "index 7 (at position 2) is of no row: the matrix has 7");
    assert!(handle.run(&matrix, &[u32::MAX; 3], Output::F32(&mut out)).is_err());
    for len in [0, 47] {
        let error = handle.run(&matrix, &[0, 6, 5], Output::F32(&mut out[..len])).expect_err("too short");
        let (what, unit) = ("the destination", "values");
        assert_eq!(error, Error::ShapeMismatch { what, unit, expected: 48, found: len });
    }
    assert!(out.iter().all(|x| *x == 0.5));
    let other = tiny8(2, 4);
    let other = QuantizedMatrix::new(REGISTRY.format("tiny8")?.1, 2, 4, &other)?;
    let error = handle.run(&other, &[0], Output::F32(&mut out[..4])).expect_err("of another format");
    assert!(matches!(error, Error::WrongFormat { found: "tiny8", .. }), "{error}");
    // A code without meaning in row 4 is told by that row, wherever it is asked for.
    bytes[4 * 4 + 2] |= 0b11_00;
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], 7, 16, &bytes)?;
    let error = handle.run(&matrix, &[0, 4], Output::F32(&mut out[..32])).expect_err("code 3 means nothing");
    assert_eq!(error, Error::InvalidCode { format: "tail2", row: 4, column: 9 });
    Ok(())
}

#[test]
fn int8_values_and_other_formats_have_no_kernel() -> Result<(), Error> {
    let error = embedder(DType::I8, 7, 16).expect_err("rows are floats");
    assert!(matches!(error, Error::NoKernel(_)), "{error}");
    let request = Request::embed("tiny8", 2, 4);
    let error = Embedder::new(&REGISTRY.prepare(&request)?.decide_as_asked()).expect_err("not described");
    assert!(matches!(error, Error::NoKernel(_)), "{error}");
    let request = Request::dequantize("tail2", 7, 16);
    let error = Embedder::new(&REGISTRY.prepare(&request)?.decide_as_asked()).expect_err("another op");
    assert!(matches!(error, Error::WrongOp { .. }), "{error}");
    Ok(())
}
