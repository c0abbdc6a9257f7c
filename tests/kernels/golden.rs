//! Every golden vector of every format in this build, through every kernel this machine can run.

use crate::vectors::{of, tensors};
use gristmill::runtime::vocab::Op;
use gristmill::{
    CpuProfile, Dequantizer, Error, Input, Matmul, QuantizedMatrix, Quantizer, REGISTRY, Request, Restrict,
    Shape, Threads, Workspace,
};

/// Cases that are there at the least: with every family of formats, or with the first one alone.
const fn at_least(all: usize, bitnet: usize) -> usize {
    if cfg!(all(feature = "ggml", feature = "iq", feature = "import")) { all } else { bitnet }
}

/// Names of the entries of `op` for a format that this machine can run.
fn kernels(op: Op, format: &str) -> Vec<&'static gristmill::runtime::registry::Entry> {
    let features = CpuProfile::detect().features;
    REGISTRY
        .entries
        .iter()
        .filter(|e| e.op == op && op != Op::QuantizeActivations && REGISTRY.formats[e.format].name == format)
        .filter(|e| features.contains(e.features))
        .collect()
}

fn only(kernel: &str) -> Restrict {
    Restrict { kernel: Some(kernel.to_string()), ..Restrict::default() }
}

#[test]
fn dequantize_is_bit_exact_on_every_isa() {
    let (mut ran, mut cases) = (0, 0);
    for format in REGISTRY.formats {
        for (entry, n, k) in tensors(format.name) {
            let (Some(mut q), Some(y)) = (entry.bytes("q"), entry.floats("y")) else { continue };
            // Random bytes with code 3, which has no meaning in this format.
            let refused = format.name == "i2_s" && entry["case"] == "random_codes";
            q.resize(format.tensor_bytes(n, k).expect("sizes fit"), 0);
            cases += 1;
            for kernel in kernels(Op::Dequantize, format.name) {
                let request = Request::dequantize(format.name, n, k);
                let prepared = REGISTRY
                    .prepare_for(&request, CpuProfile::detect(), &only(kernel.name))
                    .expect("the kernel is there");
                let handle = Dequantizer::new(&prepared.decide(request.shape)).expect("chosen");
                assert_eq!(handle.entry().name, kernel.name);
                let matrix = QuantizedMatrix::new(format, n, k, &q).expect("sizes agree");
                let mut out = vec![f32::NAN; n * k];
                if refused {
                    // Within a group of 128, element 32 * p + j is in byte j, the first plane in the top bits.
                    let code = |i: usize| q[i / 128 * 32 + i % 32] >> (6 - 2 * (i % 128 / 32)) & 3;
                    let first = (0..n * k).find(|&i| code(i) == 3).expect("the vector has code 3");
                    match handle.run(&matrix, &mut out) {
                        Err(Error::InvalidCode { row, column, .. }) => assert_eq!(row * k + column, first),
                        other => panic!("{}: {other:?}", kernel.name),
                    }
                    continue;
                }
                handle
                    .run(&matrix, &mut out)
                    .unwrap_or_else(|e| panic!("{} {}: {e}", kernel.name, entry["case"]));
                for (i, (found, expected)) in out.iter().zip(&y).enumerate() {
                    assert_eq!(
                        found.to_bits(),
                        expected.to_bits(),
                        "{} case {}: element {i} is {found}, expected {expected}",
                        kernel.name,
                        entry["case"]
                    );
                }
                ran += 1;
            }
        }
    }
    println!("{cases} golden cases, {ran} runs");
    assert!(cases >= at_least(60, 40), "only {cases} golden cases were found");
}

