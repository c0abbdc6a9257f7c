//! Every product kernel that this machine can run, stored in other ways than it writes by itself: the outputs are those of
//! `Linear::forward`, bit for bit, and a token that is not finite changes no other one.
#![cfg(feature = "ggml")]

use gristmill::half::bf16;
use gristmill::vocab::{DeviceKind, Op};
use gristmill::{
    Error, Input, Linear, LinearOptions, NonFinite, Output, QuantizedMatrix, Quantizer, REGISTRY, Request,
    Restrict, Threads,
};

fn values(count: usize, seed: u32) -> Vec<f32> {
    crate::random::Random::new(seed.into(), "stored").gauss_vec(count, 1.0)
}

#[test]
fn outputs_are_those_of_forward() -> Result<(), Error> {
    let (n, threads) = (101, Threads::new(2)?.with_grain(1));
    let mut kernels = 0;
    for entry in REGISTRY.entries.iter().filter(|e| e.op == Op::Matmul && e.device == DeviceKind::Cpu) {
        let format = &REGISTRY.formats[entry.format];
        if format.quantizers.is_empty() {
            continue;
        }
        let k = 2 * format.elements.max(64);
        let prepared = REGISTRY.prepare(&Request::quantize(format.name, None, n, k))?;
        let mut bytes = vec![0; format.tensor_bytes(n, k)?];
        Quantizer::new(&prepared.decide_as_asked())?.run(&values(n * k, 1), n, k, &mut bytes)?;
        let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
        let only = Restrict { kernel: Some(entry.name.to_owned()), ..Restrict::default() };
        let options = LinearOptions { restrict: Some(only), ..LinearOptions::default() };
        // Not for this processor.
        let Ok(layer) = Linear::new(&REGISTRY, &matrix, &options, &threads) else { continue };
        for m in [1, 13] {
            let stride = k + 3;
            let x = values(m * stride, 2);
            let dense: Vec<f32> = x.chunks(stride).flat_map(|row| row[..k].to_vec()).collect();
            let bias = values(n, 3);
            let mut workspace = layer.workspace(m, &threads)?;
            let mut expected = vec![0.0; m * n];
            let input = Input::F32(&dense);
            match layer.forward(input, m, Some(&bias), &mut expected, &mut workspace, &threads) {
                // Decode and prefill kernels are for some tokens each.
                Err(Error::NoKernel(_)) => continue,
                outcome => outcome?,
            }
            let mut x = x;
            let bad = m / 2;
            if m > 1 {
                x[bad * stride + k - 1] = f32::NAN;
            }
            for rows in [0..n, 32..77, 5..n, 99..100] {
                let product = layer.product(Input::F32(&x), m).x_stride(stride).y_stride(150);
                let product = product.rows(rows.clone()).bias(&bias[rows.clone()]).non_finite(NonFinite::Nan);
                let mut y = vec![1.0; m * 150];
                product.clone().run(Output::F32(&mut y), &mut workspace, &threads)?;
                let mut sums = vec![bf16::ONE; m * 150];
                product.accumulate().run(Output::Bf16(&mut sums), &mut workspace, &threads)?;
                for token in 0..m {
                    for column in 0..150 {
                        let (y, sum) = (y[token * 150 + column], sums[token * 150 + column]);
                        let at = format!("{} m = {m}, token {token}, {rows:?}, column {column}", entry.name);
                        if column >= rows.len() {
                            assert_eq!((y, sum), (1.0, bf16::ONE), "{at}");
                        } else if m > 1 && token == bad {
                            assert!(y.is_nan() && sum.is_nan(), "{at}");
                        } else {
                            let expected = expected[token * n + rows.start + column];
                            assert_eq!(y.to_bits(), expected.to_bits(), "{at}");
                            assert_eq!(sum, bf16::from_f32(expected + 1.0), "{at}");
                        }
                    }
                }
            }
            kernels += 1;
        }
    }
    assert!(kernels > 0, "no kernel ran");
    Ok(())
}
