//! Bits of a block by address, and what numbers they are.

use gristmill_spec::model::{Field, FieldLayout, FieldType, Scalar};

/// Where one value of a field is.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Bit addresses, lowest bit of the value first.
    Bits(Vec<usize>),
    /// A digit of a byte: the one that counts `weight` in the number of the byte, which is below `numbers`.
    Digit { byte: usize, weight: u32, base: u32, numbers: u32 },
}

/// Where every value of a field is.
pub(super) fn places(field: &Field) -> Vec<Place> {
    match &field.layout {
        FieldLayout::Bits(slices) => (0..field.count)
            .map(|index| {
                let bits = slices.iter().flat_map(|slice| {
                    let first = slice.address(index);
                    // The checker proved that every bit lies in the block, so none is negative.
                    (0..i64::from(slice.bits)).filter_map(move |bit| usize::try_from(first + bit).ok())
                });
                Place::Bits(bits.collect())
            })
            .collect(),
        FieldLayout::Digits { radix, most_significant_first, segments } => {
            let base = radix.base();
            // As many digits as a byte can tell apart.
            let digits = (1..=8).take_while(|digits| base.pow(*digits) <= 256).last().unwrap_or(1);
            let numbers = base.pow(digits);
            let place = Place::Digit { byte: 0, weight: 1, base, numbers };
            let mut places = vec![place; field.count as usize];
            for segment in segments {
                let steps: u32 = segment.digits.iter().map(|digit| digit.extent).product();
                for step in 0..steps {
                    let (mut rest, mut element) = (step, segment.first);
                    let (mut bit, mut number) = (i64::from(segment.offset), 0);
                    for digit in segment.digits.iter().rev() {
                        let at = rest % digit.extent;
                        rest /= digit.extent;
                        element += at * digit.element;
                        bit += i64::from(at) * digit.stride;
                        number += at * digit.digit;
                    }
                    let power =
                        if *most_significant_first { (digits - 1).saturating_sub(number) } else { number };
                    if let Some(place) = places.get_mut(element as usize) {
                        *place = Place::Digit {
                            byte: usize::try_from(bit / 8).unwrap_or(0),
                            weight: base.pow(power),
                            base,
                            numbers,
                        };
                    }
                }
            }
            places
        }
    }
}

impl Place {
    /// The first byte of the block that holds some of it.
    pub(super) fn byte(&self) -> usize {
        match self {
            Place::Bits(bits) => bits.iter().min().map_or(0, |bit| bit / 8),
            Place::Digit { byte, .. } => *byte,
        }
    }

    pub(super) fn read(&self, block: &[u8]) -> u32 {
        match self {
            Place::Bits(bits) => {
                bits.iter().rev().fold(0, |raw, bit| raw << 1 | u32::from(block[bit / 8] >> (bit % 8) & 1))
            }
            Place::Digit { byte, weight, base, numbers } => number_of(block[*byte], *numbers) / weight % base,
        }
    }

    pub(super) fn write(&self, block: &mut [u8], raw: u32) {
        match self {
            Place::Bits(bits) => {
                for (i, bit) in bits.iter().enumerate() {
                    let mask = 1u8 << (bit % 8);
                    if raw >> i & 1 == 1 {
                        block[bit / 8] |= mask;
                    } else {
                        block[bit / 8] &= !mask;
                    }
                }
            }
            Place::Digit { byte, weight, base, numbers } => {
                let number = number_of(block[*byte], *numbers);
                let number = number - number / weight % base * weight + raw % base * weight;
                // The smallest byte that stands for the number: at most 255.
                block[*byte] = (256 * number).div_ceil(*numbers) as u8;
            }
        }
    }
}

/// The number below `numbers` that a byte stands for.
fn number_of(byte: u8, numbers: u32) -> u32 {
    u32::from(byte) * numbers / 256
}

/// What the raw bits of a field are as numbers.
pub(super) trait Raw {
    /// As an integer: sign-extended where the type is signed.
    fn signed(&self, raw: u32) -> i32;
    /// As a floating-point number, if the type is one.
    fn number(&self, raw: u32) -> Option<f64>;
}

