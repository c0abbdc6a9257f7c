//! The types without blocks that models are made with.

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

    /// The type called `name`.
    pub fn named(name: &str) -> Option<Float> {
        Float::ALL.iter().find(|(_, known, _)| *known == name).map(|(float, _, _)| *float)
    }

    /// Bytes of an element.
    pub fn width(self) -> usize {
        if self == Float::F32 { 4 } else { 2 }
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
