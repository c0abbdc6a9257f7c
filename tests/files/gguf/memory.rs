//! Files that ask for more memory than there is: errors, and no process that ends.
#![cfg(target_os = "linux")]

use super::{entry, header, limited, sizes, string, tensor_info};
use gristmill::gguf::{GgufFile, Model, ModelError};
use gristmill::import::{Tiled, Tiles};
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::Path;

/// Addresses of the processes in which tests run, in kilobytes: for any binary, and little enough to be taken at once.
const KILOBYTES: u64 = 2_000_000;

/// Takes addresses until there are 16 to 20 megabytes left.
fn ballast() -> Vec<Vec<u8>> {
    const STEP: usize = 4 << 20;
    let mut all = Vec::new();
    loop {
        let mut piece: Vec<u8> = Vec::new();
        if piece.try_reserve_exact(STEP).is_err() {
            break;
        }
        all.push(piece);
    }
    all.truncate(all.len() - 4);
    all
}

#[test]
fn a_header_whose_lists_need_more_memory_than_there_is_is_an_error() {
    const COUNT: u64 = 250_000;
    let name = "a_header_whose_lists_need_more_memory_than_there_is_is_an_error";
    if let Some(said) = limited(&format!("{}::{name}", module_path!()), KILOBYTES) {
        for kind in ["tensors", "entries", "text"] {
            assert!(said.contains(&format!("{kind}.gguf: no memory for a header of ")), "{said}");
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |kind: &str| folder.path().join(format!("{kind}.gguf"));
    for (kind, tensors, entries) in [("tensors", COUNT, 0), ("entries", 0, COUNT)] {
        let mut file = BufWriter::new(std::fs::File::create(path(kind)).unwrap());
        file.write_all(&header(3, tensors, entries)).unwrap();
        for number in 0..tensors {
            file.write_all(&tensor_info(format!("{number:x}"), &[0], 0, 0)).unwrap();
        }
        for number in 0..entries {
            file.write_all(&entry(format!("{number:x}"), 0, &[1])).unwrap();
        }
        drop(file.into_inner().unwrap());
    }
    std::fs::write(path("text"), [header(3, 0, 1), entry("key", 8, &string(vec![b'x'; 12 << 20]))].concat())
        .unwrap();
    let _ballast = ballast();
    for kind in ["tensors", "entries", "text"] {
        println!("{}", GgufFile::open(&path(kind), &sizes).unwrap_err());
    }
}

/// A file that declares a transform in which the array `large` has so many zeros of i8, of which the disk holds nothing.
fn declared(path: &Path, large: &str, count: u64) {
    let key = |name: &str| format!("prism.hadamard.{name}");
    let text = |name: &str, text: &str| entry(key(name), 8, &string(text));
    let array = |name: &str, element: u32, count: u64, elements: &[u8]| {
        entry(key(name), 9, &[&element.to_le_bytes(), &count.to_le_bytes()[..], elements].concat())
    };
    let mut entries = vec![
        entry(key("version"), 4, &1u32.to_le_bytes()),
        entry(key("block_size"), 4, &32u32.to_le_bytes()),
        text("transform", "normalized-sylvester-walsh-hadamard"),
        text("axis", "input-last-dimension"),
        array("weight_names", 8, 1, &string("w")),
    ];
    if large == "weight_names" {
        entries.push(text("sign_mode", "identity"));
    } else {
        entries.push(text("sign_mode", "explicit"));
        entries.push(array("sign_widths", 4, 1, &256u32.to_le_bytes()));
    }
    entries.retain(|entry| !entry[8..].starts_with(key(large).as_bytes()));
    entries.push(array(large, 1, count, &[]));
    let mut head = header(3, 1, entries.len() as u64);
    head.extend(entries.concat());
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(&head).unwrap();
    file.seek(SeekFrom::Current(count as i64)).unwrap();
    let mut table = tensor_info("w", &[256], 0, 0);
    table.resize(
        (head.len() + table.len() + count as usize).next_multiple_of(32) - head.len() - count as usize + 1024,
        0,
    );
    file.write_all(&table).unwrap();
}

/// Elements of an array are looked at where they lie: there is no list of them that takes a multiple of the header.
#[test]
fn arrays_of_a_declared_transform_take_no_more_memory_than_the_header() {
    const COUNT: u64 = 2_000_000;
    let test =
        format!("{}::arrays_of_a_declared_transform_take_no_more_memory_than_the_header", module_path!());
    let cases = [
        ("sign_values", "not an array of the integers 1 and -1"),
        ("sign_widths", "0 for the second time"),
        ("weight_names", "not an array of strings"),
    ];
    if let Some(said) = limited(&test, KILOBYTES) {
        for (key, why) in cases {
            assert!(said.contains(&format!("metadata `prism.hadamard.{key}`: {why}")), "{said}");
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let _ballast = ballast();
    for (key, _) in cases {
        declared(&path, key, COUNT);
        match Model::open(&path) {
            Err(ModelError::Transform(error)) => println!("{error}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn tiled_tensors_of_more_weights_than_memory_are_an_error() {
    const N: usize = 6144;
    let test = format!("{}::tiled_tensors_of_more_weights_than_memory_are_an_error", module_path!());
    if let Some(said) = limited(&test, KILOBYTES) {
        for layout in ["TL1", "TL2"] {
            assert!(said.contains(&format!("{layout}: no memory for {N} x {N} weights")), "{said}");
        }
        return;
    }
    let tiles = Tiles { bm: 256, bk: 96, bmm: 32 };
    let _ballast = ballast();
    for (layout, tiles) in [(Tiled::Tl1, Tiles { bk: 128, ..tiles }), (Tiled::Tl2, tiles)] {
        let bytes = vec![0; layout.tensor_bytes(N as u64, N as u64).unwrap() as usize];
        println!("{}", layout.read(&bytes, N, N, tiles).unwrap_err());
    }
}
