//! Products as they are asked for: strides, ranges of rows, types of outputs, accumulation, tokens that are not finite.

use crate::toy::{FORMATS, HEADER4, REGISTRY, TAIL2, TINY8, noise, tail2, tiny8};
use gristmill_runtime::half::{bf16, f16};
use gristmill_runtime::{
    Error, Input, Linear, LinearOptions, NonFinite, Output, Policy, Product, QuantizedMatrix, Restrict,
    Threads, Workspace,
};

const K: usize = 24;

fn layer(format: usize, n: usize, k: usize) -> Result<Linear, Error> {
    let bytes = match format {
        TAIL2 => tail2(n, k),
        TINY8 => tiny8(n, k),
        _ => {
            let scales = [0x00, 0x2c].into_iter().chain((0..k / 2).map(|i| (i * 37) as u8));
            scales.cycle().take(n * (2 + k / 2)).collect()
        }
    };
    let matrix = QuantizedMatrix::new(&FORMATS[format], n, k, &bytes)?;
    let (policy, restrict) = (Policy::Dequantize, Some(Restrict::default()));
    let options = LinearOptions { policy, restrict, ..LinearOptions::default() };
    Linear::new(&REGISTRY, &matrix, &options, &Threads::single())
}

/// The product of int8 activations with `tail2` weights, from the bytes: codes of two bits, the lowest first, and the tensor's
/// scale behind them.
fn by_hand(bytes: &[u8], (n, k): (usize, usize), q: &[i8], multiplier: f32) -> Vec<f32> {
    let tail = bytes[n * k / 4..][..4].try_into().expect("four bytes");
    let outer = f32::from_le_bytes(tail);
    let code = |row: usize, i: usize| i32::from(bytes[(row * k + i) / 4] >> (i % 4 * 2) & 3) - 1;
    (0..n)
        .map(|row| {
            let sum: i32 = (0..k).map(|i| code(row, i) * i32::from(q[i])).sum();
            sum as f32 / multiplier * outer
        })
        .collect()
}

/// The nearest binary16, the even one of two: by a search among all of them.
fn nearest_f16(value: f32) -> u16 {
    let size = |bits: u16| -> f64 {
        let (exponent, fraction) = (i32::from(bits >> 10), f64::from(bits & 1023));
        match exponent {
            0 => fraction * 2f64.powi(-24),
            _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
        }
    };
    let wanted = f64::from(value).abs();
    // The first that is not below, from 0 to 65536, which stands for an infinity.
    let (mut above, mut end) = (0u16, 0x7c00);
    while above < end {
        let middle = above + (end - above) / 2;
        if size(middle) < wanted { above = middle + 1 } else { end = middle }
    }
    let below = above.saturating_sub(1);
    let nearest = match (size(above) - wanted).total_cmp(&(wanted - size(below))) {
        std::cmp::Ordering::Less => above,
        std::cmp::Ordering::Greater => below,
        std::cmp::Ordering::Equal if above & 1 == 0 => above,
        std::cmp::Ordering::Equal => below,
    };
    nearest | if value.is_sign_negative() { 0x8000 } else { 0 }
}

fn nearest_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Runs into memory of a type that holds `before`, and gives the bits that are there then.
fn run<'a>(
    product: impl Fn() -> Product<'a>,
    dtype: usize,
    before: &[f32],
    workspace: &mut Workspace,
    threads: &Threads,
) -> Result<Vec<u32>, Error> {
    let halves = |bits: Vec<u16>| bits.into_iter().map(u32::from).collect();
    Ok(match dtype {
        0 => {
            let mut y = before.to_vec();
            product().run(Output::F32(&mut y), workspace, threads)?;
            y.iter().map(|y| y.to_bits()).collect()
        }
        1 => {
            let mut y: Vec<f16> = before.iter().map(|y| f16::from_bits(nearest_f16(*y))).collect();
            product().run(Output::F16(&mut y), workspace, threads)?;
            halves(y.iter().map(|y| y.to_bits()).collect())
        }
        _ => {
            let mut y: Vec<bf16> = before.iter().map(|y| bf16::from_bits(nearest_bf16(*y))).collect();
            product().run(Output::Bf16(&mut y), workspace, threads)?;
            halves(y.iter().map(|y| y.to_bits()).collect())
        }
    })
}

/// The bits of a value of each type.
fn rounded(value: f32, dtype: usize) -> u32 {
    match dtype {
        0 => value.to_bits(),
        1 => u32::from(nearest_f16(value)),
        _ => u32::from(nearest_bf16(value)),
    }
}