#[test]
fn quantize_is_byte_exact_on_every_isa() {
    let mut cases = 0;
    for format in REGISTRY.formats {
        if format.quantizers.is_empty() {
            continue;
        }
        for (entry, n, k) in tensors(format.name) {
            // i2_s: bitnet.cpp's packer is the quantizer `sign`; the block formats' vectors have codes instead.
            let quantizer = (format.name == "i2_s").then_some("sign");
            let exact = entry["quantizer_bitexact"].as_bool().unwrap_or(false) || quantizer.is_some();
            let (true, Some(x), Some(q)) = (exact, entry.floats("x"), entry.bytes("q")) else { continue };
            let finite = x.iter().all(|x| x.is_finite());
            cases += 1;
            for kernel in kernels(Op::Quantize, format.name) {
                if quantizer.is_some_and(|q| !kernel.name.contains(q)) {
                    continue;
                }
                let request = Request::quantize(format.name, quantizer, n, k);
                let prepared = REGISTRY
                    .prepare_for(&request, CpuProfile::detect(), &only(kernel.name))
                    .expect("the kernel is there");
                let handle = Quantizer::new(&prepared.decide(request.shape)).expect("chosen");
                let mut out = vec![0xaa; format.tensor_bytes(n, k).expect("sizes fit")];
                let result = handle.run(&x, n, k, &mut out);
                if !finite {
                    assert!(result.is_err(), "{}: non-finite input was taken", kernel.name);
                    continue;
                }
                result.unwrap_or_else(|e| panic!("{} {}: {e}", kernel.name, entry["case"]));
                if let Some(at) = out.iter().zip(&q).position(|(a, b)| a != b) {
                    panic!(
                        "{} case {}: byte {at} is {:#x}, expected {:#x}",
                        kernel.name, entry["case"], out[at], q[at]
                    );
                }
            }
        }
    }
    assert!(cases >= at_least(40, 30), "only {cases} golden cases were found");
}

/// The two block formats of the requirements: codes and scales apart in the vectors, 12 bytes a block here.
#[test]
fn block_formats_follow_their_definitions() {
    let mut cases = 0;
    for (name, first) in [("i2s_absmax", -1i8), ("i2s_clamp", -2)] {
        let Some(format) = REGISTRY.formats.iter().find(|f| f.name == name) else { continue };
        for (entry, _, _) in tensors(name) {
            // Ties of i2s_clamp go away from zero; the vectors hold both roundings.
            if entry["case"].as_str().is_some_and(|case| case.contains("even")) {
                continue;
            }
            let (Some(x), Some(codes), Some(scales), Some(y)) =
                (entry.floats("x"), entry.bytes("codes"), entry.floats("scales"), entry.floats("y"))
            else {
                continue;
            };
            let mut expected = Vec::new();
            for (codes, scale) in codes.chunks(32).zip(&scales) {
                for four in codes.chunks(4) {
                    expected.push((0..4).map(|i| ((four[i] as i8 - first) as u8) << (2 * i)).sum::<u8>());
                }
                expected.extend(scale.to_le_bytes());
            }
            cases += 1;
            let k = x.len();
            for kernel in kernels(Op::Quantize, name) {
                let request = Request::quantize(name, None, 1, k);
                let prepared =
                    REGISTRY.prepare_for(&request, CpuProfile::detect(), &only(kernel.name)).expect("there");
                let handle = Quantizer::new(&prepared.decide(request.shape)).expect("chosen");
                let mut out = vec![0xaa; expected.len()];
                handle.run(&x, 1, k, &mut out).expect("finite input");
                assert_eq!(out, expected, "{} case {}", kernel.name, entry["case"]);
            }
            for kernel in kernels(Op::Dequantize, name) {
                let request = Request::dequantize(name, 1, k);
                let prepared =
                    REGISTRY.prepare_for(&request, CpuProfile::detect(), &only(kernel.name)).expect("there");
                let handle = Dequantizer::new(&prepared.decide(request.shape)).expect("chosen");
                let mut out = vec![f32::NAN; k];
                handle
                    .run(&QuantizedMatrix::new(format, 1, k, &expected).expect("sizes"), &mut out)
                    .expect("valid");
                assert_eq!(out, y, "{} case {}", kernel.name, entry["case"]);
            }
        }
    }
    assert!(cases >= 8, "only {cases} golden cases were found");
}

