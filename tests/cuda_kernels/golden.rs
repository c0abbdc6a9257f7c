//! The golden vectors, which nobody here made, through the generated kernels.

use super::blocks::{dequantize, quantize};
use super::generated::{generated, kernels, least, same_bytes, same_f32};
use super::support::can_run;
use super::vectors::tensors;
use gristmill::REGISTRY;
use gristmill_spec::vocab::Op;

#[test]
fn golden_tensors_are_dequantized() {
    if !can_run("golden tensors") {
        return;
    }
    let mut cases = 0;
    for kernel in kernels(Op::Dequantize) {
        let (_, info) = REGISTRY.format(kernel.format()).expect("in this build");
        for (vector, n, k) in tensors(kernel.format()) {
            let (Some(mut q), Some(y)) = (vector.bytes("q"), vector.floats("y")) else { continue };
            // Some vectors end before the tensor's tail.
            q.resize(info.tensor_bytes(n, k).expect("small"), 0);
            let case = format!("{} {}", kernel.listed.name, vector["case"]);
            let found = dequantize(&kernel, &kernel.unit, &q, (n, k), u32::MAX, cases);
            match found.unwrap_or_else(|report| panic!("{case}: {report}")) {
                Ok(found) => same_f32(&case, &found, &y),
                // Random bytes with code 3, which has no meaning in this format.
                Err(_) => {
                    assert!(kernel.format() == "i2_s" && vector["case"] == "random_codes", "{case}")
                }
            }
            cases += 1;
        }
    }
    println!("{cases} golden tensors");
    assert!(cases >= least(35) as u64, "only {cases} golden tensors were found");
}

#[test]
fn golden_values_are_quantized() {
    if !can_run("golden values") {
        return;
    }
    let mut cases = 0;
    for kernel in kernels(Op::Quantize) {
        let quantizer =
            &generated().set.formats[kernel.listed.format].quantizers[kernel.listed.quantizer].name;
        for (vector, n, k) in tensors(kernel.format()) {
            // i2_s: bitnet.cpp's packer is the quantizer `sign`; the others of these vectors are of one quantizer.
            let exact = match kernel.format() {
                "i2_s" => quantizer == "sign",
                _ => vector["quantizer_bitexact"].as_bool().unwrap_or(false),
            };
            let (true, Some(x), Some(q)) = (exact, vector.floats("x"), vector.bytes("q")) else { continue };
            let case = format!("{} {}", kernel.listed.name, vector["case"]);
            let found = quantize(&kernel, &kernel.unit, &x, (n, k), 3, cases);
            match found.unwrap_or_else(|report| panic!("{case}: {report}")) {
                Ok(found) => {
                    assert!(x.iter().all(|x| x.is_finite()), "{case}: non-finite input was taken");
                    same_bytes(&case, &found[..q.len()], &q);
                }
                Err(fault) => {
                    let first = x.iter().position(|x| !x.is_finite());
                    assert_eq!(Some(fault), first.map(|at| at as u64 * 4), "{case}");
                }
            }
            cases += 1;
        }
    }
    println!("{cases} golden inputs");
    assert!(cases >= least(20) as u64, "only {cases} golden inputs were found");
}
