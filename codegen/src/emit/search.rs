//! Quantizers that are named algorithms: the call, and the stores of what it finds by the format's layouts.
//!
//! The algorithms are in the runtime (`gristmill_runtime::search`); the checker has proven that the format has
//! the structure that the algorithm fills in, so what is looked for here is there.

use super::fields::write_raw;
use crate::Error;
use crate::lower::ir::{Expr, Type, f32, i32};
use crate::lower::{decode, stored};
use crate::plan::{FormatPlan, rounded_to};
use crate::print::rust::{self, float};
use gristmill_spec::model::{Factor, Field, FieldType, RoundRule, Scalar, Search, ValueMap};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Statements that store the f32 `value` in a field, or stop where it does not fit.
pub(super) fn store_float(plan: &FormatPlan<'_>, field: &Field, value: &str) -> Result<String, Error> {
    let scalar = rounded_to(plan, field)?;
    let raw = stored::narrowed(scalar, f32(value));
    let number = stored::widened(scalar, Expr::name(stored::raw_type(field), "code[0]"));
    Ok(format!(
        "{{
             let code = [{}];
             if !{} {{ return Err(Fault::ScaleOverflow(index)); }}
             {}
         }}\n",
        rust::expr(&raw),
        rust::expr(&number.finite()),
        write_raw(field)
    ))
}

/// A closure that rounds an f32 to what a field stores.
fn rounding(plan: &FormatPlan<'_>, field: &Field) -> Result<String, Error> {
    let scalar = rounded_to(plan, field)?;
    let value = f32("value");
    Ok(format!("|value| {}", rust::expr(&stored::widened(scalar, stored::narrowed(scalar, value)))))
}

/// Statements that store the array expression `values` in a field; `raw` is what is stored of a `value`, an integer.
fn store_array(field: &Field, values: &str, raw: &Expr) -> String {
    let code = match (stored::raw_type(field), raw) {
        // What searches find has this type.
        (Type::U16, Expr::Name(..)) => values.to_owned(),
        (ty, raw) => format!("{values}.map(|value| {})", rust::expr(&raw.clone().to(ty))),
    };
    format!("{{ let code = {code}; {} }}\n", write_raw(field))
}

/// The same of found codes.
fn store_codes(field: &Field, values: &str) -> String {
    store_array(field, values, &Expr::name(Type::U16, "value"))
}

/// Statements that store the factors `values` (i32) of an integer field.
fn store_factors(field: &Field, values: &str) -> String {
    store_array(field, values, &stored::raw_of(field, i32("value")))
}

fn floats(values: impl IntoIterator<Item = f32>) -> String {
    values.into_iter().map(float).collect::<Vec<_>>().join(", ")
}

