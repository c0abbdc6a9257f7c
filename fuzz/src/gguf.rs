//! GGUF files: `inspect` and `plan`, and the bytes of every tensor through the kernels of its format.

use crate::command;
use crate::seeds::{Seed, files};
use gristmill::gguf::{Gguf, GgufWriter, SizeAnswer, SizeQuery, Value, blocked_size};
use gristmill::registry::FormatInfo;
use gristmill::runtime::vocab::Isa;
use gristmill::{
    CpuProfile, Dequantizer, Error, Input, Matmul, QuantizedMatrix, REGISTRY, Request, Restrict, Shape,
    Threads, Workspace,
};

/// Elements of a tensor that go through kernels.
const MOST: usize = 1 << 14;

fn format_of(type_id: u32) -> Option<&'static FormatInfo> {
    REGISTRY.formats.iter().find(|format| format.gguf == Some(type_id))
}

fn sizes(query: &SizeQuery<'_>) -> SizeAnswer {
    let Some(format) = format_of(query.type_id) else { return SizeAnswer::Unknown };
    let header = format.row_header.map_or(0, |outer| outer.bytes() as u64);
    let tail = format.tensor_tail.map_or(0, |(_, bytes)| bytes as u64);
    blocked_size(query.dims, format.elements as u64, format.bytes as u64, header, tail)
}

/// Never panics; a tensor that is in the file can be read to its end, and kernels of all ISAs make the same of it.
pub fn run(data: &[u8]) {
    let path = command::file(data);
    command::run(&["inspect"], path, &["--metadata"]);
    command::run(&["plan"], path, &[]);
    let Ok(file) = Gguf::parse(data, &sizes) else { return };
    for (_, value) in file.metadata() {
        if let Value::Array(array) = value {
            array.elements().take(100).for_each(drop);
        }
    }
    for tensor in file.tensors().take(8) {
        assert!(file.tensor(tensor.name()).is_some(), "a tensor is not found by its name");
        if !tensor.name().starts_with('-') {
            command::run(&["inspect"], path, &[tensor.name()]);
        }
        let (Ok(bytes), Some(format)) = (tensor.data(), format_of(tensor.type_id())) else { continue };
        // Each extent by itself: a row of 2^47 weights in a tensor without rows takes no byte of the file, but its activations do.
        let k = tensor.dims().first().copied().unwrap_or(1);
        let n = tensor.dims().iter().skip(1).fold(1u64, |n, dim| n.saturating_mul(*dim));
        if k.max(n).max(n.saturating_mul(k)) <= MOST as u64
            && let Ok(matrix) = QuantizedMatrix::new(format, n as usize, k as usize, &bytes[..])
        {
            kernels(&matrix);
        }
    }
}

/// Values and products by the best kernels of this processor and by the portable ones.
fn kernels(matrix: &QuantizedMatrix<'_>) {
    let best = values(matrix, &Restrict::default());
    let portable = values(matrix, &Restrict { isa: Some(Isa::Scalar), ..Restrict::default() });
    assert_eq!(best, portable, "dequantized values of {}", matrix.format().name);
    let best = product(matrix, &Restrict::default());
    let portable = product(matrix, &Restrict { isa: Some(Isa::Scalar), ..Restrict::default() });
    assert_eq!(best, portable, "a product of {}", matrix.format().name);
}

/// NaN made alike: which one comes out is not promised.
fn bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(|y| if y.is_nan() { f32::NAN.to_bits() } else { y.to_bits() }).collect()
}

/// Dequantized values; `None` where the kernel refuses codes or shape.
fn values(matrix: &QuantizedMatrix<'_>, only: &Restrict) -> Option<Vec<u32>> {
    let (n, k) = (matrix.n(), matrix.k());
    let request = Request::dequantize(matrix.format().name, n, k);
    let prepared =
        REGISTRY.prepare_for(&request, CpuProfile::detect(), only).expect("a format of this build");
    let kernel = Dequantizer::new(&prepared.decide(request.shape)).ok()?;
    let mut out = vec![0.0; n * k];
    kernel.run(matrix, &mut out).ok()?;
    Some(bits(out))
}

/// A product of two tokens; `None` where the kernel refuses codes or shape.
fn product(matrix: &QuantizedMatrix<'_>, only: &Restrict) -> Option<Vec<u32>> {
    let shape = Shape::new(2, matrix.n(), matrix.k());
    let request = Request::matmul(matrix.format().name, shape);
    let prepared =
        REGISTRY.prepare_for(&request, CpuProfile::detect(), only).expect("a format of this build");
    let matmul = Matmul::new(&prepared.decide(shape)).ok()?;
    let packed = match matmul.pack(matrix) {
        Err(Error::InvalidCode { .. }) => return None,
        packed => packed.expect("as many bytes as the shape takes"),
    };
    let threads = Threads::single();
    let mut workspace = Workspace::for_(&matmul, shape.m, shape.k, &threads).expect("small");
    let x: Vec<f32> = (0..shape.m * shape.k).map(|i| (i % 13) as f32 - 6.0).collect();
    let mut y = vec![0.0; shape.m * shape.n];
    let input = Input::F32(&x);
    matmul.run(&packed, input, shape.m, None, &mut y, &mut workspace, &threads).expect("finite activations");
    Some(bits(y))
}

/// The files of the tests, and a small one with a tensor of each format.
pub fn seeds() -> Vec<Seed> {
    let mut seeds: Vec<Seed> =
        files("tests/data/gguf").into_iter().filter(|(name, _)| name.ends_with(".gguf")).collect();
    for format in REGISTRY.formats {
        let Some(type_id) = format.gguf else { continue };
        let k = format.elements.next_multiple_of(4).max(8);
        let Ok(bytes) = format.tensor_bytes(2, k) else { continue };
        let mut writer = GgufWriter::new();
        let write = || -> Result<Vec<u8>, gristmill::gguf::WriteError> {
            writer.metadata("general.architecture", Value::String("llama"))?;
            writer.tensor("w", &[k as u64, 2], type_id, bytes as u64)?;
            let without_bytes = format.tensor_bytes(0, k << 40) == Ok(0);
            if without_bytes {
                writer.tensor("rowless", &[(k as u64) << 40, 0], type_id, 0)?;
            }
            let mut stream = writer.write_to(Vec::new())?;
            stream.data("w", &vec![0x5a; bytes])?;
            if without_bytes {
                stream.data("rowless", &[])?;
            }
            stream.finish()
        };
        seeds.push((format!("{}.gguf", format.name), write().expect("what a writer is for")));
    }
    seeds
}
