//! Quantizers that search, where the golden vectors do not fix the bytes: no larger error than the reference's,
//! and the policies for what no block can hold. (`golden.rs` has those that are exact to the byte.)

use gristmill::runtime::vocab::Op;
use gristmill::{CpuProfile, Dequantizer, Error, QuantizedMatrix, Quantizer, REGISTRY, Request, Restrict};

/// One row of `x` in `format`, by every kernel, which must agree (in what they refuse, too).
fn quantized(format: &str, x: &[f32]) -> Result<Vec<u8>, Error> {
    let info = REGISTRY.formats.iter().find(|f| f.name == format).expect("in this build");
    let mut first: Option<Result<Vec<u8>, Error>> = None;
    for kernel in REGISTRY.entries.iter().filter(|e| e.op == Op::Quantize && e.quantizer == 0) {
        if REGISTRY.formats[kernel.format].name != format
            || !CpuProfile::detect().features.contains(kernel.features)
        {
            continue;
        }
        let only = Restrict { kernel: Some(kernel.name.to_string()), ..Restrict::default() };
        let request = Request::quantize(format, None, 1, x.len());
        let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &only).expect("there");
        let handle = Quantizer::new(&prepared.decide(request.shape)).expect("chosen");
        let mut bytes = vec![0xaa; info.tensor_bytes(1, x.len()).expect("sizes fit")];
        let result = handle.run(x, 1, x.len(), &mut bytes).map(|()| bytes);
        match &first {
            None => first = Some(result),
            Some(Ok(first)) => assert_eq!(result.as_ref().ok(), Some(first), "{}", kernel.name),
            Some(Err(first)) => {
                let found = result.err().map(|e| e.to_string());
                assert_eq!(found, Some(first.to_string()), "{}", kernel.name);
            }
        }
    }
    first.expect("the scalar kernel is always there")
}

fn decoded(format: &str, bytes: &[u8], k: usize) -> Vec<f32> {
    let info = REGISTRY.formats.iter().find(|f| f.name == format).expect("in this build");
    let request = Request::dequantize(format, 1, k);
    let handle =
        Dequantizer::new(&REGISTRY.prepare(&request).expect("prepared").decide_as_asked()).expect("chosen");
    let mut out = vec![f32::NAN; k];
    handle.run(&QuantizedMatrix::new(info, 1, k, bytes).expect("sizes"), &mut out).expect("valid codes");
    out
}

#[cfg(feature = "iq")]
fn error(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum()
}

#[cfg(feature = "iq")]
/// The reference's error, weighted as it weighs it: x^2 plus half the mean of x^2 in the block.
fn weighted(x: &[f32], y: &[f32]) -> f64 {
    let blocks = x.chunks(256).zip(y.chunks(256));
    blocks
        .map(|(x, y)| {
            let floor = 0.5 * x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
            let term = |(x, y): (&f32, &f32)| {
                (floor + f64::from(*x).powi(2)) * (f64::from(*x) - f64::from(*y)).powi(2)
            };
            x.iter().zip(y).map(term).sum::<f64>()
        })
        .sum()
}

#[test]
#[cfg(feature = "iq")]
fn codebook_encoders_are_as_good_as_the_reference() {
    let mut cases = 0;
    // The reference weighs IQ3_XXS otherwise, and has up to a tenth less by this measure in two of the cases.
    let formats = [
        ("iq1_m", 1.0),
        ("iq1_s", 1.0),
        ("iq2_s", 1.0),
        ("iq2_xs", 1.0),
        ("iq2_xxs", 1.0),
        ("iq3_s", 1.0),
        ("iq3_xxs", 1.1),
    ];
    for (format, bound) in formats {
        for entry in crate::vectors::of(format) {
            let (Some(x), Some(y)) = (entry.floats("x"), entry.floats("y")) else { continue };
            let bytes = quantized(format, &x).expect("finite values in range");
            let ours = decoded(format, &bytes, x.len());
            println!(
                "{format} {}: squared error {:.4e} (reference {:.4e}), weighted {:.4e} ({:.4e})",
                entry["case"],
                error(&x, &ours),
                error(&x, &y),
                weighted(&x, &ours),
                weighted(&x, &y),
            );
            assert!(
                weighted(&x, &ours) <= bound * weighted(&x, &y),
                "{format} case {}: weighted error {:e}, the reference has {:e}",
                entry["case"],
                weighted(&x, &ours),
                weighted(&x, &y)
            );
            cases += 1;
        }
    }
    assert!(cases >= 98, "only {cases} golden cases were found");
}

