//! Scalar expressions as CUDA C++, in the vocabulary of `cuda/device.h`.
//!
//! C++ calculates with integers of less than 32 bits as if they had 32, so expressions for it take wider ones.

pub(crate) use super::rust::name;
use super::scalar::{Language, Shape, Text};
use crate::lower::ir::{Binary, Expr, Tie, Type, Unary};
use crate::lower::quantize::Bound;
use crate::text::when;

struct Cuda;

/// An expression, without parentheses around it.
pub(crate) fn expr(expr: &Expr) -> String {
    Cuda.print(expr).text
}

/// Statements that bind names.
pub(crate) fn bindings<'a>(bound: impl IntoIterator<Item = &'a Bound>) -> String {
    let statement = |bound: &Bound| {
        let why = when(!bound.why.is_empty(), || format!("// {}\n    ", bound.why));
        format!("{why}const {} {} = {};", name(bound.value.ty()), bound.name, expr(&bound.value))
    };
    bound.into_iter().map(statement).collect::<Vec<_>>().join("\n    ")
}

/// An f32 literal.
pub(crate) fn float(value: f32) -> String {
    Cuda.float(Type::F32, value.into())
}

impl Language for Cuda {
    fn float(&self, ty: Type, value: f64) -> String {
        match ty {
            Type::F32 if value.is_finite() => format!("{:?}f", value as f32),
            Type::F32 => format!("gm_float({:#x}u)", (value as f32).to_bits()),
            _ => format!("{value:?}"),
        }
    }

    fn int(&self, ty: Type, text: &str) -> String {
        if ty.is_signed() { text.to_owned() } else { format!("{text}u") }
    }

    fn unary(&self, op: Unary, of: Text) -> Text {
        let call = |name: &str| Text::whole(format!("{name}({})", of.text));
        match op {
            Unary::Negated => Text { text: format!("-{}", of.prefixed()), shape: Shape::Prefixed },
            Unary::Magnitude => call("gm_abs"),
            Unary::Nearest(Tie::Even) => call("gm_rint"),
            Unary::Nearest(Tie::AwayFromZero) => call("gm_round"),
            Unary::Nearest(Tie::TowardZero) => call("gm_round_half_toward_zero"),
            Unary::Truncated => call("gm_trunc"),
            Unary::Ones => call("gm_popc"),
            Unary::IsFinite => call("gm_is_finite"),
            Unary::Bits => call("gm_bits"),
            Unary::FromBits => call("gm_float"),
            Unary::Widened(scalar) => call(&format!("gm_{}_to_f32", scalar.word())),
            Unary::Narrowed(scalar) => call(&format!("gm_f32_to_{}", scalar.word())),
            Unary::Rounded(scalar) => {
                Text::whole(format!("gm_{0}_to_f32(gm_f32_to_{0}({1}))", scalar.word(), of.text))
            }
        }
    }

    fn function(&self, op: Binary, _: Type) -> Option<&'static str> {
        match op {
            Binary::Max => Some("gm_max"),
            Binary::Min => Some("gm_min"),
            Binary::WithSignOf => Some("gm_copysign"),
            _ => None,
        }
    }

    fn call(&self, function: &str, left: Text, right: Text) -> String {
        format!("{function}({}, {})", left.text, right.text)
    }

    fn convert(&self, from: Type, to: Type, of: Text) -> Text {
        if from.is_float() && to == Type::I32 {
            return Text::whole(format!("gm_to_i32({})", of.text));
        }
        Text { text: format!("({}){}", name(to), of.prefixed()), shape: Shape::Prefixed }
    }

    fn select(&self, condition: Text, then: Text, otherwise: Text) -> String {
        format!("{} ? {} : {}", condition.tight(), then.tight(), otherwise.tight())
    }
}
