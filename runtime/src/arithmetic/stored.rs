//! Values as files store them.

use super::halves::widen_f16;
use gristmill_spec::vocab::DType;
use half::{bf16, f16};

/// A type that converts to f32 exactly, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredFloat {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
}

impl StoredFloat {
    /// The type, if it is one of the three.
    pub fn of(dtype: DType) -> Option<StoredFloat> {
        match dtype {
            DType::F32 => Some(StoredFloat::F32),
            DType::F16 => Some(StoredFloat::F16),
            DType::Bf16 => Some(StoredFloat::Bf16),
            DType::I8 => None,
        }
    }

    /// Bytes of an element.
    pub fn width(self) -> usize {
        match self {
            StoredFloat::F32 => 4,
            StoredFloat::F16 | StoredFloat::Bf16 => 2,
        }
    }

    /// Converts as many elements as both have.
    pub fn convert(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            StoredFloat::F32 => each(bytes, out, f32::from_le_bytes),
            StoredFloat::F16 => convert_f16(bytes, out),
            StoredFloat::Bf16 => each(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        }
    }
}

/// Some at a time, in memory that is aligned for them, as bytes of a file need not be.
fn convert_f16(bytes: &[u8], out: &mut [f32]) {
    let (elements, _) = bytes.as_chunks();
    let mut some = [f16::ZERO; 256];
    for (elements, out) in elements.chunks(some.len()).zip(out.chunks_mut(some.len())) {
        for (value, element) in some.iter_mut().zip(elements) {
            *value = f16::from_le_bytes(*element);
        }
        widen_f16(&some[..elements.len()], out);
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (out, element) in out.iter_mut().zip(elements) {
        *out = value(*element);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Around the numbers that are converted at once, from every place in memory, with rest bytes and with too short an output.
    #[test]
    fn values_are_those_of_their_bytes() {
        for count in [0_usize, 1, 255, 256, 257, 600] {
            let values: Vec<f32> = (0..count).map(|i| (i as f32 - 100.0) * 0.125).collect();
            let f16s: Vec<u8> = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
            let bf16s: Vec<u8> = values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
            let f32s: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            for (dtype, stored) in [(DType::F16, f16s), (DType::Bf16, bf16s), (DType::F32, f32s)] {
                let float = StoredFloat::of(dtype).unwrap();
                for begin in 0..4 {
                    let mut bytes = vec![0xff; begin];
                    bytes.extend(&stored);
                    bytes.push(0xff);
                    for len in [count, count.saturating_sub(3), count + 2] {
                        let mut out = vec![-1.0; len];
                        float.convert(&bytes[begin..], &mut out);
                        let rounded = |x: &f32| match float {
                            StoredFloat::Bf16 => bf16::from_f32(*x).to_f32(),
                            StoredFloat::F32 | StoredFloat::F16 => *x,
                        };
                        let expected = values.iter().map(rounded).chain([-1.0; 2]).take(len);
                        assert!(out.iter().copied().eq(expected), "{dtype} {count} {begin} {len}");
                    }
                }
            }
        }
    }
}
