//! What products make of integer sums, for one output.

use super::ir::{Expr, Type, i32};
use crate::plan::FormatPlan;

/// A sum with its zero-point correction: value = operand + min.
pub(crate) fn corrected(plan: &FormatPlan<'_>, sum: Expr, x_sum: Expr) -> Expr {
    if plan.min() == 0 { sum } else { sum + x_sum * i32("a.min") }
}

/// What a sum counts for in the output: times `factor`, which may be missing, and the activations' scale where each block has one.
pub(crate) fn term(plan: &FormatPlan<'_>, factor: Option<Expr>, x_scale: Expr, sum: Expr) -> Expr {
    Expr::product([factor, plan.activations.block.map(|_| x_scale), Some(sum.to(Type::F32))])
}

/// The same of a run's sum, whose factor is the run's scale.
pub(crate) fn scaled(plan: &FormatPlan<'_>, scale: Expr, x_scale: Expr, sum: Expr) -> Expr {
    term(plan, plan.has_scales().then_some(scale), x_scale, sum)
}

/// The output `y` with the scale of its token, where a row of activations has one.
pub(crate) fn of_token(plan: &FormatPlan<'_>, y: Expr, x_scale: Expr) -> Expr {
    match (plan.activations.block, plan.activations.keeps_multiplier) {
        (Some(_), _) => y,
        (None, true) => y / x_scale,
        (None, false) => y * x_scale,
    }
}

/// The output `y` with the factor of its row and that of the format, where blocks have no scale; after its token's.
pub(crate) fn of_row(plan: &FormatPlan<'_>, y: Expr, outer: Expr) -> Expr {
    let unit = plan.format.value.unit;
    let outer = plan.uses_outer().then_some(outer);
    let unit = (!plan.has_scales() && unit != 1.0).then(|| Expr::f32(unit));
    Expr::product([Some(y), outer, unit])
}
