//! Files of the importance of columns: what is read, and what is refused.

use gristmill::gguf::{ArrayBuf, Gguf, GgufWriter, Importance, ImportanceError, Value, unquantized_only};

/// A tensor of f32: name, dimensions, values.
type Given<'a> = (&'a str, &'a [u64], &'a [f32]);

fn file(kind: Option<&str>, tensors: &[Given<'_>]) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    if let Some(kind) = kind {
        writer.metadata("general.type", Value::String(kind)).unwrap();
    }
    let datasets = ArrayBuf::strings(["calibration.txt"]);
    writer.metadata("imatrix.datasets", datasets.value()).unwrap();
    writer.metadata("imatrix.chunk_count", Value::U32(7)).unwrap();
    writer.metadata("imatrix.chunk_size", Value::U32(512)).unwrap();
    for (name, dims, values) in tensors {
        writer.tensor(name, dims, 0, 4 * values.len() as u64).unwrap();
    }
    let mut stream = writer.write_to(Vec::new()).unwrap();
    for (name, _, values) in tensors {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        stream.data(name, &bytes).unwrap();
    }
    stream.finish().unwrap()
}

fn read(file: Vec<u8>) -> Result<Importance, ImportanceError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("imatrix.gguf");
    std::fs::write(&path, &file).unwrap();
    let from_disk = Importance::open(&path);
    let from_memory = Gguf::parse(file, &unquantized_only).map_err(ImportanceError::from);
    let from_memory = from_memory.and_then(|file| Importance::of(&file));
    assert_eq!(from_disk.is_ok(), from_memory.is_ok());
    from_disk
}

#[test]
fn sums_by_counts_are_read() {
    let importance = read(file(
        Some("imatrix"),
        &[
            ("w.in_sum2", &[4, 1], &[8.0, 0.0, 2.0, 1.0]),
            ("w.counts", &[1, 1], &[4.0]),
            ("experts.in_sum2", &[2, 3], &[1.0, 2.0, 0.0, 0.0, 9.0, 6.0]),
            ("experts.counts", &[1, 3], &[1.0, 0.0, 3.0]),
            ("something", &[1], &[-1.0]),
        ],
    ))
    .unwrap();
    assert_eq!(importance.names().collect::<Vec<_>>(), ["experts", "w"]);
    assert_eq!((importance.datasets(), importance.chunks()), (&["calibration.txt".to_owned()][..], Some(7)));
    let w = importance.tensor("w").unwrap();
    assert_eq!((w.k(), w.matrices(), w.matrix(1)), (4, 1, None));
    assert_eq!(w.matrix(0), Some(&[2.0, 0.0, 0.5, 0.25][..]));
    let experts = importance.tensor("experts").unwrap();
    let rows: Vec<Option<&[f32]>> = (0..experts.matrices()).map(|index| experts.matrix(index)).collect();
    // No input reached the second.
    assert_eq!(rows, [Some(&[1.0, 2.0][..]), None, Some(&[3.0, 2.0][..])]);
    assert!(importance.tensor("nothing").is_none());
}

#[track_caller]
fn refused(kind: Option<&str>, tensors: &[Given<'_>], expected: &str) {
    let error = read(file(kind, tensors)).expect_err("refused").to_string();
    assert!(error.contains(expected), "no `{expected}` in: {error}");
}

#[test]
fn what_is_no_importance_is_refused() {
    let w: [Given<'_>; 2] = [("w.in_sum2", &[2], &[1.0, 2.0]), ("w.counts", &[1], &[1.0])];
    assert!(read(file(Some("imatrix"), &w)).is_ok());
    refused(None, &w, "`general.type` is missing");
    refused(Some("model"), &w, "`general.type` is `model`");
    refused(Some("imatrix"), &[("w", &[2], &[1.0, 2.0])], "holds the importance of nothing");
    refused(Some("imatrix"), &w[..1], "but no `w.counts`");
    refused(Some("imatrix"), &w[1..], "but no `w.in_sum2`");
    refused(Some("imatrix"), &[w[0], ("w.counts", &[2], &[1.0, 1.0])], "dimensions [2] and its counts [2]");
    refused(Some("imatrix"), &[("w.in_sum2", &[0], &[]), w[1]], "dimensions [0]");
    for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-1.0, "-1")] {
        let sums = [1.0, value];
        refused(Some("imatrix"), &[("w.in_sum2", &[2], &sums), w[1]], &format!("value 1 is {word}"));
        let counts = [value];
        refused(Some("imatrix"), &[w[0], ("w.counts", &[1], &counts)], "`w.counts`: value 0");
    }
    let small = [f32::from_bits(1)];
    refused(Some("imatrix"), &[w[0], ("w.counts", &[1], &small)], "too large for an f32");
    let older = read([&1u32.to_le_bytes()[..], &5u32.to_le_bytes(), b"w.dat", &[0; 64]].concat());
    let older = older.expect_err("no GGUF file").to_string();
    assert!(older.contains("not a GGUF file") && older.contains("--in-file OLD.dat"), "{older}");
}

#[test]
fn other_types_and_cut_files_are_refused() {
    let mut writer = GgufWriter::new();
    writer.metadata("general.type", Value::String("imatrix")).unwrap();
    writer.tensor("w.in_sum2", &[2], 1, 4).unwrap();
    writer.tensor("w.counts", &[1], 0, 4).unwrap();
    let mut stream = writer.write_to(Vec::new()).unwrap();
    stream.data("w.in_sum2", &[0; 4]).unwrap();
    stream.data("w.counts", &[0; 4]).unwrap();
    let error = read(stream.finish().unwrap()).expect_err("f16").to_string();
    assert!(error.contains("`w.in_sum2` is of type number 1, expected f32"), "{error}");
    let whole = file(Some("imatrix"), &[("w.in_sum2", &[2], &[1.0, 2.0]), ("w.counts", &[1], &[1.0])]);
    // Behind the last value there is padding.
    for length in (0..whole.len() - 32).step_by(3) {
        assert!(read(whole[..length].to_vec()).is_err(), "{length} of {} bytes", whole.len());
    }
}