/// BitNet b1.58's own arithmetic: absmean scale, ties to even (the default quantizer of i2_s).
#[test]
fn absmean_is_the_paper_s() {
    let all = of("B158_WEIGHT");
    let entry = all.first().expect("the vector is there");
    let (x, y) = (entry.floats("x").expect("x"), entry.floats("y").expect("y"));
    let format = REGISTRY.formats.iter().find(|f| f.name == "i2_s").expect("i2_s is in this build");
    let k = 128;
    let n = x.len() / k;
    for kernel in kernels(Op::Quantize, "i2_s").into_iter().filter(|k| k.name.contains("absmean")) {
        let request = Request::quantize("i2_s", Some("absmean"), n, k);
        let prepared =
            REGISTRY.prepare_for(&request, CpuProfile::detect(), &only(kernel.name)).expect("there");
        let handle = Quantizer::new(&prepared.decide(request.shape)).expect("chosen");
        let mut packed = vec![0; format.tensor_bytes(n, k).expect("fits")];
        handle.run(&x, n, k, &mut packed).expect("finite input");
        let request = Request::dequantize("i2_s", n, k);
        let prepared = REGISTRY.prepare(&request).expect("prepared");
        let handle = Dequantizer::new(&prepared.decide(request.shape)).expect("chosen");
        let mut out = vec![f32::NAN; n * k];
        handle.run(&QuantizedMatrix::new(format, n, k, &packed).expect("sizes"), &mut out).expect("valid");
        assert_eq!(out, y, "{}", kernel.name);
    }
}

/// A product of one row with f32 activations, by every kernel: bit-identical results, returned once.
fn products(format: &str, n: usize, k: usize, weights: &[u8], x: &[f32]) -> Vec<f32> {
    let info = REGISTRY.formats.iter().find(|f| f.name == format).expect("in this build");
    let matrix = QuantizedMatrix::new(info, n, k, weights).expect("sizes agree");
    let mut reference: Option<(Vec<f32>, &str)> = None;
    for kernel in kernels(Op::Matmul, format) {
        let shape = Shape::new(x.len() / k, n, k);
        let m = shape.m as u64;
        if m < kernel.shape.m.min || m > kernel.shape.m.max {
            continue;
        }
        let prepared = REGISTRY
            .prepare_for(&Request::matmul(format, shape), CpuProfile::detect(), &only(kernel.name))
            .expect("the kernel is there");
        let matmul = Matmul::new(&prepared.decide(shape)).expect("chosen");
        let threads = Threads::single();
        let packed = matmul.pack(&matrix).expect("valid codes");
        let mut workspace = Workspace::for_(&matmul, shape.m, k, &threads).expect("small");
        let mut y = vec![f32::NAN; shape.m * n];
        matmul.run(&packed, Input::F32(x), shape.m, None, &mut y, &mut workspace, &threads).expect("runs");
        match &reference {
            None => reference = Some((y, kernel.name)),
            Some((expected, name)) => {
                let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&y), bits(expected), "{} differs from {name}", kernel.name);
            }
        }
    }
    reference.expect("the scalar kernel is always there").0
}

/// One row of 512 of each ggml type against the exact value of ggml's dot formula.
#[test]
fn dots_agree_with_the_exact_formula() {
    let activations = of("(activations)");
    let x = activations.iter().find_map(|vector| vector.floats("act_f32")).expect("activations");
    let mut cases = 0;
    for format in REGISTRY.formats {
        let (name, ours) = (format.name, REGISTRY.activations[format.activations].name);
        for entry in of(name).into_iter().filter(|entry| entry["case"] == "dot") {
            let partner = entry["activation"].as_str().expect("a partner").to_lowercase();
            let found = products(name, 1, 512, &entry.bytes("q").expect("q"), &x)[0];
            let expected = entry["dot_exact_f64"].as_f64().expect("a number");
            // ggml's q8_1 is q8_0 with the sum kept in f16; ours keeps it exactly, hence the wider bound.
            let bound = if partner == ours { 5e-6 } else { 2e-3 };
            assert!(
                (f64::from(found) - expected).abs() <= bound * expected.abs().max(0.2),
                "{name} with {ours} ({partner} in the vector): {found}, expected {expected}"
            );
            cases += 1;
        }
    }
    assert!(cases >= at_least(5, 2), "only {cases} dots were found");
}

/// bitnet.cpp's whole product: its activation quantization, its integer dot, its three f32 operations.
#[test]
fn i2_s_products_are_bitnet_cpp_s_bits() {
    let mut cases = 0;
    for (entry, n, k) in tensors("i2_s") {
        let (Some(q), Some(x), Some(out)) = (entry.bytes("q"), entry.floats("act_x"), entry.floats("out_v1"))
        else {
            continue;
        };
        // Its x86 kernels drop what is beyond the last whole block of a row.
        if k % 128 != 0 {
            continue;
        }
        assert_eq!(products("i2_s", n, k, &q, &x), out, "case {}", entry["case"]);
        cases += 1;
    }
    assert!(cases >= 1, "no i2_s product was found");
}
