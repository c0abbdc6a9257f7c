//! Numbers as formats store them: each type of scalar, from its bits and to them.

use super::ir::{Binary, Expr, Type, Unary};
use gristmill_spec::model::{Field, FieldType, Scalar};

/// The type of a field's raw values where each is held in no more than it needs.
pub(crate) fn raw_type(field: &Field) -> Type {
    Type::unsigned(field.ty.bits())
}

/// The f32 that `raw`, the bits of a scalar, stand for. It may name `raw` more than once.
pub(crate) fn widened(scalar: Scalar, raw: Expr) -> Expr {
    let from_bits = |bits| Expr::unary(Unary::FromBits, bits);
    match scalar {
        Scalar::F32 => from_bits(raw),
        Scalar::F16 => Expr::unary(Unary::Widened(scalar), raw.to(Type::U16)),
        Scalar::Bf16 => from_bits(raw.to(Type::U32) << 16),
        Scalar::E8m0Half => {
            let e = raw.to(Type::U32);
            // The two smallest are subnormal.
            let subnormal = Expr::binary(Binary::Shl, Expr::int(Type::U32, 0x20_0000), e.clone());
            let normal = (e.clone() - Expr::int(Type::U32, 1)) << 23;
            from_bits(Expr::select(e.less(Expr::int(Type::U32, 2)), subnormal, normal))
        }
        Scalar::Ue4m3Half => {
            let bits = raw.to(Type::U32).low(7);
            let int = |value| Expr::int(Type::U32, value);
            let subnormal = bits.clone().to(Type::F32) * Expr::f32(1.0 / 1024.0);
            // An exponent whose bias is 7, and one less for the half, to one whose bias is 127.
            let normal = from_bits((bits.clone() + int((127 - 8) << 3)) << 20);
            let number = Expr::select(bits.clone().less(int(8)), subnormal, normal);
            Expr::select(bits.equals(int(0x7f)), Expr::f32(0.0), number)
        }
    }
}

/// The bits of the number of a type that is nearest to `value`; for types that quantizers round to.
pub(crate) fn narrowed(scalar: Scalar, value: Expr) -> Expr {
    match scalar {
        Scalar::F32 => Expr::unary(Unary::Bits, value),
        scalar => Expr::unary(Unary::Narrowed(scalar), value),
    }
}

/// The integer, in 32 bits, of `raw`, the bits of a field of integers.
pub(crate) fn integer(field: &Field, raw: Expr) -> Expr {
    let raw = match field.ty {
        FieldType::Signed(bits) => raw.sign_extended(bits),
        FieldType::Unsigned(_) | FieldType::Digit(_) | FieldType::Scalar(_) => raw,
    };
    let int = |value: i32| Expr::int(Type::I32, value.into());
    raw.to(Type::I32) * int(field.times) + int(field.plus)
}

/// The number, as f32, of `raw`, the bits of a field.
pub(crate) fn number(field: &Field, raw: Expr) -> Expr {
    match field.ty {
        FieldType::Scalar(scalar) => widened(scalar, raw),
        FieldType::Unsigned(_) | FieldType::Signed(_) | FieldType::Digit(_) => {
            integer(field, raw).to(Type::F32)
        }
    }
}

/// The bits of `integer`, in 32 bits, in a field of integers.
pub(crate) fn raw_of(field: &Field, integer: Expr) -> Expr {
    let int = |value: i32| Expr::int(Type::I32, value.into());
    ((integer - int(field.plus)) / int(field.times)).low(field.ty.bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number that bits stand for: constants are folded, so an expression of one is a number.
    fn number_of(scalar: Scalar, bits: u16) -> f64 {
        match widened(scalar, Expr::int(Type::unsigned(scalar.bits()), bits.into())) {
            Expr::Float(Type::F32, number) => number,
            other => panic!("{scalar:?} {bits:#x} is {other:?}"),
        }
    }

    #[test]
    fn all_bits_are_the_number_that_their_type_defines() {
        for byte in 0..=255u16 {
            let power = 2f64.powi(i32::from(byte) - 128);
            assert_eq!(number_of(Scalar::E8m0Half, byte), power, "e8m0 {byte:#x}");
            let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
            let number = match byte & 0x7f {
                0x7f => 0.0,
                low if low < 8 => mantissa * 2f64.powi(-10),
                _ => (8.0 + mantissa) * 2f64.powi(exponent - 11),
            };
            assert_eq!(number_of(Scalar::Ue4m3Half, byte), number, "ue4m3 {byte:#x}");
        }
        for bits in (0..0x7f80u16).flat_map(|bits| [bits, 0x8000 | bits]) {
            let (exponent, mantissa) = (i32::from(bits >> 7 & 0xff), f64::from(bits & 0x7f) / 128.0);
            let whole = if exponent == 0 { mantissa } else { 1.0 + mantissa };
            let number = whole * 2f64.powi(exponent.max(1) - 127);
            let number = if bits >> 15 == 1 { -number } else { number };
            assert_eq!(number_of(Scalar::Bf16, bits).to_bits(), number.to_bits(), "bf16 {bits:#x}");
        }
        let infinity = number_of(Scalar::Bf16, 0x7f80);
        assert!(infinity == f64::INFINITY && number_of(Scalar::Bf16, 0x7f81).is_nan());
    }
}
