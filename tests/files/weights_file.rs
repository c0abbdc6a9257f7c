//! Source weights from safetensors and GGUF files: conversion to f32, and bad files.
#![cfg(feature = "cli")]

use gristmill::gguf::GgufWriter;
use gristmill::weights_file::{WeightError, WeightFile};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf").join(name)
}

/// A safetensors file of a header and data.
fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Writes `bytes` to a file and opens it.
fn open_weights(bytes: &[u8]) -> Result<WeightFile, WeightError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    std::fs::write(&path, bytes).unwrap();
    WeightFile::open(&path)
}

#[test]
fn safetensors_weights_convert_to_f32() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "half":{"dtype":"F16","shape":[2,1],"data_offsets":[12,16]},
        "brain":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},
        "full":{"dtype":"F32","shape":[1,3],"data_offsets":[0,12]},
        "eight":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[22,24]}}"#;
    let mut data: Vec<u8> =
        [1.5f32, -0.0, f32::MIN_POSITIVE / 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    data.extend([0x01, 0x00, 0x00, 0xfc]); // The smallest f16 and minus infinity.
    data.extend([0x80, 0x3f, 0x00, 0xc0, 0x01, 0x00]); // 1, -2, a subnormal.
    data.extend([0, 0]);
    let file = open_weights(&safetensors(header, &data)).unwrap();
    let names: Vec<_> = file.tensors().map(|t| t.name().to_owned()).collect();
    assert_eq!(names, ["full", "half", "brain", "eight"], "in the order of their data");
    let full = file.tensor("full").unwrap();
    assert_eq!((full.shape(), full.elements(), full.type_name()), (&[1, 3][..], 3, "F32"));
    let bits = |name: &str| -> Vec<u32> {
        file.tensor(name).unwrap().to_f32().unwrap().into_iter().map(f32::to_bits).collect()
    };
    assert_eq!(bits("full"), [1.5f32.to_bits(), 1 << 31, (f32::MIN_POSITIVE / 2.0).to_bits()]);
    assert_eq!(bits("half"), [2f32.powi(-24).to_bits(), f32::NEG_INFINITY.to_bits()]);
    assert_eq!(bits("brain"), [1f32.to_bits(), (-2f32).to_bits(), 0x0001_0000]);
    let mut part = [0.0; 2];
    full.read_f32(1, &mut part).unwrap();
    assert_eq!(part[0].to_bits(), 1 << 31);
    assert!(matches!(full.read_f32(2, &mut part), Err(WeightError::Range { start: 2, count: 2, .. })));
    assert!(matches!(full.read_f32(u64::MAX, &mut part), Err(WeightError::Range { .. })));
    let eight = file.tensor("eight").unwrap();
    assert_eq!(eight.dtype(), None);
    assert_eq!(
        eight.to_f32().unwrap_err().to_string(),
        "tensor `eight` is of type F8_E4M3; weights to be quantized must be f32, f16 or bf16"
    );
    assert!(file.tensor("nine").is_none() && file.gguf().is_none());
}

#[test]
fn gguf_weights_convert_to_f32() {
    let file = WeightFile::open(&data("i2_s.gguf")).unwrap();
    assert!(file.gguf().is_some());
    let found: Vec<_> =
        file.tensors().map(|t| (t.name().to_owned(), t.shape().to_vec(), t.type_name().to_owned())).collect();
    assert_eq!(found[0], ("blk.0.attn_q.weight".to_owned(), vec![8, 256], "id 36".to_owned()));
    assert_eq!(found[3], ("token_embd.weight".to_owned(), vec![2, 64], "f16".to_owned()));
    assert!(matches!(file.tensor("blk.0.attn_k.weight").unwrap().to_f32(), Err(WeightError::Type { .. })));
    let embedding = file.tensor("token_embd.weight").unwrap();
    let values = embedding.to_f32().unwrap();
    let raw = file.gguf().unwrap().tensor("token_embd.weight").unwrap().data().unwrap();
    assert_eq!(values.len(), 128);
    for (value, bytes) in values.iter().zip(raw.chunks(2)) {
        assert_eq!(half::f16::from_f32(*value).to_le_bytes(), bytes);
    }
    let mut last = [0.0; 3];
    embedding.read_f32(125, &mut last).unwrap();
    assert_eq!(last, values[125..]);
}

/// A tensor of more values than are converted at a time, in either container.
#[test]
fn large_tensors_are_read_in_pieces() {
    let values: Vec<u8> =
        (0..300_000u32).flat_map(|i| half::f16::from_f32((i % 2000) as f32).to_le_bytes()).collect();
    let header = r#"{"w":{"dtype":"F16","shape":[300000],"data_offsets":[0,600000]}}"#;
    let mut writer = GgufWriter::new();
    writer.tensor("w", &[300_000], 1, 600_000).unwrap();
    let mut stream = writer.write_to(Vec::new()).unwrap();
    stream.data("w", &values).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [("st", safetensors(header, &values)), ("gguf", stream.finish().unwrap())] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        // SAFETY: nobody else knows the file, and it is not changed while this lives.
        let mapped = unsafe { WeightFile::map_with(&path, &gristmill::gguf::unquantized_only) }.unwrap();
        for file in [WeightFile::open(&path).unwrap(), mapped] {
            let all = file.tensor("w").unwrap().to_f32().unwrap();
            assert!(all.iter().enumerate().all(|(i, value)| *value == (i % 2000) as f32), "{name}");
            let mut middle = vec![0.0; 270_000];
            file.tensor("w").unwrap().read_f32(20_001, &mut middle).unwrap();
            assert_eq!(middle, all[20_001..290_001], "{name}");
        }
    }
}

