//! Scalar expressions as Rust.

use super::scalar::{Language, Shape, Text};
use crate::lower::ir::{Binary, Expr, Tie, Type, Unary};
use crate::lower::quantize::Bound;
use crate::text::when;

struct Rust;

/// An expression, without parentheses around it. Where an f32 becomes an integer it holds `unsafe`, for which the text around
/// answers.
pub(crate) fn expr(expr: &Expr) -> String {
    Rust.print(expr).text
}

/// Statements that bind names.
pub(crate) fn bindings<'a>(bound: impl IntoIterator<Item = &'a Bound>) -> String {
    let statement = |bound: &Bound| {
        let why = when(!bound.why.is_empty(), || format!("// {}\n", bound.why));
        format!("{why}let {} = {};\n", bound.name, expr(&bound.value))
    };
    bound.into_iter().map(statement).collect()
}

/// An f32 literal that reads back as the same bits.
pub(crate) fn float(value: f32) -> String {
    Rust.float(Type::F32, value.into())
}

/// The name of a type.
pub(crate) fn name(ty: Type) -> &'static str {
    match ty {
        Type::F32 => "f32",
        Type::F64 => "f64",
        Type::I8 => "i8",
        Type::I16 => "i16",
        Type::I32 => "i32",
        Type::U8 => "u8",
        Type::U16 => "u16",
        Type::U32 => "u32",
        Type::Bool => "bool",
    }
}

/// Whether every number of a type is one of the other.
fn is_lossless(from: Type, to: Type) -> bool {
    match (from.is_float(), to.is_float()) {
        (true, true) => from.bits() <= to.bits(),
        (false, true) => 2 * from.bits() <= to.bits(),
        (true, false) => false,
        (false, false) if from.is_signed() == to.is_signed() => from.bits() <= to.bits(),
        (false, false) => to.is_signed() && from.bits() < to.bits(),
    }
}

impl Language for Rust {
    fn float(&self, ty: Type, value: f64) -> String {
        match ty {
            Type::F32 if value == f64::INFINITY => "f32::INFINITY".to_owned(),
            Type::F32 => format!("{:?}f32", value as f32),
            _ => format!("{value:?}{}", name(ty)),
        }
    }

    fn int(&self, _: Type, text: &str) -> String {
        text.to_owned()
    }

    fn unary(&self, op: Unary, of: Text) -> Text {
        let method = |of: Text, name: &str| Text::whole(format!("{}.{name}()", of.closed()));
        match op {
            Unary::Negated => Text { text: format!("-{}", of.prefixed()), shape: Shape::Prefixed },
            Unary::Magnitude => method(of, "abs"),
            Unary::Nearest(Tie::Even) => method(of, "round_ties_even"),
            Unary::Nearest(Tie::AwayFromZero) => method(of, "round"),
            Unary::Nearest(Tie::TowardZero) => {
                Text::whole(format!("number::round_half_toward_zero({})", of.text))
            }
            Unary::Truncated => method(of, "trunc"),
            Unary::Ones => method(of, "count_ones"),
            Unary::IsFinite => method(of, "is_finite"),
            Unary::Bits => method(of, "to_bits"),
            Unary::FromBits => Text::whole(format!("f32::from_bits({})", of.text)),
            Unary::Widened(scalar) => Text::whole(format!("number::{}_to_f32({})", scalar.word(), of.text)),
            Unary::Narrowed(scalar) => Text::whole(format!("number::f32_to_{}({})", scalar.word(), of.text)),
            Unary::Rounded(scalar) => Text::whole(format!("number::round_to_{}({})", scalar.word(), of.text)),
        }
    }

    fn function(&self, op: Binary, ty: Type) -> Option<&'static str> {
        let modulo = matches!(ty, Type::I8 | Type::I16);
        match op {
            Binary::Max => Some("max"),
            Binary::Min => Some("min"),
            Binary::WithSignOf => Some("copysign"),
            Binary::Add if modulo => Some("wrapping_add"),
            Binary::Sub if modulo => Some("wrapping_sub"),
            Binary::Mul if modulo => Some("wrapping_mul"),
            _ => None,
        }
    }

    fn call(&self, function: &str, left: Text, right: Text) -> String {
        format!("{}.{function}({})", left.closed(), right.text)
    }

    fn convert(&self, from: Type, to: Type, of: Text) -> Text {
        let to_name = name(to);
        if from.is_float() && !to.is_float() {
            Text::whole(format!("unsafe {{ {}.to_int_unchecked::<{to_name}>() }}", of.closed()))
        } else if is_lossless(from, to) {
            Text::whole(format!("{to_name}::from({})", of.text))
        } else {
            Text { text: format!("{} as {to_name}", of.prefixed()), shape: Shape::Loose }
        }
    }

    fn select(&self, condition: Text, then: Text, otherwise: Text) -> String {
        format!("if {} {{ {} }} else {{ {} }}", condition.text, then.text, otherwise.text)
    }
}
