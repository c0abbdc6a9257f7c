//! Scalar expressions as Rust over vectors of f32: an operation is a primitive of the ISA (`runtime/src/simd`).

use super::rust;
use crate::lower::ir::{Binary, Expr, Type};

/// An expression, whose names are those of vectors.
pub(crate) fn expr(of: &Expr) -> String {
    let primitive =
        |name: &str, left: &Expr, right: &Expr| format!("simd::{name}({}, {})", expr(left), expr(right));
    match of {
        Expr::Name(_, name) => name.clone(),
        Expr::Binary(Binary::Add, left, right) => primitive("add_f32", left, right),
        Expr::Binary(Binary::Sub, left, right) => primitive("sub_f32", left, right),
        Expr::Binary(Binary::Mul, left, right) => primitive("mul_f32", left, right),
        Expr::Binary(Binary::Div, left, right) => primitive("div_f32", left, right),
        Expr::Convert(Type::F32, of) => format!("simd::to_f32({})", expr(of)),
        // The same in every lane.
        scalar => format!("simd::splat_f32({})", rust::expr(scalar)),
    }
}
