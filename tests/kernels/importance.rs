//! Quantizers that weigh errors by the importance of columns: what it is for, who takes it, and what is refused.

use gristmill::registry::{Code, Entry, FormatInfo};
use gristmill::runtime::vocab::{DeviceKind, Op};
use gristmill::{
    CpuProfile, Dequantizer, Error, QuantizedMatrix, Quantizer, REGISTRY, Request, Restrict, Threads,
};

const N: usize = 2;
const K: usize = 1024;

/// Numbers from 0 to 1 in an order that looks like chance.
fn uniform(seed: u64) -> impl Iterator<Item = f64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    })
}

/// Weights in the shape of a bell.
fn weights(seed: u64) -> Vec<f32> {
    let mut numbers = uniform(seed);
    (0..N * K).map(|_| (numbers.by_ref().take(8).sum::<f64>() - 4.0) as f32 * 0.05).collect()
}

/// Importance over four powers of ten.
fn skewed(seed: u64) -> Vec<f32> {
    uniform(seed).take(K).map(|x| 10f64.powf(4.0 * x - 3.0) as f32).collect()
}

/// The kernels of a format's first quantizer that this processor runs, the scalar one among them.
fn kernels(format: &str) -> Vec<&'static Entry> {
    let all = REGISTRY.entries.iter().filter(|entry| {
        entry.op == Op::Quantize
            && entry.quantizer == 0
            && entry.device == DeviceKind::Cpu
            && REGISTRY.formats[entry.format].name == format
            && CpuProfile::detect().features.contains(entry.features)
    });
    all.collect()
}

fn handle(kernel: &'static Entry) -> Quantizer {
    let format = &REGISTRY.formats[kernel.format];
    let only = Restrict { kernel: Some(kernel.name.to_string()), ..Restrict::default() };
    let request = Request::quantize(format.name, None, N, K);
    let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &only).expect("there");
    Quantizer::new(&prepared.decide(request.shape)).expect("chosen")
}

/// A tensor by every kernel, which must agree.
fn quantized(format: &FormatInfo, x: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let mut first: Option<Vec<u8>> = None;
    for kernel in kernels(format.name) {
        let mut bytes = vec![0xaa; format.tensor_bytes(N, K).expect("sizes fit")];
        let handle = handle(kernel);
        match importance {
            Some(importance) => handle.run_weighted(x, importance, N, K, &mut bytes, &Threads::single()),
            None => handle.run(x, N, K, &mut bytes),
        }
        .expect("finite values in range");
        match &first {
            None => first = Some(bytes),
            Some(first) => assert!(bytes == *first, "{} has other bytes", kernel.name),
        }
    }
    first.expect("the scalar kernel is always there")
}

/// The sum of w (x - q)^2 over the sum of w x^2.
fn error(format: &'static FormatInfo, x: &[f32], bytes: &[u8], importance: &[f32]) -> f64 {
    let request = Request::dequantize(format.name, N, K);
    let prepared = REGISTRY.prepare(&request).expect("prepared");
    let handle = Dequantizer::new(&prepared.decide_as_asked()).expect("chosen");
    let mut q = vec![f32::NAN; N * K];
    handle.run(&QuantizedMatrix::new(format, N, K, bytes).expect("sizes"), &mut q).expect("valid codes");
    let (mut error, mut energy) = (0.0, 0.0);
    for (index, (x, q)) in x.iter().zip(&q).enumerate() {
        let (x, q, w) = (f64::from(*x), f64::from(*q), f64::from(importance[index % K]));
        error += w * (x - q) * (x - q);
        energy += w * x * x;
    }
    error / energy
}

/// Formats whose quantizers take importance.
fn weighing() -> Vec<&'static FormatInfo> {
    let takes = |format: &&FormatInfo| {
        kernels(format.name).iter().any(|kernel| matches!(kernel.code, Code::Quantize { weighs: true, .. }))
    };
    REGISTRY.formats.iter().filter(takes).collect()
}

#[test]
#[cfg(all(feature = "ggml", feature = "bitnet"))]
fn errors_in_important_columns_become_smaller() {
    let names: Vec<&str> = weighing().iter().map(|format| format.name).collect();
    for name in [
        "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "q1_0", "q2_k", "q3_k", "q4_0", "q4_1", "q4_k", "q5_0", "q5_1",
        "q5_k", "q6_k", "stq1_0",
    ] {
        assert!(names.contains(&name), "{name} takes no importance: {names:?}");
    }
    for format in weighing() {
        let (x, importance) = (weights(7), skewed(8));
        let [plain, weighed] =
            [None, Some(&importance[..])].map(|importance| quantized(format, &x, importance));
        let [before, after] = [&plain, &weighed].map(|bytes| error(format, &x, bytes, &importance));
        println!("{}: weighted NMSE {before:.4e} without importance, {after:.4e} with it", format.name);
        assert!(after < before, "{}: {after:e} with importance, {before:e} without", format.name);
    }
}

