//! The golden vectors, which nobody here made, through the generated kernels.

use super::blocks::{dequantize, quantize};
use super::generated::{generated, kernels, least, same_bytes, same_f32};
use super::support::{can_run, root};
use gristmill::REGISTRY;
use gristmill_spec::vocab::Op;
use serde_json::Value;

/// An entry of the manifest, with its rows and their length.
struct Vector {
    case: String,
    entry: Value,
    n: usize,
    k: usize,
}

impl Vector {
    /// The bytes of an array, if the entry has it and its container is here.
    fn array(&self, key: &str) -> Option<Vec<u8>> {
        let array = self.entry.get(key)?;
        let file = std::fs::read(root().join("tests/data/vectors").join(array["file"].as_str()?)).ok()?;
        let (offset, len) = (array["offset"].as_u64()? as usize, array["bytes"].as_u64()? as usize);
        file.get(offset..offset + len).map(<[u8]>::to_vec)
    }

    fn floats(&self, key: &str) -> Option<Vec<f32>> {
        let bytes = self.array(key)?;
        Some(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }
}

fn vectors(format: &str) -> Vec<Vector> {
    let manifest =
        std::fs::read(root().join("tests/data/vectors/manifest.json")).expect("the manifest is there");
    let manifest: Value = serde_json::from_slice(&manifest).expect("the manifest is JSON");
    let number = |e: &Value, key: &str| e.get(key).and_then(Value::as_u64).map(|n| n as usize);
    let mut found = Vec::new();
    for entry in manifest["entries"].as_array().expect("a list") {
        let same = entry["format"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(format));
        let (true, Some(k)) = (same && entry["case"] != "dot", number(entry, "row_len")) else { continue };
        let n = number(entry, "rows").or_else(|| number(entry, "n_elements").map(|n| n / k));
        let case = entry["case"].to_string();
        found.extend(n.map(|n| Vector { case, entry: entry.clone(), n, k }));
    }
    found
}

#[test]
fn golden_tensors_are_dequantized() {
    if !can_run("golden tensors") {
        return;
    }
    let mut cases = 0;
    for kernel in kernels(Op::Dequantize) {
        let (_, info) = REGISTRY.format(kernel.format()).expect("in this build");
        for vector in vectors(kernel.format()) {
            let (Some(mut q), Some(y)) = (vector.array("q"), vector.floats("y")) else { continue };
            // Some vectors end before the tensor's tail.
            q.resize(info.tensor_bytes(vector.n, vector.k).expect("small"), 0);
            let case = format!("{} {}", kernel.listed.name, vector.case);
            let found = dequantize(&kernel, &kernel.unit, &q, (vector.n, vector.k), u32::MAX, cases);
            match found.unwrap_or_else(|report| panic!("{case}: {report}")) {
                Ok(found) => same_f32(&case, &found, &y),
                // Random bytes with code 3, which has no meaning in this format.
                Err(_) => {
                    assert!(kernel.format() == "i2_s" && vector.case.contains("random_codes"), "{case}")
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
        for vector in vectors(kernel.format()) {
            // i2_s: bitnet.cpp's packer is the quantizer `sign`; the others of these vectors are of one quantizer.
            let exact = match kernel.format() {
                "i2_s" => quantizer == "sign",
                _ => vector.entry["quantizer_bitexact"].as_bool().unwrap_or(false),
            };
            let (true, Some(x), Some(q)) = (exact, vector.floats("x"), vector.array("q")) else { continue };
            let case = format!("{} {}", kernel.listed.name, vector.case);
            let found = quantize(&kernel, &kernel.unit, &x, (vector.n, vector.k), 3, cases);
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