/// The body of a quantizer that is an algorithm.
pub(super) fn quantize(plan: &FormatPlan<'_>, name: &str, search: Search) -> Result<String, Error> {
    let format = plan.format;
    let value = &format.value;
    let code = &format.fields[value.code];
    let mismatch =
        || Error::passed(plan.format, format!("`{}` is for formats of another structure", search.name()));
    let field = |factors: &[Factor], index: usize| match factors.get(index) {
        Some(Factor::Field(field)) => Ok(&format.fields[*field]),
        _ => Err(mismatch()),
    };
    let top = (1i32 << plan.code_bits) - 1;
    let first = field(&value.scale, 0)?;
    let write_code = store_codes(code, "found.codes");
    let block = format!("*block = [0; BYTES];\n{write_code}");
    let body = match search {
        Search::MinMax => format!(
            "let found = search::range::min_max(x, importance, {});
             {block}{}{}",
            float(top as f32),
            store_float(plan, first, "found.scale")?,
            store_float(plan, field(&value.add, 0)?, "found.min")?
        ),
        Search::Mean => format!(
            "let found = search::range::mean(x, importance);
             {block}{}",
            store_float(plan, first, "found.scale")?
        ),
        Search::KMin { rms, square, start, steps } => {
            let (runs, min, min_runs) =
                (field(&value.scale, 1)?, field(&value.subtract, 0)?, field(&value.subtract, 1)?);
            if rounding(plan, first)? != rounding(plan, min)? {
                return Err(Error::passed(plan.format, "`k-min` needs scale and minimum of one type"));
            }
            let weights = if rms { "RmsAbs" } else { "Abs" };
            format!(
                "const RULE: search::k::KMin = search::k::KMin {{
                     weights: search::k::Weights::{weights}, square: {square}, start: {}, steps: {steps},
                     top: {}, run_top: {}, min_top: {},
                 }};
                 let found = search::k::k_min::<ELEMENTS, RUNS>(x, importance, &RULE, {});
                 {block}{}{}{}{}",
                float(start),
                float(top as f32),
                float(stored::range(runs).1 as f32),
                float(stored::range(min_runs).1 as f32),
                rounding(plan, first)?,
                store_float(plan, first, "found.scale")?,
                store_float(plan, min, "found.min")?,
                store_factors(runs, "found.runs"),
                store_factors(min_runs, "found.min_runs"),
            )
        }
        Search::KRefine { steps } | Search::KScan { steps } => {
            let runs = field(&value.scale, 1)?;
            let kind = if matches!(search, Search::KRefine { .. }) { "Refine" } else { "Scan" };
            let (low, high) = stored::range(runs);
            format!(
                "const RULE: search::k::KSigned = search::k::KSigned {{
                     search: search::k::Search::{kind}({steps}), half: {}, low: {}, high: {},
                 }};
                 let Some(found) = search::k::k_signed::<ELEMENTS, RUNS>(x, importance, &RULE, {}) else {{
                     *block = [0; BYTES];
                     continue;
                 }};
                 {block}{}{}",
                float(((top + 1) / 2) as f32),
                float(low as f32),
                float(high as f32),
                rounding(plan, first)?,
                store_float(plan, first, "found.scale")?,
                store_factors(runs, "found.runs"),
            )
        }
        Search::LevelScan { .. } | Search::NearestLevel => {
            let ValueMap::Levels(levels) = &value.map else { return Err(mismatch()) };
            let list = floats(levels.iter().map(|&level| level as f32));
            let levels_const = format!("const LEVELS: [f32; {}] = [{list}];\n", levels.len());
            if let Search::LevelScan { steps } = search {
                let runs = value.scale.get(1).map(|_| field(&value.scale, 1)).transpose()?;
                let (factors, store) = match runs {
                    None => ("None".to_string(), String::new()),
                    Some(runs) => {
                        let (low, high) = stored::range(runs);
                        let factors = format!("Some(({}, {}))", float(low as f32), float(high as f32));
                        (factors, store_factors(runs, "found.runs"))
                    }
                };
                format!(
                    "{levels_const}
                     const RULE: search::levels::LevelScan<'static> =
                         search::levels::LevelScan {{ levels: &LEVELS, steps: {steps}, runs: {factors} }};
                     let found = search::levels::level_scan::<ELEMENTS, RUNS>(x, importance, &RULE);
                     {block}{}{store}",
                    store_float(plan, first, "found.scale")?
                )
            } else {
                // The largest stored scale that is a number, and scales within two powers of two or one.
                let (scalar, last, reach) = match first.ty {
                    FieldType::Scalar(scalar @ Scalar::E8m0Half) => (scalar, 254, 2),
                    FieldType::Scalar(scalar @ Scalar::Ue4m3Half) => (scalar, 0x7e, 8),
                    _ => return Err(mismatch()),
                };
                let largest = levels.iter().copied().max().unwrap_or(1);
                format!(
                    "{levels_const}
                     let scales = search::levels::StoredScales {{
                         encode: |max| search::levels::{}(max, {}), decode: |raw| {},
                         last: {last}, reach: {reach},
                     }};
                     let found = search::levels::nearest_level::<ELEMENTS, RUNS>(x, importance, &LEVELS, &scales);
                     {block}{}",
                    scalar.word(),
                    float(largest as f32),
                    rust::expr(&stored::widened(scalar, Expr::name(Type::U8, "raw"))),
                    store_codes(first, "found.runs")
                )
            }
        }
        Search::GridSearch { steps } => {
            let runs = field(&value.scale, 1)?;
            let (low, high) = stored::range(runs);
            let factors: Vec<f32> =
                (low..=high).step_by(runs.times.max(1) as usize).map(|f| f as f32 * value.unit).collect();
            if let Some(shift) = &value.shift {
                let moved = &format.fields[shift.field];
                let levels: BTreeSet<u32> = format.integers().iter().map(|v| v.unsigned_abs()).collect();
                return Ok(whole(
                    name,
                    search,
                    &format!(
                        "const LEVELS: [f32; {}] = [{}];
                         let rule = search::shifted::Shifted {{
                             entries: &CODEBOOK, levels: &LEVELS, shifts: [{}], factors: [{}], steps: {steps},
                         }};
                         let found = search::shifted::shifted_search::<Int, ELEMENTS, {}, {}, RUNS, {}, {}, {}>(x, importance, &rule, {});
                         let Some(found) = found else {{
                             *block = [0; BYTES];
                             continue;
                         }};
                         {block}{}{}{}",
                        levels.len(),
                        floats(levels.into_iter().map(|level| level as f32)),
                        floats(shift.values.iter().map(|shift| *shift as f32)),
                        floats(factors.iter().copied()),
                        code.count,
                        moved.count,
                        value.group,
                        factors.len(),
                        shift.values.len(),
                        rounding(plan, first)?,
                        store_codes(moved, "found.shifts"),
                        store_float(plan, first, "found.scale")?,
                        store_codes(runs, "found.runs"),
                    ),
                ));
            }
            let signs = value.signs.as_ref().ok_or_else(mismatch)?;
            let masks = &format.fields[signs.field];
            let levels: BTreeSet<i32> = decode::codebook(value).into_iter().flatten().collect();
            let mut body = String::new();
            let _ = write!(
                body,
                "const LEVELS: [f32; {}] = [{}];
                 let grid = search::grid::Grid {{
                     entries: &CODEBOOK, levels: &LEVELS, factors: [{}], steps: {steps}, parity: {},
                 }};
                 let Some(found) = search::grid::grid_search::<Int, ELEMENTS, {}, {}, RUNS, {}, {}>(x, importance, &grid, {}) else {{
                     *block = [0; BYTES];
                     continue;
                 }};
                 {block}{}{}{}",
                levels.len(),
                floats(levels.into_iter().map(|level| level as f32)),
                floats(factors.iter().copied()),
                signs.parity,
                code.count,
                masks.count,
                value.group,
                factors.len(),
                rounding(plan, first)?,
                store_codes(masks, "found.signs"),
                store_float(plan, first, "found.scale")?,
                store_codes(runs, "found.runs"),
            );
            body
        }
        Search::Alternating { steps } => {
            let integers: Vec<i32> = decode::codebook(value).concat();
            let sum: u64 = integers.iter().map(|v| u64::from(v.unsigned_abs())).sum();
            format!(
                "let rule = search::alternating::Alternating {{
                     entries: &CODEBOOK, stride: {}, mean: {}, steps: {steps},
                 }};
                 let found = search::alternating::alternating::<Int, ELEMENTS, {}, {}>(x, importance, &rule);
                 {block}{}",
                value.stride,
                float((sum as f64 / integers.len() as f64) as f32),
                code.count,
                value.group,
                store_float(plan, first, "found.scale")?,
            )
        }
    };
    Ok(whole(name, search, &body))
}