#[test]
fn only_proportions_count() {
    let (x, importance) = (weights(9), skewed(10));
    for format in weighing() {
        let expected = quantized(format, &x, Some(&importance));
        // Powers of two, so that nothing is rounded.
        for factor in [2f32.powi(-90), 2f32.powi(100)] {
            let scaled: Vec<f32> = importance.iter().map(|value| value * factor).collect();
            assert!(quantized(format, &x, Some(&scaled)) == expected, "{} by {factor:e}", format.name);
        }
    }
}

#[test]
fn equal_importance_is_as_good_as_none() {
    let x = weights(11);
    let ones = vec![1.0; K];
    for format in weighing() {
        let equal = quantized(format, &x, Some(&ones));
        let [before, after] =
            [&quantized(format, &x, None), &equal].map(|bytes| error(format, &x, bytes, &ones));
        assert!(after <= 1.1 * before, "{}: NMSE {after:e} with equal importance, {before:e}", format.name);
        // No importance at all is the same for all; the largest that there is is no more than that.
        for same in [0.0, f32::MAX, f32::from_bits(1)] {
            let found = error(format, &x, &quantized(format, &x, Some(&vec![same; K])), &ones);
            assert!(
                (found - after).abs() <= 1e-3 * after,
                "{} by {same:e}: {found:e}, {after:e}",
                format.name
            );
        }
    }
}

#[test]
fn columns_without_importance_keep_sensible_values() {
    let x = weights(12);
    let ones = vec![1.0; K];
    // One column of each 512 counts: most blocks have none that does, and the others one.
    let lonely: Vec<f32> = (0..K).map(|column| f32::from(u8::from(column % 512 == 5))).collect();
    for format in weighing() {
        let [before, after] = [None, Some(&lonely[..])]
            .map(|importance| error(format, &x, &quantized(format, &x, importance), &ones));
        println!("{}: NMSE {after:.3e}, {before:.3e} without importance", format.name);
        // Runs whose scale became zero, as errors without a cost allow, would have an NMSE near 1.
        assert!(after <= before + 0.2, "{}: NMSE {after:e}, {before:e} without importance", format.name);
    }
}

/// One column of each 32 has all the importance: that of the others is too small for sums over all of them.
#[test]
fn one_column_that_outweighs_all_others() {
    let ones = vec![1.0; K];
    for low in [0.0, 1e-9, 1e-5] {
        let lonely: Vec<f32> = (0..K).map(|column| if column % 32 == 5 { 1.0 } else { low }).collect();
        // Around zero, and where all weights have one sign and differ by little.
        for (name, offset) in [("around zero", 0.0), ("around 3", 3.0), ("around -3", -3.0)] {
            let x: Vec<f32> = weights(14).iter().map(|x| x + offset).collect();
            for format in weighing() {
                // The others' runs have scales that are rounded to factors of one, which is coarse where nothing is near zero.
                let own = ["q4_0", "q4_1", "q5_0", "q5_1"].contains(&format.name);
                if !own && (low, offset) != (0.0, 0.0) {
                    continue;
                }
                let [plain, weighed] =
                    [None, Some(&lonely[..])].map(|importance| quantized(format, &x, importance));
                let [before, after] = [&plain, &weighed].map(|bytes| error(format, &x, bytes, &lonely));
                let [all, left] = [&plain, &weighed].map(|bytes| error(format, &x, bytes, &ones));
                println!(
                    "{} {name}, {low:e}: weighted {before:.3e} to {after:.3e}, of all columns {all:.3e} to {left:.3e}",
                    format.name
                );
                assert!(
                    after <= before,
                    "{} {name}, {low:e}: {after:e} with importance, {before:e}",
                    format.name
                );
                // Scale and minimum have to go through one weight; the others lose little by it.
                if ["q4_1", "q5_1"].contains(&format.name) {
                    assert!(left <= 1.5 * all, "{} {name}, {low:e}: {left:e} of all, {all:e}", format.name);
                }
            }
        }
    }
}

#[test]
fn what_can_not_be_meant_is_refused() {
    let x = weights(13);
    let mut taking = 0;
    for kernel in REGISTRY.formats.iter().flat_map(|format| kernels(format.name)) {
        let format = &REGISTRY.formats[kernel.format];
        if format.tensor_bytes(N, K).is_err() {
            continue;
        }
        let handle = handle(kernel);
        let mut bytes = vec![0; format.tensor_bytes(N, K).expect("sizes fit")];
        let mut run =
            |importance: &[f32]| handle.run_weighted(&x, importance, N, K, &mut bytes, &Threads::single());
        if !handle.takes_importance() {
            let refused = run(&[1.0; K]);
            assert!(
                matches!(&refused, Err(Error::NoImportance { format: name, quantizer, .. })
                    if *name == format.name && *quantizer == format.quantizers[0]),
                "{refused:?}"
            );
            continue;
        }
        taking += 1;
        assert!(matches!(run(&[1.0; K - 1]), Err(Error::ShapeMismatch { .. })), "{}", kernel.name);
        for value in [f32::NAN, f32::INFINITY, -1.0, -f32::from_bits(1)] {
            let mut importance = vec![1.0; K];
            importance[700] = value;
            let refused = run(&importance);
            assert!(matches!(refused, Err(Error::Importance { column: 700, .. })), "{value}: {refused:?}");
        }
    }
    assert!(taking > 0 || weighing().is_empty());
}
