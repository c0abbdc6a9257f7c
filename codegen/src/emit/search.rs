//! Quantizers that are named algorithms of the runtime (`gristmill_runtime::search`): the call, and the stores of what it finds by the
//! format's layouts.

use super::fields::write_raw;
use crate::lower::ir::{Expr, Type, f32, i32};
use crate::lower::{decode, stored};
use crate::plan::{FormatPlan, KMinPlan, Rounded, Runs, SearchPlan};
use crate::print::rust::{self, float};
use crate::text::joined;
use gristmill_spec::model::{Field, FieldType, RoundRule, Shift, Signs, Value};
use std::collections::BTreeSet;

/// Statements that store the f32 `value` in a field, or stop where it does not fit.
pub(super) fn store_float((field, scalar): Rounded<'_>, value: &str) -> String {
    let raw = stored::narrowed(scalar, f32(value));
    let number = stored::widened(scalar, Expr::name(stored::raw_type(field), "code[0]"));
    format!(
        "{{
             let code = [{}];
             if !{} {{ return Err(Fault::ScaleOverflow(index)); }}
             {}
         }}\n",
        rust::expr(&raw),
        rust::expr(&number.finite()),
        write_raw(field)
    )
}

/// A closure that rounds an f32 to what a field stores.
fn rounding((_, scalar): Rounded<'_>) -> String {
    let value = f32("value");
    format!("|value| {}", rust::expr(&stored::widened(scalar, stored::narrowed(scalar, value))))
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

/// Statements that store the indices `values` (u16) into the numbers that an integer field counts up by, from the lowest.
fn store_indices(field: &Field, values: &str) -> String {
    let index = Expr::name(Type::U16, "value");
    let raw = match field.ty {
        // The lowest has the top bit alone.
        FieldType::Signed(bits) => (index + Expr::int(Type::U16, 1 << (bits - 1))).low(bits),
        FieldType::Unsigned(_) | FieldType::Digit(_) | FieldType::Scalar(_) => index,
    };
    store_array(field, values, &raw)
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
fn levels(levels: impl ExactSizeIterator<Item = i32>) -> String {
    format!("const LEVELS: [f32; {}] = [{}];\n", levels.len(), floats(levels.map(|level| level as f32)))
}

/// The body of a quantizer that is the algorithm of this name.
pub(super) fn quantize(plan: &FormatPlan<'_>, name: &str, algorithm: &str, search: SearchPlan<'_>) -> String {
    let of = Body { plan, value: &plan.format.value };
    let body = match search {
        SearchPlan::MinMax { scale, min } => of.min_max(scale, min),
        SearchPlan::Mean { scale } => of.mean(scale),
        SearchPlan::KMin(k_min) => of.k_min(&k_min),
        SearchPlan::KSigned { scans, steps, scale, runs } => of.k_signed(scans, steps, scale, runs),
        SearchPlan::LevelScan { levels, steps, scale, runs } => of.level_scan(levels, steps, scale, runs),
        SearchPlan::NearestLevel { levels, scale, last, reach } => {
            of.nearest_level(levels, scale, last, reach)
        }
        SearchPlan::Shifted { shift, steps, scale, runs } => of.shifted_search(shift, steps, scale, runs),
        SearchPlan::Grid { signs, steps, scale, runs } => of.grid_search(signs, steps, scale, runs),
        SearchPlan::Alternating { steps, scale } => of.alternating(steps, scale),
    };
    let by = format!(", the algorithm `{algorithm}`");
    let body = format!(
        "number::check_finite(x).map_err(|fault| number::offset(fault, index * ELEMENTS))?;
         {IMPORTANCE}{body}"
    );
    over_blocks(name, &by, "_step", true, &body)
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
}

impl Body<'_> {
    /// The field of codes.
    fn code(&self) -> &Field {
        &self.plan.format.fields[self.value.code]
    }

    /// The largest code.
    fn top(&self) -> i32 {
        (1 << self.plan.code_bits) - 1
    }

    /// Statements that store the codes, in a block of zeros.
    fn codes(&self) -> String {
        format!("*block = [0; BYTES];\n{}", store_codes(self.code(), "found.codes"))
    }

    /// Codes, and the scale that was found.
    fn codes_and_scale(&self, scale: Rounded<'_>) -> String {
        self.codes() + &store_float(scale, "found.scale")
    }

    fn min_max(&self, scale: Rounded<'_>, min: Rounded<'_>) -> String {
        format!(
            "let found = search::range::min_max(x, importance, {});
             {}{}",
            float(self.top() as f32),
            self.codes_and_scale(scale),
            store_float(min, "found.min")
        )
    }

    fn mean(&self, scale: Rounded<'_>) -> String {
        format!("let found = search::range::mean(x, importance);\n{}", self.codes_and_scale(scale))
    }

    fn k_min(&self, k_min: &KMinPlan<'_>) -> String {
        format!(
            "const RULE: search::k::KMin = search::k::KMin {{
                 weights: search::k::Weights::{weights}, square: {}, start: {}, steps: {},
                 top: {}, run_top: {}, min_top: {},
             }};
             let found = search::k::k_min::<ELEMENTS, RUNS>(x, importance, &RULE, {});
             {}{}{}{}",
            k_min.square,
            float(k_min.start),
            k_min.steps,
            float(self.top() as f32),
            float(k_min.runs.high as f32),
            float(k_min.min_runs.high as f32),
            rounding(k_min.scale),
            self.codes_and_scale(k_min.scale),
            store_float(k_min.min, "found.min"),
            store_factors(k_min.runs.field, "found.runs"),
            store_factors(k_min.min_runs.field, "found.min_runs"),
            weights = if k_min.rms { "RmsAbs" } else { "Abs" },
        )
    }

    fn k_signed(&self, scans: bool, steps: u32, scale: Rounded<'_>, runs: Runs<'_>) -> String {
        format!(
            "const RULE: search::k::KSigned = search::k::KSigned {{
                 search: search::k::Search::{}({steps}), half: {}, low: {}, high: {},
             }};
             let Some(found) = search::k::k_signed::<ELEMENTS, RUNS>(x, importance, &RULE, {}) {OR_ZEROS}{}{}",
            if scans { "Scan" } else { "Refine" },
            float(((self.top() + 1) / 2) as f32),
            float(runs.low as f32),
            float(runs.high as f32),
            rounding(scale),
            self.codes_and_scale(scale),
            store_factors(runs.field, "found.runs"),
        )
    }

    fn level_scan(&self, list: &[i32], steps: u32, scale: Rounded<'_>, runs: Option<Runs<'_>>) -> String {
        let factors = runs.map_or("None".to_string(), |Runs { low, high, .. }| {
            format!("Some(({}, {}))", float(low as f32), float(high as f32))
        });
        let store = runs.map_or(String::new(), |runs| store_factors(runs.field, "found.runs"));
        format!(
            "{}
             const RULE: search::levels::LevelScan<'static> =
                 search::levels::LevelScan {{ levels: &LEVELS, steps: {steps}, runs: {factors} }};
             let found = search::levels::level_scan::<ELEMENTS, RUNS>(x, importance, &RULE);
             {}{store}",
            levels(list.iter().copied()),
            self.codes_and_scale(scale),
        )
    }

    fn nearest_level(&self, list: &[i32], (field, scalar): Rounded<'_>, last: u8, reach: u8) -> String {
        format!(
            "{}
             let scales = search::levels::StoredScales {{
                 encode: |max| search::levels::{}(max, {}), decode: |raw| {},
                 last: {last}, reach: {reach},
             }};
             let found = search::levels::nearest_level::<ELEMENTS, RUNS>(x, importance, &LEVELS, &scales)
                 .ok_or(Fault::ScaleOverflow(index))?;
             {}{}",
            levels(list.iter().copied()),
            scalar.word(),
            float(list.iter().copied().max().unwrap_or(1) as f32),
            rust::expr(&stored::widened(scalar, Expr::name(Type::U8, "raw"))),
            self.codes(),
            store_codes(field, "found.runs")
        )
    }

    /// What the integers of runs stand for.
    fn factors(&self, Runs { field, low, high }: Runs<'_>) -> Vec<f32> {
        let all = (low..=high).step_by(field.times.max(1) as usize);
        all.map(|factor| factor as f32 * self.value.unit).collect()
    }

    /// The static `COLUMNS`.
    fn columns(&self) -> String {
        format!(
            "static COLUMNS: [[[Int; search::columns::LANES]; {}]; CODEBOOK.len().div_ceil(search::columns::LANES)] =
                 search::columns::columns(&CODEBOOK);\n",
            self.value.group
        )
    }

    fn shifted_search(&self, shift: &Shift, steps: u32, scale: Rounded<'_>, runs: Runs<'_>) -> String {
        let format = self.plan.format;
        let (moved, factors) = (&format.fields[shift.field], self.factors(runs));
        let magnitudes: BTreeSet<i32> = format.integers().iter().map(|v| v.abs()).collect();
        format!(
            "{}{}let rule = search::shifted::Shifted {{
                 columns: &COLUMNS, levels: &LEVELS, shifts: [{}], factors: [{}], steps: {steps},
             }};
             let found = search::shifted::shifted_search::<Int, ELEMENTS, {}, {}, RUNS, {}, {}, {}>(x, importance, &rule, {});
             let Some(found) = found {OR_ZEROS}{}{}{}{}",
            levels(magnitudes.into_iter()),
            self.columns(),
            floats(shift.values.iter().map(|shift| *shift as f32)),
            floats(factors.iter().copied()),
            self.code().count,
            moved.count,
            self.value.group,
            factors.len(),
            shift.values.len(),
            rounding(scale),
            self.codes(),
            store_codes(moved, "found.shifts"),
            store_float(scale, "found.scale"),
            store_indices(runs.field, "found.runs"),
        )
    }

    fn grid_search(&self, signs: &Signs, steps: u32, scale: Rounded<'_>, runs: Runs<'_>) -> String {
        let (masks, factors) = (&self.plan.format.fields[signs.field], self.factors(runs));
        let magnitudes: BTreeSet<i32> = decode::codebook(self.value).into_iter().flatten().collect();
        format!(
            "{}{}let grid = search::grid::Grid {{
                 columns: &COLUMNS, levels: &LEVELS, factors: [{}], steps: {steps}, parity: {},
             }};
             let Some(found) = search::grid::grid_search::<Int, ELEMENTS, {}, {}, RUNS, {}, {}>(x, importance, &grid, {}) {OR_ZEROS}{}{}{}{}",
            levels(magnitudes.into_iter()),
            self.columns(),
            floats(factors.iter().copied()),
            signs.parity,
            self.code().count,
            masks.count,
            self.value.group,
            factors.len(),
            rounding(scale),
            self.codes(),
            store_codes(masks, "found.signs"),
            store_float(scale, "found.scale"),
            store_indices(runs.field, "found.runs"),
        )
    }

    fn alternating(&self, steps: u32, scale: Rounded<'_>) -> String {
        let integers: Vec<i32> = decode::codebook(self.value).concat();
        let sum: u64 = integers.iter().map(|v| u64::from(v.unsigned_abs())).sum();
        format!(
            "let rule = search::alternating::Alternating {{
                 entries: &CODEBOOK, stride: {}, mean: {}, steps: {steps},
             }};
             let found = search::alternating::alternating::<Int, ELEMENTS, {}, {}>(x, importance, &rule);
             {}",
            self.value.stride,
            float((sum as f64 / integers.len() as f64) as f32),
            self.code().count,
            self.value.group,
            self.codes_and_scale(scale),
        )
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
    scale: Rounded<'_>,
    rule: &RoundRule,
    zero: i32,
) -> String {
    let code = &plan.format.fields[plan.format.value.code];
    let raw = i32("value") + Expr::int(Type::I32, zero.into());
    let raw = raw.low(plan.code_bits);
    format!(
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
        rounding(scale),
        store_array(code, "integers", &raw),
        store_float(scale, "scale"),
    )
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
