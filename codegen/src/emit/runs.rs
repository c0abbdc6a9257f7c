//! Products whose runs have an f32 each: the integer sum of each run is scaled and added to the f32 sums of the rows.

use super::operands::{LINE, Over, guard, split};
use super::sums::{integer_sums, needs_sum, sums_of_words, zero_point};
use super::terms;
use crate::lower::ir::f32;
use crate::plan::{Dot, MatmulPlan};
use std::fmt::Write;

/// The k that a tile function goes through, in expressions.
pub(super) struct Extent {
    /// The first super-block, or run where there are none; `None`: 0.
    pub first: Option<&'static str>,
    /// Behind the last one.
    pub last: &'static str,
    /// The f32 sums before it.
    pub y: &'static str,
    /// The integers of runs wait with the codes, at `integers`.
    pub integers: bool,
    /// Codes are half of the operands.
    pub halved: bool,
    /// Codes are values as i16.
    pub words: bool,
}

impl Extent {
    /// A whole row.
    pub const ROW: Extent = Extent {
        first: None,
        last: "a.units",
        y: "[[simd::splat_f32(0.0); V]; T]",
        integers: false,
        halved: false,
        words: false,
    };

    /// The range of super-blocks of `runs` runs, or of runs.
    pub(super) fn range(&self, runs: bool) -> String {
        match (self.first, runs) {
            (None, true) => format!("0..{} / RUNS", self.last),
            (None, false) => format!("0..{}", self.last),
            (Some(first), _) => format!("{first}..{}", self.last),
        }
    }

    /// `unit`, counted from the first one, of which codes are at hand.
    pub(super) fn counted(&self, unit: &str) -> String {
        self.first.map_or_else(|| unit.to_string(), |first| format!("({unit} - {first})"))
    }
}

/// The zero-point correction of the sum of run `unit`, as `start`, where it has one: beginning with it costs no addition.
pub(super) fn start(plan: &MatmulPlan<'_>) -> String {
    if !needs_sum(plan) {
        return String::new();
    }
    format!(
        "let mut start = [simd::zero(); T];
         for t in 0..T {{
             let x_sum = *a.x_sums.add((token + t) * a.units + unit);
             start[t] = {};
         }}\n",
        zero_point(plan)
    )
}

/// Where the scales and minima of runs begin, of the rows of `V` vectors.
pub(super) fn terms_of_k_groups(plan: &MatmulPlan<'_>) -> String {
    let (format, pack) = (plan.format, &plan.pack);
    let terms = &pack.terms.of_a_row();
    let mut pointers = String::new();
    for term in format.terms() {
        let _ = writeln!(
            pointers,
            "let mut {name} = [{from}.add(row / ROWS * ROWS * {terms} + row % ROWS); V];
             for i in 1..V {{
                 let row = row + i * LANES;
                 {name}[i] = if ROWS.is_multiple_of(V * LANES) {{
                     {name}[0].add(i * LANES)
                 }} else {{
                     {from}.add(row / ROWS * ROWS * {terms} + row % ROWS)
                 }};
             }}",
            name = term.array(),
            from = terms::pointer(pack.terms, term),
        );
    }
    pointers
}

/// Runs with an f32 each: their sums, scaled.
pub(super) fn by_k_group(plan: &MatmulPlan<'_>, extent: &Extent) -> String {
    let format = plan.format;
    let pack = &plan.pack;
    let tiles = format.k_group_tiles(pack.tile.k);
    let rows = pack.packing.rows;
    let unit = extent.counted("unit");
    let mut sums = if extent.words {
        format!("let mut dot = [[simd::zero(); V]; T];\n{}", sums_of_words(plan, &unit))
    } else {
        let at = format!("{unit} * {tiles}");
        start(plan) + &integer_sums(plan, Over::From { first: &at, count: tiles }, needs_sum(plan))
    };
    let mut per_token = String::new();
    if format.offset {
        per_token.push_str("let x_sum = *a.x_sums.add((token + t) * a.units + unit);\n");
    }
    per_token.push_str(&terms::x_scale(format, "(token + t)", "unit", format.k_group));
    let x_sum = format.offset.then(|| f32("simd::splat_f32(x_sum as f32)"));
    let per_vector = terms::add(format, "y[t][i]", "dot[t][i]", x_sum, |term| {
        terms::load(pack.terms, term, &format!("{} * {rows}", pack.terms.of_unit("unit")))
    });
    let [pointers, ahead] = prefetch_of_k_groups(plan);
    sums.push_str(&ahead);
    let (begin, units, of_run, end) = match plan.dot {
        Dot::Split => (
            format!(
                "for first in (0..{last}).step_by(SPLIT_RUNS) {{
                     let last = {last}.min(first + SPLIT_RUNS);
                     {split}",
                last = extent.last,
                split = split(plan, "SPLIT_RUNS", "first", "last - first"),
            ),
            "first..last".to_string(),
            "let halves = &halves[unit - first];",
            "}",
        ),
        _ => (String::new(), extent.range(false), "", ""),
    };
    format!(
        "{pointers}
         {terms}
         let mut y = {y};
         {begin}
         for unit in {units} {{
             {of_run}
             {sums}
             for t in 0..T {{
                 {per_token}
                 for i in 0..V {{ {per_vector} }}
             }}
         }}
         {end}\n",
        terms = terms_of_k_groups(plan),
        y = extent.y,
    )
}

/// What is bound in front of the loop over runs, and the statements that prefetch the terms of a later run.
fn prefetch_of_k_groups(plan: &MatmulPlan<'_>) -> [String; 2] {
    let (format, pack) = (plan.format, &plan.pack);
    let Some(prefetch) = plan.prefetch.filter(|_| format.has_scales()) else { return Default::default() };
    let (rows, terms) = (pack.packing.rows, pack.terms.of_a_row());
    let (ahead, [begin, end]) = (prefetch.terms, guard(prefetch));
    let pointers = format!(
        "let next_terms = (after / ROWS * ROWS * {terms} + after % ROWS)
             .wrapping_sub(row / ROWS * ROWS * {terms} + row % ROWS + ROWS * {terms});\n"
    );
    let mut out = format!(
        "{begin}let ahead = if V * LANES == ROWS || unit + {ahead} < a.units {{
             {next} * {rows}
         }} else {{
             ({next} * {rows}).wrapping_add(next_terms)
         }};\n",
        next = pack.terms.of_unit(&format!("(unit + {ahead})")),
    );
    for term in format.terms() {
        let name = term.array();
        let line = match terms::of_a_line(pack.terms, term) {
            LINE => "LINE".to_string(),
            values => values.to_string(),
        };
        let _ = writeln!(
            out,
            "for i in 0..V {{
                 if (i * LANES).is_multiple_of({line}) {{
                     simd::prefetch({name}[i].wrapping_add(ahead).cast());
                 }}
             }}"
        );
    }
    [pointers, out + end]
}