impl Raw for FieldType {
    fn signed(&self, raw: u32) -> i32 {
        match self {
            FieldType::Signed(bits) if raw >> (bits - 1) & 1 == 1 => raw as i32 - (1 << bits),
            FieldType::Signed(_) | FieldType::Unsigned(_) | FieldType::Scalar(_) | FieldType::Digit(_) => {
                raw as i32
            }
        }
    }

    fn number(&self, raw: u32) -> Option<f64> {
        match self {
            FieldType::Scalar(scalar) => Some(number(*scalar, raw)),
            FieldType::Signed(_) | FieldType::Unsigned(_) | FieldType::Digit(_) => None,
        }
    }
}

/// The number that the bits of a scalar stand for. Every value of every type is exact in f64, and in f32.
pub(super) fn number(scalar: Scalar, raw: u32) -> f64 {
    match scalar {
        Scalar::F16 => ieee(raw, 5, 10),
        Scalar::Bf16 => ieee(raw, 8, 7),
        Scalar::F32 => ieee(raw, 8, 23),
        Scalar::E8m0Half => 2f64.powi((raw & 0xff) as i32 - 128),
        Scalar::Ue4m3Half => match raw & 0x7f {
            0x7f => 0.0,
            bits => 0.5 * ieee_parts((bits >> 3) as i32, bits & 7, 4, 3),
        },
    }
}

/// An IEEE number of one sign bit, `exponent` and `mantissa` bits.
fn ieee(raw: u32, exponent: u32, mantissa: u32) -> f64 {
    let sign = if raw >> (exponent + mantissa) & 1 == 1 { -1.0 } else { 1.0 };
    let field = raw >> mantissa & ((1 << exponent) - 1);
    let fraction = raw & ((1 << mantissa) - 1);
    if field == (1 << exponent) - 1 {
        return if fraction == 0 { sign * f64::INFINITY } else { f64::NAN };
    }
    sign * ieee_parts(field as i32, fraction, exponent, mantissa)
}

fn ieee_parts(field: i32, fraction: u32, exponent: u32, mantissa: u32) -> f64 {
    let bias = (1 << (exponent - 1)) - 1;
    let unit = 2f64.powi(-(mantissa as i32));
    let fraction = f64::from(fraction) * unit;
    if field == 0 { fraction * 2f64.powi(1 - bias) } else { (1.0 + fraction) * 2f64.powi(field - bias) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (raw, expected) in [(0x3c00, 1.0), (0xc000, -2.0), (0x0001, 2f64.powi(-24)), (0x7bff, 65504.0)] {
            assert_eq!(number(Scalar::F16, raw), expected);
        }
        for value in [1.0f32, -0.1, f32::MAX, f32::MIN_POSITIVE / 8.0, f32::NEG_INFINITY] {
            assert_eq!(number(Scalar::F32, value.to_bits()), f64::from(value));
        }
        assert_eq!(number(Scalar::Bf16, 0x3f80), 1.0);
        assert_eq!(number(Scalar::E8m0Half, 128), 1.0);
        assert_eq!(number(Scalar::Ue4m3Half, 0x38), 0.5);
        assert_eq!(number(Scalar::Ue4m3Half, 0xff), 0.0);
        assert_eq!(number(Scalar::Ue4m3Half, 1), 2f64.powi(-10));
    }

    #[test]
    fn digits_read_back() {
        for (base, digits) in [(3u32, 5), (5, 3), (6, 3), (7, 2), (15, 2)] {
            let mut block = [0u8; 1];
            let numbers = base.pow(digits);
            for number in 0..numbers {
                for power in 0..digits {
                    let weight = base.pow(power);
                    let place = Place::Digit { byte: 0, weight, base, numbers };
                    place.write(&mut block, number / weight % base);
                }
                assert_eq!(u32::from(block[0]), (256 * number).div_ceil(numbers), "base {base}");
                assert_eq!(number_of(block[0], numbers), number, "base {base}");
            }
        }
    }

    #[test]
    fn bits_read_back() {
        let place = Place::Bits(vec![3, 4, 9]);
        let mut block = [0xff, 0xff];
        place.write(&mut block, 0b010);
        assert_eq!(block, [0b1111_0111, 0b1111_1101]);
        assert_eq!(place.read(&block), 0b010);
    }
}
