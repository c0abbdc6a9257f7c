//! Sizes, quantizing and dequantizing.

use crate::toy::{FORMATS, HEADER4, REGISTRY, TAIL2, TINY8, noise, tail2, tiny8};
use gristmill_runtime::{Dequantizer, Error, QuantizedBuf, QuantizedMatrix, Quantizer, Request};

fn quantizer(format: &str, name: Option<&str>, n: usize, k: usize) -> Result<Quantizer, Error> {
    Quantizer::new(&REGISTRY.prepare(&Request::quantize(format, name, n, k))?.decide_as_asked())
}

fn dequantizer(format: &str, n: usize, k: usize) -> Result<Dequantizer, Error> {
    Dequantizer::new(&REGISTRY.prepare(&Request::dequantize(format, n, k))?.decide_as_asked())
}

#[test]
fn sizes_count_headers_blocks_and_tail() -> Result<(), Error> {
    assert_eq!(FORMATS[HEADER4].tensor_bytes(3, 8)?, 3 * (2 + 2 * 2));
    assert_eq!(FORMATS[TAIL2].tensor_bytes(3, 16)?, 3 * 4 + 8);
    assert_eq!(FORMATS[TINY8].tensor_bytes(3, 8)?, 3 * 12);
    assert_eq!(FORMATS[TAIL2].tensor_bytes(0, 16)?, 8);
    assert_eq!(FORMATS[HEADER4].tensor_bytes(5, 0)?, 10);
    Ok(())
}

#[test]
fn wrong_sizes_are_refused_with_both_numbers() {
    let format = &FORMATS[TAIL2];
    let error = QuantizedMatrix::new(format, 2, 12, &[]).expect_err("12 is not whole blocks of 8");
    assert_eq!(error, Error::KNotMultiple { format: "tail2", elements: 8, k: 12 });
    assert!(error.to_string().contains("pad rows to 16"), "{error}");
    let error = QuantizedMatrix::new(format, 2, 16, &[0; 15]).expect_err("one byte short");
    assert_eq!(error, Error::ShapeMismatch { what: "tail2", unit: "bytes", expected: 16, found: 15 });
    for (n, k) in [(usize::MAX, 8), (usize::MAX / 8, 16), (2, usize::MAX - 7)] {
        let error = QuantizedMatrix::new(format, n, k, &[]).expect_err("too large");
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    }
}

#[test]
fn outer_scales_come_from_header_or_tail() -> Result<(), Error> {
    let mut bytes = vec![0; 3 * 4];
    bytes[4..6].copy_from_slice(&gristmill_runtime::half::f16::from_f32(0.5).to_le_bytes());
    let matrix = QuantizedMatrix::new(&FORMATS[HEADER4], 3, 4, &bytes)?;
    assert_eq!(matrix.outer_scale(0)?, 0.0);
    assert_eq!(matrix.outer_scale(1)?, 0.5);
    assert_eq!(matrix.outer_scale(3), Err(Error::NoSuchRow { row: 3, rows: 3 }));
    let mut bytes = vec![0; 2 * 2 + 8];
    bytes[4..8].copy_from_slice(&1.25f32.to_le_bytes());
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], 2, 8, &bytes)?;
    assert_eq!(matrix.outer_scale(1)?, 1.25);
    let bytes = tiny8(2, 4);
    assert_eq!(QuantizedMatrix::new(&FORMATS[TINY8], 2, 4, &bytes)?.outer_scale(1)?, 1.0);
    Ok(())
}

#[test]
fn there_and_back() -> Result<(), Error> {
    for (format, step) in [("header4", 1.0 / 7.0), ("tail2", 1.0)] {
        let (n, k) = (5, 24);
        let (_, info) = REGISTRY.format(format)?;
        let x = noise(n * k, 3);
        let mut bytes = vec![0xaa; info.tensor_bytes(n, k)?];
        quantizer(format, None, n, k)?.run(&x, n, k, &mut bytes)?;
        let matrix = QuantizedMatrix::new(info, n, k, &bytes)?;
        let mut y = vec![f32::NAN; n * k];
        dequantizer(format, n, k)?.run(&matrix, &mut y)?;
        for (x, y) in x.iter().zip(&y) {
            assert!((x - y).abs() <= step * 0.51, "{format}: {x} came back as {y}");
        }
    }
    Ok(())
}

#[test]
fn the_tail_is_filled_with_zeros_even_for_nothing() -> Result<(), Error> {
    for (n, k) in [(0, 8), (4, 0), (0, 0)] {
        let mut bytes = vec![0xaa; 8];
        quantizer("tail2", None, n, k)?.run(&[], n, k, &mut bytes)?;
        assert_eq!(bytes, [0; 8]);
    }
    assert_eq!(tail2(2, 8)[8..], [0; 4]);
    Ok(())
}

#[test]
fn the_named_quantizer_is_taken() -> Result<(), Error> {
    let sign = quantizer("tail2", Some("sign"), 1, 8)?;
    assert_eq!(sign.entry().name, "quantize.tail2.sign.scalar");
    let mut bytes = [0; 10];
    sign.run(&[0.1, -0.1, 0.0, 1.0, 0.1, 0.1, 0.1, 0.1], 1, 8, &mut bytes)?;
    assert_eq!(bytes[..2], [0b10_01_00_10, 0b10_10_10_10]);
    let error = quantizer("tail2", Some("sgin"), 1, 8).expect_err("misspelt").to_string();
    assert!(error.contains("did you mean `sign`?") && error.contains("absmax, sign"), "{error}");
    Ok(())
}