#[test]
fn a_file_that_becomes_shorter_is_an_error_and_no_signal() {
    let folder = tempfile::tempdir().unwrap();
    let header = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let mut writer = GgufWriter::new();
    writer.tensor("w", &[2], 0, 8).unwrap();
    let mut stream = writer.write_to(Vec::new()).unwrap();
    stream.data("w", &[0; 8]).unwrap();
    for (name, bytes) in [("st", safetensors(header, &[0; 8])), ("gguf", stream.finish().unwrap())] {
        let path = folder.path().join(name);
        std::fs::write(&path, &bytes).unwrap();
        let file = WeightFile::open(&path).unwrap();
        let handle = std::fs::File::options().write(true).open(&path).unwrap();
        for length in [bytes.len() as u64 - 40, 3, 0] {
            handle.set_len(length).unwrap();
            let error = file.tensor("w").unwrap().to_f32().unwrap_err().to_string();
            assert!(error.contains("the file has become shorter since it was opened"), "{name}: {error}");
        }
    }
}

#[test]
fn int8_tensors_are_no_source_of_weights() {
    let mut writer = GgufWriter::new();
    writer.tensor("q", &[4], 24, 4).unwrap();
    let mut stream = writer.write_to(Vec::new()).unwrap();
    stream.data("q", &[1; 4]).unwrap();
    let file = open_weights(&stream.finish().unwrap()).unwrap();
    let tensor = file.tensor("q").unwrap();
    assert_eq!(tensor.dtype(), None);
    assert!(matches!(tensor.to_f32(), Err(WeightError::Type { .. })));
}

#[test]
fn refuses_weight_files_with_defects() {
    let refused = |bytes: &[u8]| open_weights(bytes).unwrap_err().to_string();
    assert!(refused(b"").ends_with("neither safetensors nor GGUF: it is empty"));
    assert!(refused(b"PK\x03\x04and more").contains("PyTorch checkpoint"));
    assert!(refused(b"something else").contains("it starts with [73, 6f"));
    let one = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    assert!(open_weights(&safetensors(one, &[0; 8])).is_ok());
    let short = refused(&safetensors(one, &[0; 7]));
    assert!(short.contains("describes 70 bytes, the file has 69"), "{short}");
    assert!(refused(&safetensors(one, &[0; 9])).contains("the file has 71"));
    assert!(refused(&safetensors("{not json", &[])).contains("header is not valid"));
    assert!(refused(&safetensors(&one.replace("[2]", "[3]"), &[0; 8])).contains("header is not valid"));
    let hole = one.replace("[0,8]", "[8,16]");
    assert!(refused(&safetensors(&hole, &[0; 16])).contains("header is not valid"));
    let long = [&u64::MAX.to_le_bytes()[..], b"{"].concat();
    assert!(refused(&long).contains("at most 100000000"));
    let cut = [&90u64.to_le_bytes()[..], b"{"].concat();
    assert!(refused(&cut).contains("describes 98 bytes, the file has 9"));
    let mut gguf = std::fs::read(data("q4_k.gguf")).unwrap();
    gguf[4] = 9;
    assert!(refused(&gguf).contains("byte 4: GGUF version 9"));
}

#[test]
fn offsets_that_overflow_are_refused() {
    // Eight tensors of almost 2^61 bytes each end just below 2^64; with the header's length that overflows.
    let each = (1u64 << 61) - 1;
    let tensors: Vec<String> = (0..8)
        .map(|i| {
            let (start, end) = (i * each, (i + 1) * each);
            format!(r#""t{i}":{{"dtype":"U8","shape":[{each}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    let header = format!("{{{}}}", tensors.join(","));
    let error = open_weights(&safetensors(&header, &[0; 64])).unwrap_err();
    assert!(matches!(error, WeightError::Length { .. }), "{error}");
}

proptest! {
    #[test]
    fn mutated_safetensors_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let header = r#"{"a":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},
            "b":{"dtype":"BF16","shape":[4],"data_offsets":[8,16]}}"#;
        let mut bytes = safetensors(header, &[0x3c; 16]);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(keep) = keep {
            bytes.truncate(keep.index(bytes.len() + 1));
        }
        if let Ok(file) = open_weights(&bytes) {
            for tensor in file.tensors() {
                let values = tensor.to_f32();
                prop_assert!(values.is_err() || values.is_ok_and(|v| v.len() as u64 == tensor.elements()));
            }
        }
    }
}
