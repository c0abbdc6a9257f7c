//! Sizes, quantizing and dequantizing.

use crate::toy::{FORMATS, HEADER4, REGISTRY, TAIL2, TINY8, noise, tail2, tiny8};
use gristmill_runtime::{
    Dequantizer, Error, Executor, QuantizedBuf, QuantizedMatrix, Quantizer, Request, Threads,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
            assert!(matches!(error, Error::RowRange { rows: 5, .. }), "{error}");
        }
        let backward = dequantizer.rows(&matrix, Range { start: 4, end: 3 }, &mut []);
        assert_eq!(backward, Err(Error::RowRange { begin: 4, end: 3, rows: 5 }));
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

/// Row numbers for which threads get different shares, and some get none.
const ROWS: [usize; 6] = [0, 1, 2, 3, 7, 101];

#[test]
fn any_number_of_threads_gives_the_same_bytes_and_values() -> Result<(), Error> {
    let k = 24;
    for n in ROWS {
        let x = noise(n * k, 3);
        for format in ["header4", "tail2"] {
            let (_, info) = REGISTRY.format(format)?;
            let (quantizer, dequantizer) = (quantizer(format, None, n, k)?, dequantizer(format, n, k)?);
            let (mut bytes, mut values) = (vec![0xaa; info.tensor_bytes(n, k)?], vec![f32::NAN; n * k]);
            quantizer.run(&x, n, k, &mut bytes)?;
            let matrix = QuantizedMatrix::new(info, n, k, &bytes)?;
            dequantizer.run(&matrix, &mut values)?;
            for count in [1, 2, 5] {
                let threads = Threads::new(count)?.with_grain(1);
                let mut again = vec![0x55; bytes.len()];
                quantizer.run_on(&x, n, k, &mut again, &threads)?;
                assert_eq!(again, bytes, "{format} {n} rows, {count} threads");
                let mut again = vec![f32::NAN; n * k];
                dequantizer.run_on(&matrix, &mut again, &threads)?;
                assert_eq!(again, values, "{format} {n} rows, {count} threads");
                let some = n / 3..n - n / 4;
                let mut again = vec![f32::NAN; some.len() * k];
                dequantizer.rows_on(&matrix, some.clone(), &mut again, &threads)?;
                assert_eq!(again, values[some.start * k..some.end * k], "{format} {n} rows, {count} threads");
            }
        }
    }
    Ok(())
}

#[test]
fn any_number_of_threads_finds_the_same_fault() -> Result<(), Error> {
    let (n, k) = (101, 24);
    let mut x = noise(n * k, 3);
    let mut bytes = tail2(n, k);
    for (row, column) in [(40, 5), (41, 0), (99, 23)] {
        x[row * k + column] = f32::INFINITY;
        bytes[row * 6 + column / 4] |= 0b11 << (2 * (column % 4));
    }
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
    for count in [1, 2, 5] {
        let threads = Threads::new(count)?.with_grain(1);
        for format in ["header4", "tail2"] {
            let mut out = vec![0; REGISTRY.format(format)?.1.tensor_bytes(n, k)?];
            let outcome = quantizer(format, None, n, k)?.run_on(&x, n, k, &mut out, &threads);
            assert_eq!(outcome, Err(Error::NonFinite { row: 40, column: 5 }), "{format}, {count} threads");
        }
        let outcome = dequantizer("tail2", n, k)?.run_on(&matrix, &mut vec![0.0; n * k], &threads);
        let invalid = Error::InvalidCode { format: "tail2", row: 40, column: 5 };
        assert_eq!(outcome, Err(invalid), "{count} threads");
    }
    Ok(())
}

/// Threads of the program that count jobs.
struct Counted(Arc<AtomicUsize>);

impl Executor for Counted {
    fn count(&self) -> usize {
        2
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        self.0.fetch_add(1, Ordering::Relaxed);
        (0..parts).for_each(part);
    }
}

#[test]
fn the_given_threads_are_asked_where_there_is_enough_to_do() -> Result<(), Error> {
    let jobs = Arc::new(AtomicUsize::new(0));
    let threads = Threads::lent(Counted(Arc::clone(&jobs)))?;
    for (n, expected) in [(3, 0), (3000, 3)] {
        let k = 24;
        let mut bytes = vec![0; FORMATS[TAIL2].tensor_bytes(n, k)?];
        quantizer("tail2", None, n, k)?.run_on(&noise(n * k, 3), n, k, &mut bytes, &threads)?;
        let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
        dequantizer("tail2", n, k)?.run_on(&matrix, &mut vec![0.0; n * k], &threads)?;
        dequantizer("tail2", n, k)?.rows_on(&matrix, 1..n, &mut vec![0.0; (n - 1) * k], &threads)?;
        assert_eq!(jobs.load(Ordering::Relaxed), expected, "{n} rows");
    }
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

/// Rows that take no bytes: a few bytes of a file can say any number of them, which nothing may count one by one.
#[test]
fn columns_of_any_number_of_empty_rows_are_taken_at_once() -> Result<(), Error> {
    const MANY: usize = 1 << 60;
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let matrix = QuantizedMatrix::new(&FORMATS[TINY8], MANY, 0, &[]);
        let columns = matrix.and_then(|matrix| QuantizedBuf::columns_of(&matrix, 0..0));
        send.send(columns.map(|columns| (columns.n(), columns.k()))).is_ok()
    });
    let found = receive.recv_timeout(std::time::Duration::from_secs(20)).expect("an answer at once");
    assert_eq!(found?, (MANY, 0));
    Ok(())
}
