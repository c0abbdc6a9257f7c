//! How codes and scales become weights.

use super::ir::{Expr, Type, Unary, f32, u32};
use crate::plan::{FormatPlan, RunTerm};
use gristmill_spec::model::{Factor, Field, Signs, Value, ValueMap};

/// The integer, of type `int`, that `code` stands for where codes are not looked up. Integers of less than 32 bits are taken modulo
/// their width, which the result is known to fit.
pub(crate) fn affine((times, zero, signed): (i32, i32, bool), bits: u32, code: Expr, int: Type) -> Expr {
    let code = if signed { code.sign_extended(bits) } else { code };
    code.to(int) * Expr::int(int, times.into()) - Expr::int(int, zero.into())
}

/// The type that holds the integers of a format.
pub(crate) fn integer(plan: &FormatPlan<'_>) -> Type {
    if plan.narrow { Type::I8 } else { Type::I16 }
}

/// The integers of each entry of a format's codebook; none for other formats.
pub(crate) fn codebook(value: &Value) -> Vec<Vec<i32>> {
    match &value.map {
        ValueMap::Codebook { entries, times, .. } => {
            entries.iter().map(|entry| entry.iter().map(|v| v * times).collect()).collect()
        }
        ValueMap::Affine { .. } | ValueMap::Levels(_) => Vec::new(),
    }
}

/// The signs of a run of elements, a bit each, of `stored`, a u32: with a parity the last one is what makes their number even.
pub(crate) fn signs(signs: &Signs, run: u32, stored: Expr) -> Expr {
    if signs.parity {
        stored.clone() | (Expr::unary(Unary::Ones, stored).low(1) << (run - 1))
    } else {
        stored
    }
}

/// What each value of the field of shifts adds.
pub(crate) fn shifts<'a>(plan: &FormatPlan<'a>) -> Option<(&'a Field, Vec<i32>)> {
    let shift = plan.format.value.shift.as_ref()?;
    let field = &plan.format.fields[shift.field];
    let mut values = shift.values.clone();
    values.resize(1 << field.ty.bits(), 0);
    Some((field, values))
}

/// The fields that a format's scales and offsets are made of, each once.
pub(crate) fn fields_of_terms(value: &Value) -> Vec<usize> {
    let mut used = Vec::new();
    for factor in value.scale.iter().chain(&value.add).chain(&value.subtract) {
        if let Factor::Field(index) = factor
            && !used.contains(index)
        {
            used.push(*index);
        }
    }
    used
}

/// Which of a field's values is that of one of `of.0` parts of a block, the part `of.1`; `of.2` is a name for their number.
fn index(field: &Field, (parts, part, name): (u32, &str, &str)) -> Expr {
    let part = u32(part);
    match field.count {
        1 => Expr::int(Type::U32, 0),
        count if count == parts => part,
        count => part * Expr::int(Type::U32, count.into()) / u32(name),
    }
}

/// A product of factors and the format's constant one; the number of a field is `number(field, index)`.
fn product(
    plan: &FormatPlan<'_>,
    factors: &[Factor],
    constant: f32,
    of: (u32, &str, &str),
    number: &dyn Fn(usize, Expr) -> Expr,
) -> Expr {
    let factors = factors.iter().map(|factor| match factor {
        Factor::Field(field) => Some(number(*field, index(&plan.format.fields[*field], of))),
        Factor::Row | Factor::Tensor => Some(f32("outer")),
    });
    Expr::product(factors.chain([(constant != 1.0).then(|| Expr::f32(constant))]))
}

/// The scale of the run `run` of a block of `RUNS`, and what is subtracted after scaling, with the factor outside the block.
pub(crate) fn terms(plan: &FormatPlan<'_>, number: &dyn Fn(usize, Expr) -> Expr) -> (Expr, Option<Expr>) {
    let value = &plan.format.value;
    let product =
        |factors: &[Factor], constant| product(plan, factors, constant, (plan.groups, "run", "RUNS"), number);
    let subtracted = (!value.subtract.is_empty()).then(|| product(&value.subtract, 1.0));
    let added = (!value.add.is_empty()).then(|| product(&value.add, 1.0));
    let offset = match (subtracted, added) {
        (subtracted, None) => subtracted,
        (None, Some(added)) => Some(-added),
        (Some(subtracted), Some(added)) => Some(subtracted - added),
    };
    (product(&value.scale, value.unit), offset)
}

/// What the runs of the super-block `i` of `SUPERBLOCKS` share of a term.
pub(crate) fn shared(
    plan: &FormatPlan<'_>,
    term: &RunTerm,
    constant: f32,
    superblocks: u32,
    number: &dyn Fn(usize, Expr) -> Expr,
) -> Expr {
    let factors: Vec<Factor> = term.shared.iter().map(|field| Factor::Field(*field)).collect();
    product(plan, &factors, constant, (superblocks, "i", "SUPERBLOCKS"), number)
}

/// The scale of formats without one in their blocks.
pub(crate) fn scale_outside(plan: &FormatPlan<'_>) -> Expr {
    let unit = plan.format.value.unit;
    Expr::product([plan.uses_outer().then(|| f32("outer")), (unit != 1.0).then(|| Expr::f32(unit))])
}

/// The weight of an integer.
pub(crate) fn weight(scale: Expr, integer: Expr, offset: Option<Expr>) -> Expr {
    let scaled = scale * integer.to(Type::F32);
    match offset {
        Some(offset) => scaled - offset,
        None => scaled,
    }
}
