//! Rows of a tensor of f32, f16 or bf16, read from the file.

use crate::error::Error;
use gristmill::gguf::{Model, Unquantized};
use gristmill::half::{bf16, f16};

/// A type without blocks that converts to f32 exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// binary32.
    F32,
    /// binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Float {
    /// Every one, with its name and its number in GGUF files.
    pub const ALL: [(Float, &str, u32); 3] =
        [(Float::F32, "f32", 0), (Float::F16, "f16", 1), (Float::Bf16, "bf16", 30)];

    /// The type `plain`, if it is one of these.
    pub fn of(plain: Unquantized) -> Option<Float> {
        Float::named(plain.name)
    }

    /// The type called `name`.
    pub fn named(name: &str) -> Option<Float> {
        Float::ALL.iter().find(|(_, known, _)| *known == name).map(|(float, _, _)| *float)
    }

    /// Bytes of an element.
    pub fn width(self) -> usize {
        if self == Float::F32 { 4 } else { 2 }
    }

    /// As many elements as both have.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Float::F32 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *out = f32::from_le_bytes(*bytes);
                }
            }
            Float::F16 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *out = f16::from_le_bytes(*bytes).to_f32();
                }
            }
            Float::Bf16 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *out = bf16::from_le_bytes(*bytes).to_f32();
                }
            }
        }
    }

    /// The bytes of `values`, appended to `out`.
    pub fn encode(self, values: &[f32], out: &mut Vec<u8>) {
        match self {
            Float::F32 => out.extend(values.iter().flat_map(|x| x.to_le_bytes())),
            Float::F16 => out.extend(values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes())),
            Float::Bf16 => out.extend(values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes())),
        }
    }
}

/// Reads rows from `first` on of `tensor`, whose rows have `k` elements, into `out`; `bytes` is scratch memory of the same
/// number of elements.
///
/// # Errors
/// As for [`gristmill::gguf::Tensor::read`].
pub fn read_rows(
    model: &Model,
    tensor: &str,
    float: Float,
    first: usize,
    k: usize,
    bytes: &mut [u8],
    out: &mut [f32],
) -> Result<(), Error> {
    let bytes = &mut bytes[..out.len() * float.width()];
    if let Some(tensor) = model.file().tensor(tensor) {
        tensor.read((first * k * float.width()) as u64, bytes)?;
    }
    float.decode(bytes, out);
    Ok(())
}