/// Statements that bind `importance`, a pointer, to that of a block, if there is any.
const IMPORTANCE: &str = "let importance = match importance.is_null() {
    true => None,
    false => {
        // SAFETY: the caller answers for as many values as there are in `src`.
        let counts = unsafe { &*importance.add(index * ELEMENTS).cast::<[f32; ELEMENTS]>() };
        Some(counts)
    }
};\n";

/// Statements that go on with the next block where importance is given: those of a quantizer that rounds by `signed-absmax`.
pub(super) fn signed_absmax(
    plan: &FormatPlan<'_>,
    field: &Field,
    rule: &RoundRule,
    zero: i32,
) -> Result<String, Error> {
    let code = &plan.format.fields[plan.format.value.code];
    let raw = i32("value") + Expr::int(Type::I32, zero.into());
    let raw = raw.low(plan.code_bits);
    Ok(format!(
        "{IMPORTANCE}
         if let Some(importance) = importance {{
             const RULE: search::rounding::SignedAbsMax =
                 search::rounding::SignedAbsMax {{ levels: {}, low: {}, high: {} }};
             let (integers, scale) = search::rounding::signed_absmax(x, importance, &RULE, {});
             *block = [0; BYTES];
             {}{}
             continue;
         }}\n",
        float(rule.scale.levels),
        float(rule.clamp.0 as f32),
        float(rule.clamp.1 as f32),
        rounding(plan, field)?,
        store_array(code, "integers", &raw),
        store_float(plan, field, "scale")?,
    ))
}

/// The function of a quantizer, given what it does with a block.
fn whole(name: &str, search: Search, body: &str) -> String {
    format!(
        "/// Values to blocks by `{name}`, the algorithm `{}`.
         ///
         /// # Safety
         ///
         /// `src` holds `blocks * ELEMENTS` values and `dst` room for `blocks` blocks; `importance` is null or holds as many
         /// values as `src`.
         #[inline(always)]
         unsafe fn quantize_{name}(
             src: *const f32, dst: *mut u8, blocks: usize, _step: Step, importance: *const f32,
         ) -> Result<(), Fault> {{
             for index in 0..blocks {{
                 // SAFETY: the caller answers for the values of `blocks` blocks.
                 let x = unsafe {{ &*src.add(index * ELEMENTS).cast::<[f32; ELEMENTS]>() }};
                 // SAFETY: the caller answers for room for `blocks` blocks.
                 let block = unsafe {{ &mut *dst.add(index * BYTES).cast::<[u8; BYTES]>() }};
                 number::check_finite(x).map_err(|fault| number::offset(fault, index * ELEMENTS))?;
                 {IMPORTANCE}{body}
             }}
             Ok(())
         }}\n",
        search.name()
    )
}