#[test]
fn faults_name_the_place() -> Result<(), Error> {
    let mut x = noise(3 * 8, 1);
    x[2 * 8 + 5] = f32::NAN;
    let mut bytes = vec![0; FORMATS[HEADER4].tensor_bytes(3, 8)?];
    let error = quantizer("header4", None, 3, 8)?.run(&x, 3, 8, &mut bytes);
    assert_eq!(error, Err(Error::NonFinite { row: 2, column: 5 }));
    let mut bytes = vec![0; FORMATS[TAIL2].tensor_bytes(3, 8)?];
    let error = quantizer("tail2", None, 3, 8)?.run(&x, 3, 8, &mut bytes);
    assert_eq!(error, Err(Error::NonFinite { row: 2, column: 5 }));
    x[2 * 8 + 5] = 1e6;
    let mut bytes = vec![0; FORMATS[HEADER4].tensor_bytes(3, 8)?];
    let error = quantizer("header4", None, 3, 8)?.run(&x, 3, 8, &mut bytes);
    assert_eq!(error, Err(Error::ScaleOverflow { row: 2, block: 0 }));

    let mut bytes = tail2(3, 8);
    bytes[2] = 0b00_11_00_00;
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], 3, 8, &bytes)?;
    let invalid = Err(Error::InvalidCode { format: "tail2", row: 1, column: 2 });
    assert_eq!(dequantizer("tail2", 3, 8)?.run(&matrix, &mut [0.0; 24]), invalid);
    assert_eq!(dequantizer("tail2", 3, 8)?.validate(&matrix), invalid);
    Ok(())
}

#[test]
fn rows_come_with_header_and_tail() -> Result<(), Error> {
    let (n, k) = (5, 24);
    for format in ["header4", "tail2", "tiny8"] {
        let (_, info) = REGISTRY.format(format)?;
        let mut bytes = vec![0; info.tensor_bytes(n, k)?];
        match format {
            "tiny8" => bytes = tiny8(n, k),
            _ => quantizer(format, None, n, k)?.run(&noise(n * k, 3), n, k, &mut bytes)?,
        }
        let matrix = QuantizedMatrix::new(info, n, k, &bytes)?;
        let dequantizer = dequantizer(format, n, k)?;
        let mut all = vec![f32::NAN; n * k];
        dequantizer.run(&matrix, &mut all)?;
        for rows in [0..0, 0..1, 2..4, 4..5, 0..5, 5..5] {
            let mut some = vec![f32::NAN; rows.len() * k];
            dequantizer.rows(&matrix, rows.clone(), &mut some)?;
            assert_eq!(some, all[rows.start * k..rows.end * k], "{format} {rows:?}");
            // The same rows as a matrix of their own.
            let apart = QuantizedBuf::rows_of(&matrix, rows.clone())?;
            let mut some = vec![f32::NAN; rows.len() * k];
            dequantizer.run(&apart.matrix(), &mut some)?;
            assert_eq!(some, all[rows.start * k..rows.end * k], "{format} {rows:?}");
        }
        for rows in [4..6, 6..6, 0..usize::MAX] {
            let error = dequantizer.rows(&matrix, rows, &mut []).expect_err("not so many rows");
            assert!(matches!(error, Error::NoSuchRow { rows: 5, .. }), "{error}");
        }
        let error = dequantizer.rows(&matrix, 1..2, &mut [0.0; 23]).expect_err("too short");
        assert!(matches!(error, Error::ShapeMismatch { expected: 24, found: 23, .. }), "{error}");
    }
    let mut bytes = tail2(3, 8);
    bytes[2] = 0b00_11_00_00;
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], 3, 8, &bytes)?;
    let invalid = Err(Error::InvalidCode { format: "tail2", row: 1, column: 2 });
    assert_eq!(dequantizer("tail2", 3, 8)?.rows(&matrix, 1..3, &mut [0.0; 16]), invalid);
    assert_eq!(dequantizer("tail2", 3, 8)?.rows(&matrix, 2..3, &mut [0.0; 8]), Ok(()));
    Ok(())
}

#[test]
fn handles_check_their_buffers() -> Result<(), Error> {
    let quantizer = quantizer("tail2", None, 1, 8)?;
    let error = quantizer.run(&[0.0; 7], 1, 8, &mut [0; 10]);
    assert_eq!(
        error,
        Err(Error::ShapeMismatch { what: "the source", unit: "values", expected: 8, found: 7 })
    );
    let error = quantizer.run(&[0.0; 8], 1, 8, &mut [0; 9]);
    assert_eq!(
        error,
        Err(Error::ShapeMismatch { what: "the destination", unit: "bytes", expected: 10, found: 9 })
    );
    let bytes = tiny8(1, 8);
    let matrix = QuantizedMatrix::new(&FORMATS[TINY8], 1, 8, &bytes)?;
    let error = dequantizer("tail2", 1, 8)?.run(&matrix, &mut [0.0; 8]).expect_err("another format");
    assert!(matches!(error, Error::WrongFormat { expected: "tail2", found: "tiny8", .. }), "{error}");
    let error = dequantizer("tiny8", 1, 8)?.run(&matrix, &mut [0.0; 9]).expect_err("too long");
    assert!(matches!(error, Error::ShapeMismatch { expected: 8, found: 9, .. }), "{error}");
    Ok(())
}