/// What was there, as the type holds it.
fn held(value: f32, dtype: usize) -> f32 {
    match dtype {
        0 => value,
        1 => f16::from_bits(nearest_f16(value)).to_f32(),
        _ => bf16::from_bits(nearest_bf16(value)).to_f32(),
    }
}

#[test]
fn every_way_to_store_gives_what_is_computed_by_hand() -> Result<(), Error> {
    let n = 70;
    let bytes = tail2(n, K);
    let layer = layer(TAIL2, n, K)?;
    let noise8: Vec<i8> = noise(5 * 31, 5).iter().map(|x| (x * 127.0) as i8).collect();
    let mut runs = 0;
    for threads in [Threads::single(), Threads::new(2)?.with_grain(1)] {
        for (m, x_stride) in [(0usize, K), (1, K), (2, 31), (5, 27)] {
            // The last row has no padding.
            let q = &noise8[..m.min(1) * (m.saturating_sub(1) * x_stride + K)];
            let scales: Vec<f32> = (0..m).map(|token| 100.0 + token as f32).collect();
            let expected: Vec<Vec<f32>> = (0..m)
                .map(|token| by_hand(&bytes, (n, K), &q[token * x_stride..][..K], scales[token]))
                .collect();
            let mut workspace = layer.workspace(m, &threads)?;
            for rows in [0..n, 0..9, 4..68, 3..5, 66..n, 7..7, n..n] {
                let y_stride = rows.len() + m;
                let length = m.saturating_sub(1) * y_stride + if m > 0 { rows.len() } else { 0 };
                let before = noise(length + 3, 11);
                let bias = noise(rows.len(), 12);
                for (dtype, with) in (0..3).flat_map(|dtype| (0..4).map(move |with| (dtype, with))) {
                    let (accumulate, biased) = (with & 1 == 1, with & 2 == 2);
                    let product = || {
                        let product = layer.product(Input::I8 { q, scales: &scales }, m).x_stride(x_stride);
                        let product = product.rows(rows.clone()).y_stride(y_stride);
                        let product = if accumulate { product.accumulate() } else { product };
                        if biased { product.bias(&bias) } else { product }
                    };
                    let found = run(product, dtype, &before, &mut workspace, &threads)?;
                    let mut wanted: Vec<u32> = before.iter().map(|y| rounded(*y, dtype)).collect();
                    for (token, row) in (0..m).flat_map(|token| rows.clone().map(move |row| (token, row))) {
                        let column = row - rows.start;
                        let at = token * y_stride + column;
                        let mut value = expected[token][row];
                        if biased {
                            value += bias[column];
                        }
                        if accumulate {
                            value += held(before[at], dtype);
                        }
                        wanted[at] = rounded(value, dtype);
                    }
                    assert_eq!(found, wanted, "m = {m}, rows {rows:?}, type {dtype}, options {with}");
                    runs += 1;
                }
            }
        }
    }
    assert_eq!(runs, 2 * 4 * 7 * 12);
    Ok(())
}