/// The publisher's rule: of the four weights 16 apart that share a code the smallest becomes 0, and the scale is the mean
/// magnitude of the others.
#[test]
#[cfg(feature = "bitnet")]
fn stq1_0_keeps_three_of_four() {
    // Distinct magnitudes, so that the smallest is one.
    let x: Vec<f32> = (0..1024u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0)
        .map(|x| if x == 0.0 { 0.5 } else { x })
        .collect();
    let y = decoded("stq1_0", &quantized("stq1_0", &x).expect("finite values in range"), x.len());
    for (x, y) in x.chunks(256).zip(y.chunks(256)) {
        let mut kept = [true; 256];
        for first in (0..256).filter(|i| i % 64 < 16) {
            let smallest =
                (0..4).map(|lane| first + 16 * lane).min_by(|a, b| x[*a].abs().total_cmp(&x[*b].abs()));
            kept[smallest.expect("four lanes")] = false;
        }
        let sum: f64 = (0..256).filter(|&i| kept[i]).map(|i| f64::from(x[i].abs())).sum();
        let scale = sum / 192.0;
        for i in 0..256 {
            let want = if kept[i] { scale.copysign(f64::from(x[i])) } else { 0.0 };
            // The scale is rounded to f16.
            let error = (f64::from(y[i]) - want).abs();
            assert!(error <= scale / 2048.0, "weight {i}: {} becomes {}, not {want}", x[i], y[i]);
        }
    }
}

/// Formats with a searching quantizer whose scale can overflow (mxfp4 has an exponent for every f32).
const SEARCHED: [&str; 16] = [
    "q1_0", "q4_1", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "iq1_m", "iq1_s",
    "iq2_s", "iq3_s", "nvfp4", "stq1_0",
];

#[test]
fn what_no_scale_can_hold_is_refused() {
    let mut ran = 0;
    for format in SEARCHED.into_iter().filter(|name| REGISTRY.formats.iter().any(|f| f.name == *name)) {
        let wave = |scale: f32| {
            (0..512).map(|i| scale * (((i * 37) % 101) as f32 / 50.0 - 1.0)).collect::<Vec<f32>>()
        };
        for scale in [1e9, 1e13, 1e20, 3e38] {
            // The second block is the one that overflows.
            let mut x = wave(1.0);
            x[256..].copy_from_slice(&wave(scale)[256..]);
            match quantized(format, &x) {
                Err(Error::ScaleOverflow { row: 0, .. }) => {}
                other => {
                    panic!("{format} at {scale:e}: {:?}", other.map(|_| "taken").map_err(|e| e.to_string()))
                }
            }
        }
        let mut x = wave(1.0);
        x[300] = f32::NAN;
        assert!(matches!(quantized(format, &x), Err(Error::NonFinite { row: 0, column: 300 })), "{format}");
        ran += 1;
    }
    assert!(ran >= if cfg!(feature = "ggml") { 11 } else { 0 });
}

/// Too small for the scale's type: zeros, and nothing undefined on the way.
#[test]
fn tiny_blocks_become_zeros() {
    for format in SEARCHED.into_iter().filter(|name| REGISTRY.formats.iter().any(|f| f.name == *name)) {
        for scale in [1e-30f32, 1e-38, 1e-44, 0.0] {
            let x: Vec<f32> = (0..512).map(|i| scale * ((i % 7) as f32 - 3.0)).collect();
            let bytes = quantized(format, &x).expect("finite");
            assert!(decoded(format, &bytes, 512).iter().all(|y| *y == 0.0), "{format} at {scale:e}");
        }
    }
}
