//! Quantizers that are named algorithms: the call, and the stores of what it finds by the format's layouts.
//!
//! The algorithms are in the runtime (`gristmill_runtime::search`); the checker has proven that the format has
//! the structure that the algorithm fills in, so what is looked for here is there.

use super::fields::write_raw;
use crate::Error;
use crate::lower::ir::{Expr, Type, f32, i32};
use crate::lower::{decode, stored};
use crate::plan::{FormatPlan, SearchPlan, rounded_to};
use crate::print::rust::{self, float};
use crate::text::joined;
use gristmill_spec::model::{Field, FieldType, RoundRule, Scalar, Search, Shift, Value, ValueMap};
use std::collections::BTreeSet;

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
    joined(values.into_iter().map(float), ", ")
}

/// The constant `LEVELS`.
fn levels(levels: impl ExactSizeIterator<Item = f32>) -> String {
    format!("const LEVELS: [f32; {}] = [{}];\n", levels.len(), floats(levels))
}

/// The body of a quantizer that is an algorithm.
pub(super) fn quantize(plan: &FormatPlan<'_>, name: &str, search: Search) -> Result<String, Error> {
    let of = Body { plan, value: &plan.format.value, fields: SearchPlan { plan, search } };
    let body = match search {
        Search::MinMax => of.min_max(),
        Search::Mean => of.mean(),
        Search::KMin { .. } => of.k_min(),
        Search::KRefine { steps } => of.k_signed("Refine", steps),
        Search::KScan { steps } => of.k_signed("Scan", steps),
        Search::LevelScan { steps } => of.level_scan(steps),
        Search::NearestLevel => of.nearest_level(),
        Search::GridSearch { steps } => match &of.value.shift {
            Some(shift) => of.shifted_search(shift, steps),
            None => of.grid_search(steps),
        },
        Search::Alternating { steps } => of.alternating(steps),
    };
    let by = format!(", the algorithm `{}`", search.name());
    let body = format!(
        "number::check_finite(x).map_err(|fault| number::offset(fault, index * ELEMENTS))?;
         {IMPORTANCE}{}",
        body?
    );
    Ok(over_blocks(name, &by, "_step", true, &body))
}

/// What goes on where an algorithm finds that the block is all zeros.
const OR_ZEROS: &str = "else {
    *block = [0; BYTES];
    continue;
};\n";

/// What is done with a block: the call of an algorithm, and the stores of what it finds.
struct Body<'a> {
    plan: &'a FormatPlan<'a>,
    value: &'a Value,
    fields: SearchPlan<'a>,
}

