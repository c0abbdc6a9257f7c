//! Bad files, one defect each: which is found and where.

use super::{FILES, bytes_of, entry, header, raw, sizes, string, tensor_info};
use gristmill::gguf::{Gguf, GgufFile, Problem, ValueType};

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
         reaches beyond the section's end at 1304 (incomplete download, or another type than was named?)",
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
