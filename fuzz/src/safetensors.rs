//! safetensors files: `inspect`, and every value of every tensor.

use crate::command;
use crate::seeds::Seed;
use gristmill::weights_file::WeightFile;

/// Never panics; each tensor has the bytes that its shape and type say.
pub fn run(data: &[u8]) {
    let path = command::file(data);
    command::run(&["inspect"], path, &["--json"]);
    let Ok(file) = WeightFile::open(path) else { return };
    for tensor in file.tensors().take(16) {
        if let Ok(values) = tensor.to_f32() {
            assert_eq!(values.len() as u64, tensor.elements());
        }
        assert!(tensor.read_f32(tensor.elements(), &mut [0.0]).is_err(), "a value behind the last one");
        if !tensor.name().starts_with('-') {
            command::run(&["inspect"], path, &[tensor.name()]);
        }
    }
}

/// Files of every type, with metadata, without tensors, and with a tensor without elements.
pub fn seeds() -> Vec<Seed> {
    let file = |header: &str, data: usize| {
        let length = (header.len() as u64).to_le_bytes();
        let data: Vec<u8> = (0..data).map(|i| (i * 37 % 256) as u8).collect();
        [&length, header.as_bytes(), &data].concat()
    };
    let types = ["F32", "F16", "BF16", "F8_E4M3", "I8", "U8", "BOOL", "I64", "F64"];
    let mut seeds: Vec<Seed> = types
        .iter()
        .map(|name| {
            let width = match *name {
                "F32" => 4,
                "F16" | "BF16" => 2,
                "I64" | "F64" => 8,
                _ => 1,
            };
            let header = format!(
                r#"{{"a.weight":{{"dtype":"{name}","shape":[2,3],"data_offsets":[0,{}]}}}}"#,
                6 * width
            );
            ((*name).to_owned(), file(&header, 6 * width))
        })
        .collect();
    let several = r#"{"__metadata__":{"format":"pt"},
        "half":{"dtype":"F16","shape":[2,1],"data_offsets":[12,16]},
        "full":{"dtype":"F32","shape":[1,3],"data_offsets":[0,12]},
        "none":{"dtype":"BF16","shape":[0,7],"data_offsets":[16,16]}}"#;
    seeds.push(("several".to_owned(), file(several, 16)));
    seeds.push(("empty".to_owned(), file("{}", 0)));
    seeds
}
