//! GGUF files: real ones, round trips, and every kind of bad file.

mod classes;
mod damaged;
mod disk;
mod empty;
mod importance;
mod memory;
mod model;
mod real;
mod refused;
mod tiled;
mod transforms;
mod types;
mod written;

use gristmill::gguf::{ArrayBuf, GgufWriter, SizeAnswer, SizeQuery, Value, blocked_size};
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

/// Runs the test of this path, which calls this, once more in a process that may have so many kilobytes of addresses, and returns what that
/// wrote; `None` in that process itself.
#[cfg(unix)]
fn limited(test: &str, kilobytes: u64) -> Option<String> {
    const CHILD: &str = "GRISTMILL_TEST_IN_LITTLE_MEMORY";
    if std::env::var_os(CHILD).is_some() {
        return None;
    }
    let output = std::process::Command::new("sh")
        .args(["-c", &format!("ulimit -v {kilobytes} && exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().unwrap())
        // By where it stands, whatever this binary is called.
        .args(["--exact", test.split_once("::").unwrap().1, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        // So that glibc takes large pieces from the system each time, whatever was given back before.
        .env("MALLOC_MMAP_THRESHOLD_", "131072")
        .output()
        .unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success(), "{}: {said}", output.status);
    Some(said)
}

// ---- Files made byte by byte, without the writer.

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

// ---- A file made by the writer.

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
