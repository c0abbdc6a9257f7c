//! What is seldom in the JSON of commands: kernels of a GPU, tunings, every kind of metadata. Tests of the command read the rest.

use gristmill_records::decision::Decision;
use gristmill_records::inspect::{File, Metadata};
use gristmill_records::registry::{Format, Kernel};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The record, which has every field of the JSON and no other.
fn same<T: DeserializeOwned + Serialize>(json: &Value) -> T {
    let record: T = gristmill_records::read(json.clone()).expect("a record");
    assert_eq!(serde_json::to_value(&record).expect("JSON"), *json);
    record
}

fn image() -> Value {
    json!({
        "arch": "90a", "kind": "cubin", "min_driver": "R580", "min_cuda": "13.0", "bytes": 4096,
        "functions": [{"function": "f", "registers": 40, "shared_bytes": 1024, "stack_bytes": 0}],
    })
}

#[test]
fn a_kernel_of_a_gpu_is_in_the_type() {
    let any = json!({"min": 1, "max": null, "multiple_of": 1});
    let kernel: Kernel = same(&json!({
        "name": "matmul.f.cuda.decode", "id": "01", "op": "matmul", "format": "f", "device": "cuda", "isa": null, "features": [],
        "runs_here": null, "tier": "generic", "packing": null, "bits_per_weight": 2.0, "precision": "int8", "min_cc": "7.5",
        "tensor_cores": false, "shape": {"m": any, "n": any, "k": {"min": 1, "max": 65536, "multiple_of": 128}},
        "images": [image(), {
            "arch": "75", "kind": "ptx", "min_driver": "R525", "min_cuda": "12.0", "bytes": 2048, "functions": null,
        }],
        "source": "a:1", "plan": "p",
    }));
    let images = kernel.images.expect("of a GPU");
    assert_eq!((images.len(), kernel.shape.k.max), (2, Some(65536)));
    assert_eq!(images[1].functions, None, "the driver decides");
}

#[test]
fn a_format_with_numbers_outside_blocks_is_in_the_type() {
    let format: Format = same(&json!({
        "name": "f", "doc": "d", "source": "f.toml:1", "gguf": null, "elements": 128, "bytes": 32, "bits_per_weight": 2.0,
        "row_header": "f16", "tensor_tail": {"type": "f32", "bytes": 32}, "quantizers": [], "activations": null,
    }));
    assert_eq!(format.tensor_tail.map(|tail| (tail.number, tail.bytes)), Some(("f32".to_owned(), 32)));
}

#[test]
fn a_decision_for_a_gpu_and_by_a_tuning_is_in_the_type() {
    let decision: Decision = same(&json!({
        "op": "matmul", "format": "f", "input": "f16", "device": "cuda:0", "shape": {"m": 1, "n": 64, "k": 128},
        "chosen": "a", "plan": "p", "image": image(),
        "occupancy": {"blocks_per_multiprocessor": 8, "limited_by": "registers"}, "split_k": 4,
        "memory": {"packing": "r", "weight_bytes": 2048, "bits_per_weight": 2.0, "workspace_bytes": 0},
        "from_memory": {"packing": "r", "instead_of": "s", "working_set": 5, "cache": 4},
        "held_once": {"packing": "r", "instead_of": "s"},
        "tuned_by": {"threads": 2, "fewer_threads": 1, "us": null, "fastest": "b", "fastest_us": 1.5, "packing": "r"},
        "rejected": [{"kernel": null, "reason": "r", "help": null}, {"kernel": "b", "reason": "r", "help": "h"}],
    }));
    assert_eq!(decision.occupancy.map(|of| of.blocks_per_multiprocessor), Some(8));
    assert_eq!(decision.tuned_by.and_then(|tuned| tuned.fastest_us), Some(1.5));
}

#[test]
fn metadata_of_every_kind_is_told_apart() {
    let file: File = same(&json!({
        "tensors": [],
        "metadata": {
            "array": {"of": "f32", "length": 9, "first": [0.5, null]}, "bool": true, "nan": null, "negative": -1,
            "number": 3.0, "text": "", "unsigned": u64::MAX,
        },
        "transform": {"kind": "hadamard", "understood": false, "key": "k", "why": "w"},
    }));
    let metadata = file.metadata.expect("of a GGUF file");
    assert_eq!(metadata["unsigned"], Metadata::Unsigned(u64::MAX));
    assert_eq!(metadata["negative"], Metadata::Signed(-1));
    assert_eq!(metadata["number"], Metadata::Float(Some(3.0)));
    assert_eq!(metadata["nan"], Metadata::Float(None), "JSON has no such number");
    assert!(
        matches!(&metadata["array"], Metadata::Array(array) if array.length == 9 && array.first.len() == 2)
    );
}
