//! GGUF files: real ones, round trips, and every kind of bad file.

use gristmill::gguf::{
    ArrayBuf, Gguf, GgufFile, GgufWriter, NoDataReason, Origin, Problem, SizeAnswer, SizeQuery, Value,
    ValueType, WriteError, blocked_size, unquantized_only,
};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

const FILES: [&str; 4] = ["i2_s.gguf", "tq2_0.gguf", "iq2_s.gguf", "q4_k.gguf"];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf").join(name)
}

fn bytes_of(name: &str) -> Vec<u8> {
    let path = data(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Sizes of the formats in the test files.
fn sizes(tensor: &SizeQuery<'_>) -> SizeAnswer {
    match tensor.type_id {
        12 => blocked_size(tensor.dims, 256, 144, 0, 0),
        22 => blocked_size(tensor.dims, 256, 82, 0, 0),
        35 => blocked_size(tensor.dims, 256, 66, 0, 0),
        36 => blocked_size(tensor.dims, 128, 32, 0, 32),
        _ => SizeAnswer::Unknown,
    }
}

// ---- Real files.

#[test]
fn i2_s_file_has_the_tensors_that_the_reference_lists() {
    let file = GgufFile::open(&data("i2_s.gguf"), &sizes).unwrap();
    assert_eq!((file.version(), file.alignment()), (3, 32));
    assert_eq!(file.architecture(), Some("bitnet-b1.58"));
    assert_eq!(file.file_type(), Some(40));
    assert_eq!(file.origin(), Some(Origin::BitnetCpp));
    assert_eq!(file.value("golden.seed"), Some(Value::U32(99)));
    assert_eq!(file.value("golden.see"), None);
    let found: Vec<_> =
        file.tensors().map(|t| (t.name(), t.dims(), t.type_id(), t.offset(), t.size().unwrap())).collect();
    let start = file.data_start();
    assert_eq!(start % 32, 0);
    assert_eq!(
        found,
        [
            // 512 bytes of codes and the tail of 32: section 6.1 of the reference.
            ("blk.0.attn_q.weight", &[256, 8][..], 36, start, 544),
            ("blk.0.attn_norm.weight", &[256][..], 0, start + 544, 1024),
            ("blk.0.attn_k.weight", &[128, 3][..], 36, start + 1568, 128),
            ("token_embd.weight", &[64, 2][..], 1, start + 1696, 256),
        ]
    );
    for tensor in file.tensors() {
        assert_eq!(file.tensor(tensor.name()).unwrap().data().unwrap(), tensor.data().unwrap());
    }
    assert!(file.tensor("blk.0").is_none());
}

#[test]
fn i2_s_codes_and_tail_decode_to_the_golden_values() {
    let file = GgufFile::open(&data("i2_s.gguf"), &sizes).unwrap();
    let packed = file.tensor("blk.0.attn_q.weight").unwrap().data().unwrap();
    let scale = f32::from_le_bytes(packed[512..516].try_into().unwrap());
    let golden = bytes_of("i2_s.attn_q.f32");
    let golden: Vec<f32> = golden.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(golden.len(), 2048);
    for (i, &value) in golden.iter().enumerate() {
        let code = packed[i / 128 * 32 + i % 32] >> (6 - 2 * (i % 128 / 32)) & 3;
        assert_eq!(scale * (f32::from(code) - 1.0), value, "element {i}");
    }
}

#[test]
fn block_formats_have_their_sizes() {
    for (name, sizes_of) in [("tq2_0", [528, 28, 66]), ("iq2_s", [656, 28, 82]), ("q4_k", [1152, 28, 144])] {
        let file = GgufFile::open(&data(&format!("{name}.gguf")), &sizes).unwrap();
        let found: Vec<u64> = file.tensors().map(|t| t.size().unwrap()).collect();
        assert_eq!(found, sizes_of, "{name}");
        assert_eq!(file.origin(), Some(Origin::Ggml));
        assert!(file.tensors().all(|t| t.data().unwrap().len() as u64 == t.size().unwrap()));
    }
}

#[test]
fn undescribed_types_are_listed_and_refuse_their_data() {
    let file = GgufFile::open(&data("i2_s.gguf"), &unquantized_only).unwrap();
    assert_eq!(file.tensors().len(), 4);
    let unknown = file.tensor("blk.0.attn_k.weight").unwrap();
    assert_eq!((unknown.type_id(), unknown.elements()), (36, 384));
    let refusal = unknown.data().unwrap_err();
    assert_eq!(refusal.reason, NoDataReason::UnknownType);
    assert_eq!(
        refusal.to_string(),
        "tensor `blk.0.attn_k.weight` (type id 36, dimensions [128, 3]): no described format has this type id, \
         so its size is unknown"
    );
    assert_eq!(file.tensor("token_embd.weight").unwrap().data().unwrap().len(), 256);
}

#[test]
fn lookup_is_told_what_decides_between_formats_of_one_id() {
    let seen = std::cell::RefCell::new(Vec::new());
    let file = Gguf::parse(bytes_of("i2_s.gguf"), &|tensor| {
        let known = (tensor.architecture, tensor.file_type, tensor.origin);
        assert_eq!(known, (Some("bitnet-b1.58"), Some(40), Some(Origin::BitnetCpp)));
        seen.borrow_mut().push((tensor.name.to_owned(), tensor.room));
        SizeAnswer::Ambiguous("39 is mxfp4 or tl2".to_owned())
    })
    .unwrap();
    let expected = [("blk.0.attn_q.weight".to_owned(), 544), ("blk.0.attn_k.weight".to_owned(), 128)];
    assert_eq!(*seen.borrow(), expected);
    let reason = file.tensor("blk.0.attn_q.weight").unwrap().size().unwrap_err().reason;
    assert_eq!(reason, NoDataReason::Ambiguous("39 is mxfp4 or tl2".to_owned()));
}

#[test]
fn origin_is_told_only_where_it_is_certain() {
    assert_eq!(Origin::of(Some("llama"), Some(39)), Some(Origin::Ggml));
    assert_eq!(Origin::of(Some("bitnet"), Some(39)), Some(Origin::BitnetCpp));
    assert_eq!(Origin::of(Some("bitnet"), Some(36)), None);
    assert_eq!(Origin::of(None, Some(39)), None);
}

#[test]
fn blocked_sizes() {
    assert_eq!(blocked_size(&[256, 8], 128, 32, 0, 32), SizeAnswer::Bytes(544));
    assert_eq!(blocked_size(&[128, 3, 2], 64, 16, 4, 0), SizeAnswer::Bytes(6 * 36));
    assert_eq!(blocked_size(&[0, 3], 64, 16, 0, 0), SizeAnswer::Bytes(0));
    let SizeAnswer::BadShape(why) = blocked_size(&[300, 3], 256, 66, 0, 0) else {
        panic!("300 is no multiple")
    };
    assert_eq!(why, "rows of 300 elements are not a whole number of blocks of 256");
    assert!(matches!(blocked_size(&[1 << 40, 1 << 40], 256, 66, 0, 0), SizeAnswer::BadShape(_)));
    assert!(matches!(blocked_size(&[256], 0, 66, 0, 0), SizeAnswer::BadShape(_)));
    let bad = raw(&[], &[("w", &[300, 1], 35, 0)], &[0; 128]);
    let file = Gguf::parse(bad, &sizes).unwrap();
    assert!(matches!(file.tensor("w").unwrap().size().unwrap_err().reason, NoDataReason::BadShape(_)));
}

// ---- Bad files, made byte by byte without the writer.

fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

fn entry(key: impl AsRef<[u8]>, value_type: u32, value: &[u8]) -> Vec<u8> {
    [string(key), value_type.to_le_bytes().to_vec(), value.to_vec()].concat()
}

fn tensor_info(name: impl AsRef<[u8]>, dims: &[u64], type_id: u32, offset: u64) -> Vec<u8> {
    let mut info = string(name);
    info.extend((dims.len() as u32).to_le_bytes());
    info.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
    info.extend(type_id.to_le_bytes());
    info.extend(offset.to_le_bytes());
    info
}

fn header(version: u32, tensors: u64, entries: u64) -> Vec<u8> {
    [&b"GGUF"[..], &version.to_le_bytes(), &tensors.to_le_bytes(), &entries.to_le_bytes()].concat()
}

/// A file of entries, tensors (name, dimensions, type, offset) and a data section, aligned to 32.
fn raw(entries: &[Vec<u8>], tensors: &[(&str, &[u64], u32, u64)], data: &[u8]) -> Vec<u8> {
    let mut file = header(3, tensors.len() as u64, entries.len() as u64);
    file.extend(entries.concat());
    for (name, dims, type_id, offset) in tensors {
        file.extend(tensor_info(name, dims, *type_id, *offset));
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    file
}

/// The defect that is found in `file` and its byte offset.
#[track_caller]
fn defect(file: &[u8]) -> (Problem, u64) {
    match Gguf::parse(file, &sizes) {
        Ok(_) => panic!("the file was accepted"),
        Err(error) => (error.problem().expect("not an error of the system").clone(), error.offset().unwrap()),
    }
}

#[test]
fn refuses_what_is_not_gguf() {
    assert_eq!(defect(b""), (Problem::Magic { found: vec![] }, 0));
    assert_eq!(defect(b"GGU"), (Problem::Magic { found: b"GGU".to_vec() }, 0));
    assert_eq!(defect(b"ggml...."), (Problem::Magic { found: b"ggml".to_vec() }, 0));
}

#[test]
fn refuses_other_versions_and_byte_orders() {
    assert_eq!(defect(&header(1, 0, 0)), (Problem::Version(1), 4));
    assert_eq!(defect(&header(4, 0, 0)), (Problem::Version(4), 4));
    assert_eq!(defect(&header(0, 0, 0)), (Problem::Version(0), 4));
    let (problem, at) = defect(&header(3u32.swap_bytes(), 0, 0));
    assert_eq!((&problem, at), (&Problem::BigEndian(3), 4));
    assert!(problem.to_string().contains("big-endian"));
    assert!(Gguf::parse(header(2, 0, 0), &sizes).is_ok());
}

#[test]
fn refuses_counts_that_the_rest_cannot_hold() {
    let what = "tensor count";
    let expected = Problem::Count { what, count: u64::MAX, left: 0, most: 0 };
    assert_eq!(defect(&header(3, u64::MAX, 0)), (expected, 8));
    let mut file = header(3, 0, 3);
    file.extend([0; 38]); // Three entries take at least 39 bytes.
    let expected = Problem::Count { what: "metadata count", count: 3, left: 38, most: 2 };
    assert_eq!(defect(&file), (expected, 16));
    let array = [&4u32.to_le_bytes()[..], &(1u64 << 60).to_le_bytes(), &[0; 16]].concat();
    let expected = Problem::Count { what: "number of array elements", count: 1 << 60, left: 16, most: 4 };
    assert_eq!(defect(&raw_unpadded(entry("k", 9, &array))), (expected, 24 + 9 + 4 + 4));
}

fn raw_unpadded(entry: Vec<u8>) -> Vec<u8> {
    [header(3, 0, 1), entry].concat()
}

#[test]
fn refuses_strings_longer_than_the_file() {
    for length in [21, 1 << 63, u64::MAX] {
        let mut file = header(3, 0, 1);
        file.extend(length.to_le_bytes());
        file.extend([b'x'; 20]);
        let expected = Problem::StringLength { what: "metadata key", length, left: 20 };
        assert_eq!(defect(&file), (expected, 24));
    }
}

#[test]
fn refuses_strings_that_are_not_utf8() {
    let key = raw(&[entry(b"ab\xff", 0, &[1])], &[], &[]);
    assert_eq!(defect(&key), (Problem::Utf8 { what: "metadata key" }, 24 + 8 + 2));
    let value = raw(&[entry("key", 8, &string(b"\xc3("))], &[], &[]);
    assert_eq!(defect(&value), (Problem::Utf8 { what: "metadata value" }, 24 + 11 + 4 + 8));
    let element = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &string("a"), &string([0x80])].concat();
    let array = raw(&[entry("key", 9, &element)], &[], &[]);
    assert_eq!(defect(&array), (Problem::Utf8 { what: "metadata value" }, 24 + 11 + 4 + 12 + 9 + 8));
    let mut name = header(3, 1, 0);
    name.extend(tensor_info(b"\xff", &[1], 0, 0));
    assert_eq!(defect(&name), (Problem::Utf8 { what: "tensor name" }, 24 + 8));
}

#[test]
fn refuses_unknown_value_types_nested_arrays_and_odd_bools() {
    assert_eq!(defect(&raw(&[entry("key", 13, &[0; 8])], &[], &[])), (Problem::ValueType(13), 24 + 11));
    let nested = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &[0; 32]].concat();
    assert_eq!(defect(&raw(&[entry("key", 9, &nested)], &[], &[])), (Problem::NestedArray, 24 + 11 + 4));
    let unknown = [&77u32.to_le_bytes()[..], &1u64.to_le_bytes(), &[0; 32]].concat();
    assert_eq!(defect(&raw(&[entry("key", 9, &unknown)], &[], &[])), (Problem::ValueType(77), 24 + 11 + 4));
    assert_eq!(defect(&raw(&[entry("key", 7, &[2])], &[], &[])), (Problem::Bool(2), 24 + 11 + 4));
    let bools = [&7u32.to_le_bytes()[..], &3u64.to_le_bytes(), &[0, 1, 7]].concat();
    assert_eq!(defect(&raw(&[entry("key", 9, &bools)], &[], &[])), (Problem::Bool(7), 24 + 11 + 4 + 12 + 2));
}

#[test]
fn refuses_duplicates() {
    let entries = [entry("key", 0, &[1]), entry("key", 0, &[2])];
    assert_eq!(defect(&raw(&entries, &[], &[])), (Problem::DuplicateKey, 24 + 16));
    let tensors = [("w", &[8][..], 0, 0), ("v", &[8][..], 0, 32), ("w", &[8][..], 0, 64)];
    let (problem, at) = defect(&raw(&[], &tensors, &[0; 96]));
    assert_eq!((problem, at), (Problem::DuplicateTensor, 24 + 2 * 33));
}

#[test]
fn refuses_bad_alignments() {
    let alignment = |bytes: u32| entry("general.alignment", 4, &bytes.to_le_bytes());
    let value_at = 24 + 8 + 17 + 4;
    for bad in [0, 24, 33, u32::MAX] {
        assert_eq!(defect(&raw(&[alignment(bad)], &[], &[])), (Problem::Alignment(bad), value_at));
    }
    let wide = entry("general.alignment", 10, &32u64.to_le_bytes());
    assert_eq!(defect(&raw(&[wide], &[], &[])), (Problem::AlignmentType(ValueType::U64), value_at - 4));
    let expected = Problem::Misaligned { offset: 16, alignment: 32 };
    assert_eq!(defect(&raw(&[], &[("w", &[8], 0, 16)], &[0; 96])), (expected, 24));
    let expected = Problem::Misaligned { offset: 32, alignment: 64 };
    assert_eq!(defect(&raw(&[alignment(64)], &[("w", &[8], 0, 32)], &[0; 128])).0, expected);
    // An alignment of 2 GiB is odd but valid; the data section then starts behind the end.
    let far = raw(&[alignment(1 << 31)], &[("w", &[8], 0, 0)], &[0; 96]);
    assert_eq!(defect(&far).0, Problem::BeyondEnd { offset: 0, size: 32, section: 0 });
}

#[test]
fn refuses_bad_dimensions() {
    assert_eq!(defect(&raw(&[], &[("w", &[1; 5], 0, 0)], &[0; 64])), (Problem::Dimensions(5), 24 + 9));
    let mut file = header(3, 1, 0);
    file.extend(string("w"));
    file.extend(u32::MAX.to_le_bytes());
    file.extend([0; 32]);
    assert_eq!(defect(&file), (Problem::Dimensions(u32::MAX), 24 + 9));
    for dims in [&[1 << 32, 1 << 32][..], &[1 << 32, 1 << 32, 0], &[0, 1 << 32, 1 << 32]] {
        let expected = Problem::Overflow { dims: dims.to_vec(), what: "elements" };
        assert_eq!(defect(&raw(&[], &[("w", dims, 36, 0)], &[0; 64])), (expected, 24 + 9));
    }
    let expected = Problem::Overflow { dims: vec![1 << 62], what: "bytes" };
    assert_eq!(defect(&raw(&[], &[("w", &[1 << 62], 0, 0)], &[0; 64])), (expected, 24 + 9));
}

#[test]
fn refuses_tensors_beyond_the_end() {
    let expected = Problem::BeyondEnd { offset: 32, size: 36, section: 64 };
    assert_eq!(defect(&raw(&[], &[("w", &[9], 0, 32)], &[0; 64])), (expected, 24));
    let offset = u64::MAX - 31;
    let expected = Problem::BeyondEnd { offset, size: 36, section: 64 };
    assert_eq!(defect(&raw(&[], &[("w", &[9], 0, offset)], &[0; 64])).0, expected);
    // Of an unknown type at least the start must be there.
    let expected = Problem::BeyondEnd { offset: 64, size: 1, section: 64 };
    assert_eq!(defect(&raw(&[], &[("w", &[9], 99, 64)], &[0; 64])).0, expected);
    // The padding of the last tensor may be missing, and a tensor may be empty.
    assert!(Gguf::parse(raw(&[], &[("w", &[9], 0, 32)], &[0; 68]), &sizes).is_ok());
    assert!(Gguf::parse(raw(&[], &[("w", &[0], 0, 64)], &[0; 64]), &sizes).is_ok());
}

#[test]
fn refuses_overlapping_tensors() {
    // Not in the order of their data, and in the middle of others.
    let tensors = [("c", &[8][..], 0, 96), ("b", &[8][..], 0, 32), ("a", &[9][..], 0, 0)];
    let expected = Problem::Overlap { offset: 32, other: "a".to_owned(), end: 36 };
    let b_at = 24 + 33;
    assert_eq!(defect(&raw(&[], &tensors, &[0; 128])), (expected, b_at));
    let tensors = [("a", &[9][..], 99, 0), ("b", &[8][..], 98, 0)];
    let expected = Problem::Overlap { offset: 0, other: "a".to_owned(), end: 1 };
    assert_eq!(defect(&raw(&[], &tensors, &[0; 128])).0, expected);
    let tensors = [("a", &[8][..], 0, 0), ("empty", &[0][..], 0, 0)];
    assert!(Gguf::parse(raw(&[], &tensors, &[0; 32]), &sizes).is_ok());
}

#[test]
fn errors_name_file_byte_place_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short.gguf");
    let bytes = bytes_of("q4_k.gguf");
    std::fs::write(&path, &bytes[..bytes.len() - 40]).unwrap();
    let message = GgufFile::open(&path, &sizes).unwrap_err().to_string();
    let expected = format!(
        "{}: byte 256: tensor `blk.1.ffn_up.weight`: its data, 144 bytes at offset 1184 of the data section, \
         reaches beyond the section's end at 1304 (incomplete download?)",
        path.display()
    );
    assert_eq!(message, expected);
    let missing = folder.path().join("missing.gguf");
    let message = GgufFile::open(&missing, &sizes).unwrap_err().to_string();
    assert!(message.starts_with(&format!("{}: cannot open: ", missing.display())), "{message}");
}

