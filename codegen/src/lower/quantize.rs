//! The arithmetic of quantizers that round: from a block's statistic to its step, from an element to its code.

use super::ir::{Binary, Expr, Tie, Type, Unary, f32};
use gristmill_spec::model::{Activations, Rounding, Scalar, ScaleRule, Via};

/// A name that an expression is bound to, and why, where that does not show.
pub(crate) struct Bound {
    pub(crate) name: &'static str,
    pub(crate) value: Expr,
    pub(crate) why: &'static str,
}

fn bound(name: &'static str, value: Expr) -> Bound {
    Bound { name, value, why: "" }
}

/// What elements are multiplied with or divided by (`apply`), and what is stored (`stored`), from the statistic `s`: bindings in
/// order, the last two of these names. Only those two are read further on.
pub(crate) fn step(rule: &ScaleRule) -> Vec<Bound> {
    let zero = || Expr::f32(0.0);
    // A bound of 0 is none: a statistic with a sign, which has no other, may be negative.
    let bounded = |s: Expr, floor: Expr| if rule.floor == 0.0 { s } else { s.at_least(floor) };
    let quotient = |divide: fn(Expr, Expr) -> Expr| {
        let levels = Expr::f32(rule.levels);
        if rule.f64_division {
            let s = bounded(f32("s").to(Type::F64), Expr::f64(rule.floor));
            divide(s, levels.to(Type::F64)).to(Type::F32)
        } else {
            divide(bounded(f32("s"), Expr::f32(rule.floor as f32)), levels)
        }
    };
    let (over, under) = (|| quotient(|s, levels| s / levels), || quotient(|s, levels| levels / s));
    let usable = || Expr::name(Type::Bool, "usable");
    match rule.via {
        Via::Step => vec![
            bound("whole", over()),
            bound("inverse", Expr::f32(1.0) / f32("whole")),
            Bound {
                name: "usable",
                value: f32("inverse").finite(),
                why: "A block too small for a finite inverse counts as all zero.",
            },
            bound("apply", Expr::select(usable(), f32("inverse"), zero())),
            bound("stored", Expr::select(usable(), f32("whole"), zero() / Expr::f32(rule.levels))),
        ],
        Via::Multiplier => vec![
            bound("multiplier", under()),
            bound("usable", f32("multiplier").finite()),
            bound("apply", Expr::select(usable(), f32("multiplier"), zero())),
            bound("stored", Expr::select(usable(), Expr::f32(1.0) / f32("multiplier"), zero())),
        ],
        Via::Divide => vec![
            bound("divisor", over()),
            bound("none", f32("divisor").equals(zero())),
            bound(
                "apply",
                Expr::select(Expr::name(Type::Bool, "none"), Expr::f32(f32::INFINITY), f32("divisor")),
            ),
            bound("stored", Expr::select(Expr::name(Type::Bool, "none"), zero(), f32("divisor"))),
        ],
    }
}

/// What is kept of an activation format's step.
pub(crate) fn kept(format: &Activations) -> Expr {
    match (format.keeps_multiplier, format.stored_f16) {
        (true, _) => f32("apply"),
        (false, true) => Expr::unary(Unary::Rounded(Scalar::F16), f32("stored")),
        (false, false) => f32("stored"),
    }
}

/// The rounded and clamped integer, as f32, of the element `x`, given `apply`. Codes are `zero` more.
pub(crate) fn rounded(
    rule: &ScaleRule,
    round: Rounding,
    threshold: f64,
    clamp: (i32, i32),
    zero: i32,
) -> Expr {
    let (x, apply) = (f32("x"), f32("apply"));
    let scaled = match rule.via {
        Via::Divide => x.clone() / apply,
        Via::Step | Via::Multiplier => x.clone() * apply,
    };
    let nearest = |tie: Tie| Expr::unary(Unary::Nearest(tie), scaled.clone());
    let integer = match round {
        Rounding::HalfEven => nearest(Tie::Even),
        Rounding::HalfAway => nearest(Tie::AwayFromZero),
        Rounding::HalfTowardZero => nearest(Tie::TowardZero),
        Rounding::HalfUp => {
            Expr::unary(Unary::Truncated, scaled + Expr::f32(zero as f32 + 0.5)) - Expr::f32(zero as f32)
        }
        Rounding::Sign => sign(x, threshold),
    };
    integer.at_least(Expr::f32(clamp.0 as f32)).at_most(Expr::f32(clamp.1 as f32))
}

/// -1, 0 or 1; 0 where |x| is below `threshold`.
fn sign(x: Expr, threshold: f64) -> Expr {
    let small = Expr::unary(Unary::Magnitude, x.clone()).to(Type::F64).less(Expr::f64(threshold));
    Expr::select(small, Expr::f32(0.0), Expr::binary(Binary::WithSignOf, Expr::f32(1.0), x))
}

/// The code, as f32, of such an integer, which is `zero` less.
pub(crate) fn code(rounded: Expr, zero: i32) -> Expr {
    if zero == 0 { rounded } else { rounded + Expr::f32(zero as f32) }
}

/// The bits of a code that is an f32.
pub(crate) fn bits_of(code: Expr, bits: u32, ty: Type) -> Expr {
    code.to(Type::I32).low(bits).to(ty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_0_below_the_threshold() {
        for (x, threshold, expected) in [
            (0.5f32, 0.5, 1.0f32),
            (-0.5, 0.5, -1.0),
            (0.499, 0.5, 0.0),
            (-0.499, 0.5, 0.0),
            (0.0, 0.0, 1.0),
            (-0.0, 0.0, -1.0),
            (2.0, 0.0, 1.0),
        ] {
            assert_eq!(sign(Expr::f32(x), threshold), Expr::f32(expected), "{x} at {threshold}");
        }
    }
}