impl Body<'_> {
    /// Statements that store the codes, in a block of zeros.
    fn codes(&self) -> String {
        format!("*block = [0; BYTES];\n{}", store_codes(self.fields.codes(), "found.codes"))
    }

    /// Codes, and the scale that was found.
    fn codes_and_scale(&self) -> Result<String, Error> {
        Ok(self.codes() + &store_float(self.plan, self.fields.scale()?, "found.scale")?)
    }

    /// What rounds an f32 to a scale of the format.
    fn rounding(&self) -> Result<String, Error> {
        rounding(self.plan, self.fields.scale()?)
    }

    fn min_max(&self) -> Result<String, Error> {
        Ok(format!(
            "let found = search::range::min_max(x, importance, {});
             {}{}",
            float(self.fields.top() as f32),
            self.codes_and_scale()?,
            store_float(self.plan, self.fields.added()?, "found.min")?
        ))
    }

    fn mean(&self) -> Result<String, Error> {
        Ok(format!("let found = search::range::mean(x, importance);\n{}", self.codes_and_scale()?))
    }

    fn k_min(&self) -> Result<String, Error> {
        let k_min = self.fields.k_min()?;
        Ok(format!(
            "const RULE: search::k::KMin = search::k::KMin {{
                 weights: search::k::Weights::{weights}, square: {}, start: {}, steps: {},
                 top: {}, run_top: {}, min_top: {},
             }};
             let found = search::k::k_min::<ELEMENTS, RUNS>(x, importance, &RULE, {});
             {}{}{}{}",
            k_min.square,
            float(k_min.start),
            k_min.steps,
            float(k_min.top),
            float(k_min.run_top),
            float(k_min.min_top),
            self.rounding()?,
            self.codes_and_scale()?,
            store_float(self.plan, k_min.min, "found.min")?,
            store_factors(k_min.run_scales, "found.runs"),
            store_factors(k_min.run_mins, "found.min_runs"),
            weights = if k_min.rms { "RmsAbs" } else { "Abs" },
        ))
    }

    fn k_signed(&self, kind: &str, steps: u32) -> Result<String, Error> {
        let runs = self.fields.run_scales()?;
        let (low, high) = self.fields.range(runs)?;
        Ok(format!(
            "const RULE: search::k::KSigned = search::k::KSigned {{
                 search: search::k::Search::{kind}({steps}), half: {}, low: {}, high: {},
             }};
             let Some(found) = search::k::k_signed::<ELEMENTS, RUNS>(x, importance, &RULE, {}) {OR_ZEROS}{}{}",
            float(((self.fields.top() + 1) / 2) as f32),
            float(low as f32),
            float(high as f32),
            self.rounding()?,
            self.codes_and_scale()?,
            store_factors(runs, "found.runs"),
        ))
    }

    /// The levels of a format that has them.
    fn levels(&self) -> Result<&[i32], Error> {
        match &self.value.map {
            ValueMap::Levels(levels) => Ok(levels),
            ValueMap::Affine { .. } | ValueMap::Codebook { .. } => Err(self.fields.mismatch()),
        }
    }

    fn level_scan(&self, steps: u32) -> Result<String, Error> {
        let (mut factors, mut store) = ("None".to_string(), String::new());
        if self.value.scale.len() > 1 {
            let runs = self.fields.run_scales()?;
            let (low, high) = self.fields.range(runs)?;
            factors = format!("Some(({}, {}))", float(low as f32), float(high as f32));
            store = store_factors(runs, "found.runs");
        }
        Ok(format!(
            "{}
             const RULE: search::levels::LevelScan<'static> =
                 search::levels::LevelScan {{ levels: &LEVELS, steps: {steps}, runs: {factors} }};
             let found = search::levels::level_scan::<ELEMENTS, RUNS>(x, importance, &RULE);
             {}{store}",
            levels(self.levels()?.iter().map(|&level| level as f32)),
            self.codes_and_scale()?,
        ))
    }

    fn nearest_level(&self) -> Result<String, Error> {
        let (list, scale) = (self.levels()?, self.fields.scale()?);
        // The largest stored scale that is a number, and scales within two powers of two or one.
        let (scalar, last, reach) = match scale.ty {
            FieldType::Scalar(scalar @ Scalar::E8m0Half) => (scalar, 254, 2),
            FieldType::Scalar(scalar @ Scalar::Ue4m3Half) => (scalar, 0x7e, 8),
            _ => return Err(self.fields.mismatch()),
        };
        Ok(format!(
            "{}
             let scales = search::levels::StoredScales {{
                 encode: |max| search::levels::{}(max, {}), decode: |raw| {},
                 last: {last}, reach: {reach},
             }};
             let found = search::levels::nearest_level::<ELEMENTS, RUNS>(x, importance, &LEVELS, &scales);
             {}{}",
            levels(list.iter().map(|&level| level as f32)),
            scalar.word(),
            float(list.iter().copied().max().unwrap_or(1) as f32),
            rust::expr(&stored::widened(scalar, Expr::name(Type::U8, "raw"))),
            self.codes(),
            store_codes(scale, "found.runs")
        ))
    }

    /// What the integers of runs stand for.
    fn factors(&self, runs: &Field) -> Result<Vec<f32>, Error> {
        let (low, high) = self.fields.range(runs)?;
        let all = (low..=high).step_by(runs.times.max(1) as usize);
        Ok(all.map(|factor| factor as f32 * self.value.unit).collect())
    }

    fn shifted_search(&self, shift: &Shift, steps: u32) -> Result<String, Error> {
        let (format, runs) = (self.plan.format, self.fields.run_scales()?);
        let (moved, factors) = (&format.fields[shift.field], self.factors(runs)?);
        let magnitudes: BTreeSet<u32> = format.integers().iter().map(|v| v.unsigned_abs()).collect();
        Ok(format!(
            "{}let rule = search::shifted::Shifted {{
                 entries: &CODEBOOK, levels: &LEVELS, shifts: [{}], factors: [{}], steps: {steps},
             }};
             let found = search::shifted::shifted_search::<Int, ELEMENTS, {}, {}, RUNS, {}, {}, {}>(x, importance, &rule, {});
             let Some(found) = found {OR_ZEROS}{}{}{}{}",
            levels(magnitudes.into_iter().map(|level| level as f32)),
            floats(shift.values.iter().map(|shift| *shift as f32)),
            floats(factors.iter().copied()),
            self.fields.codes().count,
            moved.count,
            self.value.group,
            factors.len(),
            shift.values.len(),
            self.rounding()?,
            self.codes(),
            store_codes(moved, "found.shifts"),
            store_float(self.plan, self.fields.scale()?, "found.scale")?,
            store_codes(runs, "found.runs"),
        ))
    }

    fn grid_search(&self, steps: u32) -> Result<String, Error> {
        let runs = self.fields.run_scales()?;
        let signs = self.value.signs.as_ref().ok_or_else(|| self.fields.mismatch())?;
        let (masks, factors) = (&self.plan.format.fields[signs.field], self.factors(runs)?);
        let magnitudes: BTreeSet<i32> = decode::codebook(self.value).into_iter().flatten().collect();
        Ok(format!(
            "{}let grid = search::grid::Grid {{
                 entries: &CODEBOOK, levels: &LEVELS, factors: [{}], steps: {steps}, parity: {},
             }};
             let Some(found) = search::grid::grid_search::<Int, ELEMENTS, {}, {}, RUNS, {}, {}>(x, importance, &grid, {}) {OR_ZEROS}{}{}{}{}",
            levels(magnitudes.into_iter().map(|level| level as f32)),
            floats(factors.iter().copied()),
            signs.parity,
            self.fields.codes().count,
            masks.count,
            self.value.group,
            factors.len(),
            self.rounding()?,
            self.codes(),
            store_codes(masks, "found.signs"),
            store_float(self.plan, self.fields.scale()?, "found.scale")?,
            store_codes(runs, "found.runs"),
        ))
    }

    fn alternating(&self, steps: u32) -> Result<String, Error> {
        let integers: Vec<i32> = decode::codebook(self.value).concat();
        let sum: u64 = integers.iter().map(|v| u64::from(v.unsigned_abs())).sum();
        Ok(format!(
            "let rule = search::alternating::Alternating {{
                 entries: &CODEBOOK, stride: {}, mean: {}, steps: {steps},
             }};
             let found = search::alternating::alternating::<Int, ELEMENTS, {}, {}>(x, importance, &rule);
             {}",
            self.value.stride,
            float((sum as f64 / integers.len() as f64) as f32),
            self.fields.codes().count,
            self.value.group,
            self.codes_and_scale()?,
        ))
    }
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

