//! The writer: round trips, files that take their place whole, mistakes.

use super::{FILES, bytes_of, rich, scalars, sizes};
use gristmill::gguf::{Gguf, GgufFile, GgufWriter, Value, ValueType, WriteError};
use std::path::Path;

#[test]
fn written_files_read_back_as_they_were_meant() {
    let bytes = rich();
    assert_eq!(bytes.len() % 64, 0);
    let file = Gguf::parse(&bytes[..], &sizes).unwrap();
    assert_eq!((file.version(), file.alignment()), (3, 64));
    for (key, value) in scalars() {
        assert_eq!(file.value(key), Some(value), "{key}");
    }
    assert_eq!(file.value("i64").unwrap().as_u64(), None);
    assert_eq!(file.value("u16").unwrap().as_u64(), Some(65535));
    let array = |key| -> Vec<Value<'_>> {
        file.value(key).unwrap().as_array().unwrap().elements().map(Result::unwrap).collect()
    };
    assert_eq!(array("a.strings"), ["a", "", "Wörter"].map(Value::String));
    assert_eq!(array("a.f32"), [1.5, -0.0].map(Value::F32));
    assert_eq!(array("a.i32"), [-1, 7].map(Value::I32));
    assert_eq!(array("a.u32"), [1, u32::MAX].map(Value::U32));
    assert_eq!(array("a.u64"), [Value::U64(u64::MAX)]);
    assert_eq!(array("a.bool"), [true, false].map(Value::Bool));
    assert_eq!(array("a.empty"), []);
    assert_eq!(file.value("a.empty").unwrap().as_array().unwrap().element_type(), ValueType::String);
    // Arrays are equal by their elements and type.
    assert_eq!(file.value("a.f32"), file.value("a.f32"));
    assert_ne!(file.value("a.f32"), file.value("a.i32"));
    assert_ne!(file.value("a.u32"), file.value("a.u64"));
    let f32s = [[1; 20].as_slice(), &[2; 4]].concat();
    assert_eq!(file.tensor("f32").unwrap().data().unwrap(), f32s);
    assert!(file.tensor("none").unwrap().data().unwrap().is_empty());
    assert_eq!(*file.tensor("ternary").unwrap().data().unwrap(), [3; 128]);
    assert_eq!(*file.tensor("scalar").unwrap().data().unwrap(), [4; 8]);
    assert_eq!(file.tensor("scalar").unwrap().elements(), 1);
}

#[test]
fn copies_of_the_real_files_are_the_same_bytes() {
    for name in FILES {
        let bytes = bytes_of(name);
        let file = Gguf::parse(&bytes[..], &sizes).unwrap();
        let mut writer = GgufWriter::with_alignment(file.alignment()).unwrap();
        writer.copy_metadata(&file, |_| true).unwrap();
        for t in file.tensors() {
            writer.tensor(t.name(), t.dims(), t.type_id(), t.size().unwrap()).unwrap();
        }
        let mut stream = writer.write_to(Vec::new()).unwrap();
        for t in file.tensors() {
            for piece in t.data().unwrap().chunks(100) {
                stream.data(t.name(), piece).unwrap();
            }
        }
        assert!(stream.finish().unwrap() == bytes, "{name} differs");
    }
    let bytes = rich();
    let file = Gguf::parse(&bytes[..], &sizes).unwrap();
    let mut writer = GgufWriter::with_alignment(64).unwrap();
    writer.copy_metadata(&file, |key| key != "u8").unwrap();
    let copy = Gguf::parse(writer.write_to(Vec::new()).unwrap().finish().unwrap(), &sizes).unwrap();
    let kept: Vec<_> = file.metadata().filter(|(key, _)| *key != "u8").collect();
    assert_eq!(copy.metadata().collect::<Vec<_>>(), kept);
}

#[test]
fn a_file_takes_its_place_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, "the old one").unwrap();
    let writer = || {
        let mut writer = GgufWriter::new();
        writer.tensor("w", &[8], 0, 32).unwrap();
        writer
    };
    let error = writer().create(&path, |stream| stream.data("w", &[1; 31])).unwrap_err();
    assert_eq!(error.to_string(), "tensor `w` is incomplete: 1 of 32 bytes were never written");
    let names =
        || std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names(), ["model.gguf"], "the temporary file is gone");
    assert_eq!(std::fs::read(&path).unwrap(), b"the old one");
    writer().create(&path, |stream| stream.data("w", &[1; 32])).unwrap();
    assert_eq!(names(), ["model.gguf"]);
    let file = GgufFile::open(&path, &sizes).unwrap();
    assert_eq!(*file.tensor("w").unwrap().data().unwrap(), [1; 32]);
    let nowhere = folder.path().join("no/such/folder.gguf");
    let error = writer().create(&nowhere, |_| Ok::<(), WriteError>(())).unwrap_err();
    assert!(error.to_string().contains("cannot create a temporary file beside it"), "{error}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&plain), "as readable as any other file");
    }
}

#[test]
fn the_writer_refuses_mistakes() {
    let mut writer = GgufWriter::new();
    writer.metadata("key", Value::U8(1)).unwrap();
    let refused = |result: Result<(), WriteError>| result.unwrap_err().to_string();
    assert_eq!(refused(writer.metadata("key", Value::U8(1))), "metadata key `key` is set twice");
    assert!(matches!(writer.metadata("", Value::U8(1)), Err(WriteError::KeyLength(0))));
    assert!(matches!(writer.metadata("general.alignment", Value::U32(64)), Err(WriteError::AlignmentKey)));
    assert!(matches!(GgufWriter::with_alignment(48), Err(WriteError::Alignment(48))));
    writer.tensor("a", &[2], 0, 8).unwrap();
    assert!(matches!(writer.tensor("a", &[2], 0, 8), Err(WriteError::DuplicateTensor(_))));
    assert_eq!(
        refused(writer.tensor("b", &[2], 0, 9)),
        "tensor `b`: [2] of f32 take 8 bytes, 9 were declared"
    );
    assert!(matches!(writer.tensor("b", &[1; 5], 0, 4), Err(WriteError::Dimensions { dims: 5, .. })));
    assert!(matches!(writer.tensor("b", &[1 << 62], 36, u64::MAX), Err(WriteError::Overflow(_))));
    writer.tensor("b", &[], 99, 5).unwrap();
    let mut stream = writer.write_to(Vec::new()).unwrap();
    let wrong = stream.data("b", &[0; 5]).unwrap_err().to_string();
    assert_eq!(wrong, "data of tensor `b` was given where that of `a` is expected");
    assert!(matches!(stream.data("a", &[0; 9]), Err(WriteError::TooLong { left: 8, given: 9, .. })));
    stream.data("a", &[0; 8]).unwrap();
    stream.data("b", &[0; 5]).unwrap();
    let wrong = stream.data("b", &[0; 1]).unwrap_err().to_string();
    assert_eq!(wrong, "data of tensor `b` was given where no more is expected");
    stream.finish().unwrap();
}
