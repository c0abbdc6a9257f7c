//! Kinds of errors: what a file is at fault for, and what the machine, the build or the request are.

use super::raw;
use gristmill::gguf::{GgufError, Model, ModelError, NoData, NoDataReason, TypeError};
use gristmill::import::ImportError;
use gristmill::{ErrorClass, Threads};

fn name() -> String {
    "w".to_owned()
}

fn no_data(reason: NoDataReason) -> NoData {
    NoData { tensor: name(), type_id: 0, dims: vec![3], reason }
}

fn import(why: ImportError) -> ModelError {
    ModelError::Import { tensor: name(), why }
}

#[test]
fn a_file_is_at_fault_for_what_stands_in_it_alone() {
    let io =
        |kind: std::io::ErrorKind| GgufError::Io { path: "m".into(), action: "map", source: kind.into() };
    assert_eq!(io(std::io::ErrorKind::NotFound).class(), ErrorClass::File);
    assert_eq!(io(std::io::ErrorKind::OutOfMemory).class(), ErrorClass::Memory);
    assert_eq!(GgufError::Memory { path: "m".into(), bytes: 1 }.class(), ErrorClass::Memory);
    assert_eq!(GgufError::Changed { path: "m".into(), expected: 2, found: 1 }.class(), ErrorClass::File);
    assert_eq!(no_data(NoDataReason::Memory(1)).class(), ErrorClass::Memory);
    assert_eq!(no_data(NoDataReason::Read("bad sector".to_owned())).class(), ErrorClass::File);
    let range = NoDataReason::Range { size: 1, start: 1, length: 1 };
    assert_eq!(ModelError::from(no_data(range)).class(), ErrorClass::Shape);
    let not_compiled = TypeError::NotCompiled { format: "iq2_s", feature: "iq" };
    let of_type = |why| ModelError::Type { tensor: name(), number: 22, why };
    assert_eq!(of_type(not_compiled).class(), ErrorClass::NoKernel);
    assert_eq!(of_type(TypeError::Unknown { number: 22, name: None }).class(), ErrorClass::File);
    assert_eq!(import(ImportError::NoFormat { format: "tl1", k: 3 }).class(), ErrorClass::NoKernel);
    assert_eq!(import(ImportError::NoTileSizes { n: 1, k: 1 }).class(), ErrorClass::Request);
    let code = ImportError::Code { format: "TL1", byte: 0, code: 15, row: 0, column: 0 };
    assert_eq!(import(code).class(), ErrorClass::Data);
    assert_eq!(ModelError::Nothing.class(), ErrorClass::Request);
    let error = gristmill::Error::OutOfMemory { required: 1 };
    assert_eq!(ModelError::Layer { tensors: vec![name()], error }.class(), ErrorClass::Memory);
}

#[test]
fn what_is_asked_of_a_sound_file_is_no_error_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, raw(&[], &[("w", &[2, 2], 0, 0)], &[0; 16])).unwrap();
    let model = Model::open(&path).unwrap();
    let threads = Threads::single();
    let options = gristmill::gguf::LayerOptions::new(&threads);
    assert_eq!(model.linear("v", &options).unwrap_err().class(), ErrorClass::Name);
    assert_eq!(model.linear("w", &options).unwrap_err().class(), ErrorClass::Request);
    assert_eq!(model.vector("w", 4).unwrap_err().class(), ErrorClass::Shape);
    std::fs::write(&path, b"GGML").unwrap();
    assert_eq!(Model::open(&path).unwrap_err().class(), ErrorClass::File);
}