/// The function of a quantizer by its name and what more is said of it, with the name of its step, whether it `weighs` errors by
/// importance, and what it does with a block.
pub(super) fn over_blocks(name: &str, by: &str, step: &str, weighs: bool, body: &str) -> String {
    let (said, importance) = match weighs {
        true => ("; `importance` is null or holds as many\n/// values as `src`", "importance"),
        false => ("", "_importance"),
    };
    format!(
        "/// Values to blocks by `{name}`{by}.
         ///
         /// # Safety
         ///
         /// `src` holds `blocks * ELEMENTS` values and `dst` room for `blocks` blocks{said}.
         #[inline(always)]
         unsafe fn quantize_{name}(
             src: *const f32, dst: *mut u8, blocks: usize, {step}: Step, {importance}: *const f32,
         ) -> Result<(), Fault> {{
             for index in 0..blocks {{
                 // SAFETY: the caller answers for the values of `blocks` blocks.
                 let x = unsafe {{ &*src.add(index * ELEMENTS).cast::<[f32; ELEMENTS]>() }};
                 // SAFETY: the caller answers for room for `blocks` blocks.
                 let block = unsafe {{ &mut *dst.add(index * BYTES).cast::<[u8; BYTES]>() }};
                 {body}
             }}
             Ok(())
         }}\n"
    )
}
