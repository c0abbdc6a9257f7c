//! Layouts of other programs, by name only, against golden vectors: every kernel on every ISA of this machine.
#![cfg(feature = "import")]

use crate::vectors::{of, tensors};
use gristmill::runtime::vocab::Op;
use gristmill::{CpuProfile, Dequantizer, QuantizedMatrix, REGISTRY, Request, Restrict};

/// The values of `bytes` by every dequantize kernel, which must agree.
fn decoded(name: &str, n: usize, k: usize, bytes: &[u8]) -> Vec<f32> {
    let format = REGISTRY.formats.iter().find(|f| f.name == name).expect("in this build");
    let matrix = QuantizedMatrix::new(format, n, k, bytes).expect("sizes agree");
    let mut values: Option<Vec<f32>> = None;
    for kernel in REGISTRY.entries.iter().filter(|e| e.op == Op::Dequantize) {
        if REGISTRY.formats[kernel.format].name != name
            || !CpuProfile::detect().features.contains(kernel.features)
        {
            continue;
        }
        let only = Restrict { kernel: Some(kernel.name.to_string()), ..Restrict::default() };
        let request = Request::dequantize(name, n, k);
        let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &only).expect("there");
        let mut out = vec![f32::NAN; n * k];
        let handle = Dequantizer::new(&prepared.decide(request.shape)).expect("chosen");
        handle.run(&matrix, &mut out).expect("valid codes");
        if let Some(values) = &values {
            assert_eq!(&out, values, "{}", kernel.name);
        }
        values = Some(out);
    }
    values.expect("the scalar kernel is always there")
}

#[test]
fn i2_s_in_other_orders_is_the_same_tensor() {
    let mut cases = 0;
    for (entry, n, k) in tensors("I2_S") {
        let Some(y) = entry.floats("y") else { continue };
        if let Some(bytes) = entry.bytes("q_arm64") {
            assert_eq!(decoded("i2_s_neon64", n, k, &bytes), y, "case {}", entry["case"]);
            cases += 1;
        }
        if let Some(bytes) = entry.bytes("q_seq") {
            // That packer has another rule for the scale, so signs and its own scale make the values.
            let scale = f32::from_le_bytes(bytes[n * k / 4..][..4].try_into().expect("four bytes"));
            let expected: Vec<f32> =
                y.iter().map(|&y| if y == 0.0 { 0.0 } else { scale.copysign(y) }).collect();
            let found = decoded("i2_s_sequential", n, k, &bytes);
            assert_eq!(found, expected, "case {}", entry["case"]);
            cases += 1;
        }
    }
    assert!(cases >= 10, "only {cases} golden cases were found");
}

#[test]
fn bitnet_rs_blocks_keep_their_scale_behind_the_codes() {
    let mut cases = 0;
    for entry in of("BRS_I2S_BLOCK32") {
        let (Some(bytes), Some(y)) = (entry.bytes("q_inline10"), entry.floats("y")) else { continue };
        let k = bytes.len() / 10 * 32;
        let found = decoded("bitnet_rs_block32", 1, k, &bytes);
        assert_eq!(found.len(), y.len());
        for (found, y) in found.iter().zip(&y) {
            // The vectors' values are by the unrounded scale: half a unit of f16 away, or of its subnormals.
            let bound = (y.abs() * 2f32.powi(-11)).max(2f32.powi(-25));
            assert!((found - y).abs() <= bound, "case {}: {found}, expected {y}", entry["case"]);
        }
        cases += 1;
    }
    assert!(cases >= 5, "only {cases} golden cases were found");
}

#[test]
fn qk256_has_no_zero_and_no_scale() {
    let entries = of("BRS_QK256");
    assert!(!entries.is_empty());
    for entry in entries {
        let (bytes, y) = (entry.bytes("q").expect("q"), entry.floats("y").expect("y"));
        assert_eq!(decoded("bitnet_rs_qk256", 2, 256, &bytes), y);
    }
}

/// A layout that can't be recognized must not be chosen by a file's type id.
#[test]
fn nothing_is_guessed() {
    let mut named = 0;
    for format in
        REGISTRY.formats.iter().filter(|f| f.name.starts_with("i2_s_") || f.name.starts_with("bitnet_rs_"))
    {
        assert_eq!(format.gguf, None, "{}", format.name);
        named += 1;
    }
    assert_eq!(named, 4);
}
