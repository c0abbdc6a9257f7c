//! f32 values of what is stored as f32, f16 or bf16: little-endian, and exactly.

use super::size::Unquantized;

/// A type that converts to f32 exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Float {
    F32,
    F16,
    Bf16,
}

impl Float {
    /// The type without blocks, if it is one of the three.
    pub(crate) fn of(plain: Unquantized) -> Option<Float> {
        match plain.name {
            "f32" => Some(Float::F32),
            "f16" => Some(Float::F16),
            "bf16" => Some(Float::Bf16),
            _ => None,
        }
    }

    /// Bytes of an element.
    pub(crate) fn width(self) -> u64 {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::Bf16 => 2,
        }
    }

    /// Converts as many elements as both have.
    pub(crate) fn convert(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Float::F32 => each(bytes, out, f32::from_le_bytes),
            Float::F16 => each(bytes, out, |bytes| half::f16::from_le_bytes(bytes).to_f32()),
            Float::Bf16 => each(bytes, out, |bytes| half::bf16::from_le_bytes(bytes).to_f32()),
        }
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (out, element) in out.iter_mut().zip(elements) {
        *out = value(*element);
    }
}
