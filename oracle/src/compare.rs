//! Where results differ from those of the oracle. Values are compared by their bits, and all NaN count as one value: which of them an
//! operation yields is the processor's choice.

use half::{bf16, f16};

/// The first value that differs; lengths are the caller's to compare.
pub fn first_difference(expected: &[f32], found: &[f32]) -> Option<usize> {
    let differs = |(e, f): (&f32, &f32)| e.to_bits() != f.to_bits() && !(e.is_nan() && f.is_nan());
    expected.iter().zip(found).position(differs)
}

/// Values rounded to a type of 16 bits, to the nearest and of two to the even one, as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halves {
    bits: Vec<u16>,
    /// What is above these bits, less the sign, is NaN.
    infinity: u16,
}

impl Halves {
    /// Values rounded to f16.
    pub fn f16(values: &[f32]) -> Halves {
        let bits = values.iter().map(|value| f16::from_f32(*value).to_bits()).collect();
        Halves { bits, infinity: f16::INFINITY.to_bits() }
    }

    /// Values rounded to bf16.
    pub fn bf16(values: &[f32]) -> Halves {
        let bits = values.iter().map(|value| bf16::from_f32(*value).to_bits()).collect();
        Halves { bits, infinity: bf16::INFINITY.to_bits() }
    }

    /// Their bits.
    pub fn bits(&self) -> &[u16] {
        &self.bits
    }

    /// The first value, of those from `first` on, that differs from `found`, bits of values of the same type.
    pub fn first_difference(&self, first: usize, found: &[u16]) -> Option<usize> {
        let is_nan = |bits: u16| bits & 0x7fff > self.infinity;
        let differs = |(e, f): (&u16, &u16)| e != f && !(is_nan(*e) && is_nan(*f));
        self.bits.iter().skip(first).zip(found).position(differs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_compared_and_nan_is_one_value() {
        let other_nan = f32::from_bits(0xffc0_0001);
        assert_eq!(first_difference(&[1.0, f32::NAN, 0.0], &[1.0, other_nan, -0.0]), Some(2));
        assert_eq!(first_difference(&[f32::NAN], &[f32::INFINITY]), Some(0));
        assert_eq!(first_difference(&[f32::NAN, 0.5], &[other_nan, 0.5]), None);
    }

    #[test]
    fn halves_are_rounded_to_even_and_compared_alike() {
        let halfway = [1.0 + 2f32.powi(-11), 1.0 + 2f32.powi(-8)];
        let values = halfway.map(|value| [value, f32::NAN, -0.0, f32::INFINITY]);
        for (halves, even, infinity) in
            [(Halves::f16(&values[0]), 0x3c00, 0x7c00), (Halves::bf16(&values[1]), 0x3f80, 0x7f80)]
        {
            assert_eq!([halves.bits()[0], halves.bits()[3]], [even, infinity]);
            assert_eq!(halves.first_difference(0, &[even, infinity + 1, 0x8000, infinity]), None);
            assert_eq!(halves.first_difference(0, &[even, infinity, 0x8000, infinity]), Some(1));
            assert_eq!(halves.first_difference(1, &[0xffff, 0]), Some(1));
            assert_eq!(halves.first_difference(3, &[infinity + 1]), Some(0));
        }
    }
}