#[test]
fn every_prefix_of_a_real_file_is_refused() {
    for name in FILES {
        let bytes = bytes_of(name);
        let file = Gguf::parse(&bytes[..], &sizes).unwrap();
        let end = file.tensors().map(|t| t.offset() + t.size().unwrap()).max().unwrap() as usize;
        for length in 0..end {
            assert!(Gguf::parse(&bytes[..length], &sizes).is_err(), "{name} cut to {length} bytes");
        }
        assert!(Gguf::parse(&bytes[..end], &sizes).is_ok(), "{name} without its last padding");
    }
}

/// Uses everything that an accepted file offers.
fn walk(bytes: &[u8], sizes: &dyn Fn(&SizeQuery<'_>) -> SizeAnswer) {
    let Ok(file) = Gguf::parse(bytes, sizes) else { return };
    for (key, value) in file.metadata() {
        assert!(file.value(key).is_some());
        if let Some(array) = value.as_array() {
            assert_eq!(array.elements().filter(|element| element.is_ok()).count() as u64, array.len());
        }
    }
    for tensor in file.tensors() {
        assert!(file.tensor(tensor.name()).is_some());
        if let (Ok(data), Ok(size)) = (tensor.data(), tensor.size()) {
            assert_eq!(data.len() as u64, size);
        }
    }
}

/// A file with every value type.
fn rich() -> Vec<u8> {
    let mut writer = GgufWriter::with_alignment(64).unwrap();
    let arrays = [
        ("a.strings", ArrayBuf::strings(["a", "", "Wörter"])),
        ("a.f32", ArrayBuf::f32s([1.5, -0.0])),
        ("a.i32", ArrayBuf::i32s([-1, 7])),
        ("a.u32", ArrayBuf::u32s([1, u32::MAX])),
        ("a.u64", ArrayBuf::u64s([u64::MAX])),
        ("a.bool", ArrayBuf::bools([true, false])),
        ("a.empty", ArrayBuf::strings([])),
    ];
    for (key, value) in scalars() {
        writer.metadata(key, value).unwrap();
    }
    for (key, array) in &arrays {
        writer.metadata(key, array.value()).unwrap();
    }
    writer.tensor("f32", &[3, 2], 0, 24).unwrap();
    writer.tensor("none", &[0, 4], 30, 0).unwrap();
    writer.tensor("ternary", &[128, 3], 36, 128).unwrap();
    writer.tensor("scalar", &[], 28, 8).unwrap();
    let mut stream = writer.write_to(Vec::new()).unwrap();
    stream.data("f32", &[1; 20]).unwrap();
    stream.data("f32", &[2; 4]).unwrap();
    stream.data("ternary", &[3; 128]).unwrap();
    stream.data("scalar", &[4; 8]).unwrap();
    stream.finish().unwrap()
}

fn scalars() -> [(&'static str, Value<'static>); 12] {
    [
        ("general.architecture", Value::String("llama")),
        ("u8", Value::U8(255)),
        ("i8", Value::I8(-128)),
        ("u16", Value::U16(65535)),
        ("i16", Value::I16(-2)),
        ("u32", Value::U32(7)),
        ("i32", Value::I32(-7)),
        ("f32", Value::F32(0.1)),
        ("bool", Value::Bool(true)),
        ("u64", Value::U64(1 << 63)),
        ("i64", Value::I64(i64::MIN)),
        ("f64", Value::F64(1e300)),
    ]
}

proptest! {
    #[test]
    fn mutated_files_never_panic(
        which in 0..FILES.len() + 1,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
        keep in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = FILES.get(which).map_or_else(rich, |name| bytes_of(name));
        // Most defects are found in the tables, which are the first part of these files.
        let table = bytes.len().min(512);
        for (at, byte) in changes {
            bytes[at.index(table)] = byte;
        }
        if let Some(keep) = keep {
            bytes.truncate(keep.index(bytes.len() + 1));
        }
        walk(&bytes, &sizes);
        walk(&bytes, &unquantized_only);
        walk(&bytes, &|tensor| SizeAnswer::Bytes(tensor.room));
        walk(&bytes, &|_| SizeAnswer::Bytes(u64::MAX));
    }

    #[test]
    fn numbers_in_the_tables_never_panic(
        which in 0..FILES.len() + 1,
        at in 4usize..500,
        number in prop_oneof![Just(u64::MAX), Just(1 << 63), Just(u64::MAX - 31), any::<u64>(), 0u64..64],
    ) {
        let mut bytes = FILES.get(which).map_or_else(rich, |name| bytes_of(name));
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        walk(&bytes, &sizes);
        walk(&bytes, &|tensor| SizeAnswer::Bytes(tensor.room));
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        walk(&noise, &sizes);
        walk(&[header(3, 1, 1), noise].concat(), &sizes);
    }
}

// ---- Round trips.

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
    let f32s = [[1; 20].as_slice(), &[2; 4]].concat();
    assert_eq!(file.tensor("f32").unwrap().data().unwrap(), f32s);
    assert!(file.tensor("none").unwrap().data().unwrap().is_empty());
    assert_eq!(file.tensor("ternary").unwrap().data().unwrap(), [3; 128]);
    assert_eq!(file.tensor("scalar").unwrap().data().unwrap(), [4; 8]);
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
    assert_eq!(file.tensor("w").unwrap().data().unwrap(), [1; 32]);
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