#[test]
fn a_token_that_is_not_finite_is_told_by_its_row_alone() -> Result<(), Error> {
    let (n, m) = (70, 6);
    let clean = noise(m * K, 1);
    for (format, threads) in [TAIL2, TINY8, HEADER4]
        .into_iter()
        .flat_map(|format| [(format, Threads::new(1)), (format, Threads::new(2))])
    {
        let (layer, threads) = (layer(format, n, K)?, threads?.with_grain(1));
        let mut workspace = layer.workspace(m, &threads)?;
        let mut expected = vec![0.0; m * n];
        layer.forward(Input::F32(&clean), m, None, &mut expected, &mut workspace, &threads)?;
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = clean.clone();
            x[2 * K + 23] = bad;
            x[5 * K] = bad;
            let mut y = vec![7.0; m * n];
            let product = layer.product(Input::F32(&x), m);
            let refused = product.clone().run(Output::F32(&mut y), &mut workspace, &threads);
            assert_eq!(refused, Err(Error::NonFinite { row: 2, column: 23 }));
            assert!(y.iter().all(|y| *y == 7.0), "nothing was written");
            for rows in [0..n, 4..n, 3..50] {
                let width = rows.len();
                let asked = product.clone().non_finite(NonFinite::Nan).rows(rows.clone());
                let mut y = vec![7.0; m * width];
                asked.clone().run(Output::F32(&mut y), &mut workspace, &threads)?;
                let mut sums = vec![bf16::ZERO; m * width];
                asked.accumulate().run(Output::Bf16(&mut sums), &mut workspace, &threads)?;
                for (token, (y, sums)) in y.chunks(width).zip(sums.chunks(width)).enumerate() {
                    for ((y, sum), row) in y.iter().zip(sums).zip(rows.clone()) {
                        let wanted = expected[token * n + row];
                        if token == 2 || token == 5 {
                            assert!(y.is_nan() && sum.is_nan(), "token {token}, row {row}");
                        } else {
                            assert_eq!(y.to_bits(), wanted.to_bits(), "token {token}, row {row}");
                            assert_eq!(
                                u32::from(sum.to_bits()),
                                rounded(wanted, 2),
                                "token {token}, row {row}"
                            );
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn scales_and_halves_that_are_not_finite() -> Result<(), Error> {
    let threads = Threads::single();
    for format in [TAIL2, HEADER4] {
        let layer = layer(format, 9, K)?;
        let mut workspace = layer.workspace(3, &threads)?;
        let q = vec![3i8; 3 * K];
        let scales = [2.0, f32::INFINITY, 4.0];
        let product = layer.product(Input::I8 { q: &q, scales: &scales }, 3);
        let mut y = vec![7.0; 27];
        let refused = product.clone().run(Output::F32(&mut y), &mut workspace, &threads);
        assert_eq!(refused, Err(Error::NonFiniteScale { row: 1, block: 0 }));
        product.non_finite(NonFinite::Nan).run(Output::F32(&mut y), &mut workspace, &threads)?;
        let nan: Vec<bool> = y.chunks(9).map(|row| row.iter().all(|y| y.is_nan())).collect();
        assert_eq!((nan, y.iter().filter(|y| y.is_nan()).count()), (vec![false, true, false], 9));
        let mut x: Vec<f16> = noise(3 * K, 2).iter().map(|x| f16::from_f32(*x)).collect();
        x[0] = f16::NAN;
        let product = layer.product(Input::F16(&x), 3).non_finite(NonFinite::Nan);
        product.run(Output::F32(&mut y), &mut workspace, &threads)?;
        assert_eq!(
            y.iter().map(|y| y.is_nan()).collect::<Vec<_>>(),
            [[true; 9], [false; 9], [false; 9]].concat()
        );
    }
    Ok(())
}

#[test]
fn activations_that_several_read_are_stored_in_every_way_too() -> Result<(), Error> {
    let (n, m, threads) = (70, 4, Threads::new(2)?.with_grain(1));
    let layer = layer(TAIL2, n, K)?;
    let x = noise(m * K, 3);
    let mut workspace = layer.workspace(m, &threads)?;
    let mut expected = vec![0.0; m * n];
    layer.forward(Input::F32(&x), m, None, &mut expected, &mut workspace, &threads)?;
    let shared = layer.quantize(Input::F32(&x), m, &mut workspace, &threads)?;
    let mut y = vec![f16::ONE; m * 100];
    let product = layer.product_of(&shared).rows(5..65).y_stride(100).accumulate();
    product.run(Output::F16(&mut y), &mut Workspace::new(), &threads)?;
    for (token, y) in y.chunks(100).enumerate() {
        for (column, y) in y.iter().enumerate() {
            let wanted = if column < 60 { expected[token * n + 5 + column] + 1.0 } else { 1.0 };
            assert_eq!(y.to_bits(), nearest_f16(wanted), "token {token}, column {column}");
        }
    }
    Ok(())
}

#[test]
fn many_tokens_are_computed_some_at_a_time() -> Result<(), Error> {
    // More results of one panel (four rows) than a part holds: 2048 tokens, and 700 for the second time.
    let (n, k, m) = (6, 8, 3396);
    for (format, threads) in [(TAIL2, Threads::single()), (TINY8, Threads::new(2)?.with_grain(1))] {
        let layer = layer(format, n, k)?;
        let x = noise(m * k, 4);
        let mut workspace = layer.workspace(m, &threads)?;
        let mut expected = vec![0.0; m * n];
        layer.forward(Input::F32(&x), m, None, &mut expected, &mut workspace, &threads)?;
        let mut y = vec![1.0; m * 5];
        let product = layer.product(Input::F32(&x), m).rows(1..6).accumulate();
        product.run(Output::F32(&mut y), &mut workspace, &threads)?;
        for (token, y) in y.chunks(5).enumerate() {
            for (column, y) in y.iter().enumerate() {
                assert_eq!(*y, expected[token * n + 1 + column] + 1.0, "token {token}, column {column}");
            }
        }
    }
    Ok(())
}

#[test]
fn operands_that_do_not_fit_are_refused_by_name() -> Result<(), Error> {
    let (n, m, threads) = (9, 3, Threads::single());
    let x = noise(m * 30, 3);
    for format in [TAIL2, HEADER4] {
        let layer = layer(format, n, K)?;
        let mut workspace = layer.workspace(m, &threads)?;
        let mut y = [7.0; 3 * 12];
        let mut refused = |product: Product<'_>, y_len: usize| {
            let outcome = product.run(Output::F32(&mut y[..y_len]), &mut workspace, &threads);
            assert!(y.iter().all(|y| *y == 7.0), "nothing was written");
            outcome.expect_err("it does not fit")
        };
        let mismatch = |what, expected, found| Error::ShapeMismatch { what, unit: "values", expected, found };
        let dense = layer.product(Input::F32(&x[..m * K]), m);
        let error = refused(layer.product(Input::F32(&x), m).x_stride(K - 1), 27);
        assert_eq!(error, Error::StrideTooSmall { what: "activations", stride: K - 1, row: K });
        let error = refused(layer.product(Input::F32(&x[..2 * 30 + K - 1]), m).x_stride(30), 27);
        assert_eq!(error, mismatch("activations", 2 * 30 + K, 2 * 30 + K - 1));
        assert_eq!(
            refused(dense.clone().y_stride(8), 27),
            Error::StrideTooSmall { what: "the output", stride: 8, row: 9 }
        );
        assert_eq!(refused(dense.clone().y_stride(12), 32), mismatch("the output", 33, 32));
        assert_eq!(refused(dense.clone(), 28), mismatch("the output", 27, 28));
        assert_eq!(refused(dense.clone().rows(2..5), 27), mismatch("the output", 9, 27));
        assert_eq!(refused(dense.clone().rows(2..10), 27), Error::RowRange { begin: 2, end: 10, rows: 9 });
        let backwards = std::ops::Range { start: 5, end: 4 };
        assert_eq!(refused(dense.clone().rows(backwards), 27), Error::RowRange { begin: 5, end: 4, rows: 9 });
        assert_eq!(refused(dense.clone().bias(&[0.0; 9]).rows(2..5), 9), mismatch("the bias", 3, 9));
        assert!(matches!(refused(dense.clone().y_stride(usize::MAX), 27), Error::TooLarge { .. }));
        // The output has one row less than a stride of twelve gives three tokens: enough for the last one without its padding.
        let mut y = vec![7.0; 33];
        dense.y_stride(12).run(Output::F32(&mut y), &mut workspace, &threads)?;
        assert!(
            y.chunks(12).all(|row| row[..9].iter().all(|y| *y != 7.0) && row[9..].iter().all(|y| *y == 7.0))
        );
    }
    Ok(())
}

#[test]
fn a_product_over_nothing_is_the_bias() -> Result<(), Error> {
    let threads = Threads::single();
    for format in [TAIL2, HEADER4] {
        let layer = layer(format, 6, 0)?;
        let mut workspace = layer.workspace(2, &threads)?;
        let mut y = vec![f16::ONE; 8];
        let product = layer.product(Input::F32(&[]), 2).rows(1..4).y_stride(4).bias(&[1.0, 2.0, 3.0]);
        product.clone().accumulate().run(Output::F16(&mut y), &mut workspace, &threads)?;
        assert_eq!(
            y.iter().map(|y| y.to_f32()).collect::<Vec<_>>(),
            [2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0]
        );
        product.run(Output::F16(&mut y), &mut workspace, &threads)?;
        assert_eq!(
            y.iter().map(|y| y.to_f32()).collect::<Vec<_>>(),
            [1.0, 2.0, 3.0, 1.0, 1.0, 2.0, 3.0, 1.0]
        );
    }
    Ok(())
}

#[test]
fn rows_of_floats_may_be_apart() -> Result<(), Error> {
    let (n, m, stride, threads) = (9, 5, 31, Threads::new(2)?.with_grain(1));
    let x = noise((m - 1) * stride + K, 21);
    let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let brains: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
    let inputs = [
        (Input::F32(&x), x.clone()),
        (Input::F16(&halves), halves.iter().map(|x| x.to_f32()).collect()),
        (Input::Bf16(&brains), brains.iter().map(|x| x.to_f32()).collect()),
    ];
    for format in [TAIL2, HEADER4] {
        let layer = layer(format, n, K)?;
        let mut workspace = layer.workspace(m, &threads)?;
        for (input, values) in &inputs {
            let dense: Vec<f32> = values.chunks(stride).flat_map(|row| row[..K].to_vec()).collect();
            let mut expected = vec![0.0; m * n];
            layer.forward(Input::F32(&dense), m, None, &mut expected, &mut workspace, &threads)?;
            let mut y = vec![7.0; m * n];
            let product = layer.product(*input, m).x_stride(stride);
            product.run(Output::F32(&mut y), &mut workspace, &threads)?;
            assert_eq!(y, expected, "{:?}", input.dtype());
        }
    }
    Ok(())
}
