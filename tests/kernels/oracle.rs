//! The oracle against the golden vectors, so that what kernels are compared with is itself compared with
//! something that nobody here wrote.
#![cfg(feature = "cli")]

use crate::vectors::tensors;
use gristmill::REGISTRY;
use gristmill::oracle::{Int8Row, Oracle, OracleError, Refused};
use gristmill_spec::model::QuantizeRule;
use std::error::Error;

type Outcome = Result<(), Box<dyn Error>>;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn decoding_is_bit_exact() -> Outcome {
    let oracle = Oracle::new(&REGISTRY)?;
    let mut cases = 0;
    for info in REGISTRY.formats {
        let format = oracle.format(info.name)?;
        for (entry, n, k) in tensors(info.name) {
            let case = &entry["case"];
            let (Some(mut q), Some(y)) = (entry.bytes("q"), entry.floats("y")) else { continue };
            q.resize(info.tensor_bytes(n, k)?, 0);
            for row in 0..n {
                let decoded = format.row(&q, n, k, row);
                // Code 3, to which this format gives no meaning.
                if info.name == "i2_s" && case == "random_codes" {
                    assert!(
                        matches!(decoded, Err(OracleError::InvalidCode { row: at, .. }) if at == row),
                        "{decoded:?}"
                    );
                    continue;
                }
                let decoded = decoded?;
                assert_eq!(bits(&decoded.f32s), bits(&y[row * k..][..k]), "{} {case}, row {row}", info.name);
                // Random scale bytes may overflow f32.
                for (w32, w64) in decoded.f32s.iter().zip(&decoded.f64s).filter(|(w32, _)| w32.is_finite()) {
                    assert!((f64::from(*w32) - w64).abs() <= 1e-6 * w64.abs() + 1e-6, "{} {case}", info.name);
                }
            }
            cases += 1;
        }
    }
    assert!(cases >= 60, "only {cases} golden cases were found");
    Ok(())
}

#[test]
fn quantizing_is_byte_exact() -> Outcome {
    let oracle = Oracle::new(&REGISTRY)?;
    let mut cases = 0;
    for info in REGISTRY.formats.iter().filter(|info| !info.quantizers.is_empty()) {
        let format = oracle.format(info.name)?;
        // bitnet.cpp's packer, from which the vectors of i2_s are, is the quantizer `sign`.
        let name = if info.name == "i2_s" { "sign" } else { info.quantizers[0] };
        let quantizer = format.format().quantizers.iter().find(|quantizer| quantizer.name == name);
        let quantizer = quantizer.ok_or("the quantizer is described")?;
        // Searches are held to the vectors themselves (tests/golden.rs), not to a second one.
        let QuantizeRule::Round(rule) = &quantizer.rule else { continue };
        for (entry, n, k) in tensors(info.name) {
            let case = &entry["case"];
            let exact = entry["quantizer_bitexact"].as_bool().unwrap_or(false) || info.name == "i2_s";
            let (true, Some(x), Some(q)) = (exact, entry.floats("x"), entry.bytes("q")) else { continue };
            let made = format.quantize(rule, &x, n, k);
            match x.iter().position(|x| !x.is_finite()) {
                Some(at) => assert_eq!(made, Err(Refused::NonFinite(at)), "{} {case}", info.name),
                None => {
                    let made = made.map_err(|refused| format!("{} {case}: {refused:?}", info.name))?;
                    let same = made.iter().zip(&q).position(|(made, golden)| made != golden);
                    assert_eq!(same, None, "{} {case}: first differing byte", info.name);
                }
            }
            cases += 1;
        }
    }
    assert!(cases >= 40, "only {cases} golden cases were found");
    Ok(())
}

/// Q8_0 and Q8_K blocks are activation formats too: the same rules, taken apart into scales and values.
#[test]
fn activations_are_byte_exact() -> Outcome {
    let oracle = Oracle::new(&REGISTRY)?;
    let mut cases = 0;
    // Name, bytes of a block, bytes of its scale, elements.
    for (name, bytes, scale, elements) in [("q8_0", 34, 2, 32), ("q8_k", 292, 4, 256)] {
        let activations = oracle.activations(name)?;
        for (entry, _, _) in tensors(name) {
            let case = &entry["case"];
            let (Some(x), Some(q)) = (entry.floats("x"), entry.bytes("q")) else { continue };
            let row = Int8Row::quantize(activations, &x).map_err(|refused| format!("{case}: {refused:?}"))?;
            let blocks = q.chunks(bytes).zip(row.q.chunks(elements)).zip(&row.scales);
            for (index, ((block, q), kept)) in blocks.enumerate() {
                let golden = match scale {
                    2 => half::f16::from_le_bytes([block[0], block[1]]).to_f32(),
                    _ => f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
                };
                assert_eq!(kept.to_bits(), golden.to_bits(), "{name} {case}, scale of block {index}");
                let values: Vec<u8> = q.iter().map(|q| q.cast_unsigned()).collect();
                assert_eq!(values, block[scale..scale + elements], "{name} {case}, values of block {index}");
            }
            cases += 1;
        }
    }
    assert!(cases >= 20, "only {cases} golden cases were found");
    Ok(())
}

#[test]
fn wrong_sizes_are_refused() -> Outcome {
    let oracle = Oracle::new(&REGISTRY)?;
    assert!(oracle.format("nope").is_err());
    for info in REGISTRY.formats {
        let format = oracle.format(info.name)?;
        let k = info.elements;
        let whole = vec![0; info.tensor_bytes(2, k)?];
        assert!(format.blocks(&whole, 2, k, 1).is_ok(), "{}", info.name);
        assert!(format.blocks(&whole, 2, k, 2).is_err(), "{}: there is no third row", info.name);
        assert!(format.blocks(&whole[1..], 2, k, 0).is_err(), "{}: a byte is missing", info.name);
        assert!(format.blocks(&whole, 2, k + 1, 0).is_err(), "{}: not whole blocks", info.name);
        let mut blocks = vec![0; info.bytes + 1];
        assert!(format.decode(&blocks, 1.0).is_err(), "{}: a byte too many", info.name);
        blocks.pop();
        assert_eq!(format.decode(&blocks, 1.0)?.integers.len(), k, "{}", info.name);
    }
    Ok(())
}
