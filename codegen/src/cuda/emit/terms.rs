//! Terms of runs and super-blocks: what is added to an output, and what is subtracted.

use super::product::CudaMatmul;
use super::tiles::Fused;
use crate::lower::ir::{Type, f32, i32};
use crate::lower::product as lower;
use crate::plan::{FormatPlan, Term, TermTypes};
use crate::print::cuda;
use std::fmt::Write;

/// An expression of a sum with its zero-point correction: value = operand + min.
pub(super) fn corrected(plan: &CudaMatmul<'_>, sum: &str, x_sum: &str) -> String {
    cuda::expr(&lower::corrected(plan.format, i32(sum), i32(x_sum)).to(Type::F32))
}

/// The terms of one run: what is added to y, and what is subtracted then. `scale` and `min` are those of the row's run.
pub(super) fn terms(plan: &CudaMatmul<'_>, sum: &str, scale: &str, min: &str) -> (String, Option<String>) {
    let (format, x_scale) = (plan.format, || f32("x_scale"));
    let sum = lower::corrected(format, i32(sum), i32("x_sum"));
    let scaled = lower::scaled(format, f32(scale), x_scale(), sum);
    let subtracted = format.offset.then(|| lower::term(format, Some(f32(min)), x_scale(), i32("x_sum")));
    (cuda::expr(&scaled), subtracted.map(|term| cuda::expr(&term)))
}

/// A super-block's terms in a panel.
pub(super) struct SuperBlockTerms {
    /// Runs of a super-block.
    pub(super) runs: u32,
    /// Words that its scales take, or its minima.
    pub(super) words: u32,
    /// Its elements.
    pub(super) elements: u32,
}

impl SuperBlockTerms {
    /// Where runs have integers.
    pub(super) fn of(plan: &CudaMatmul<'_>) -> Option<SuperBlockTerms> {
        let rows = plan.pack.packing.rows;
        let runs = plan.format.superblock.as_ref()?.runs;
        Some(SuperBlockTerms {
            runs,
            words: TermTypes::F32.words(Term::Scale, runs, rows),
            elements: runs * plan.format.k_group,
        })
    }

    /// An expression of the first word of a term of super-block `block` of `panel`.
    pub(super) fn at(&self, term: Term, panel: &str, block: &str) -> String {
        let (SuperBlockTerms { runs, words, .. }, array) = (self, term.array());
        format!("a.{array} + ((u64)({panel}) * (a.units / {runs}) + {block}) * {words}")
    }

    /// An expression of the scale of super-block `block` of token `token`, which is token `t` of the CUDA block; none where a row of
    /// activations has one.
    pub(super) fn x_scale_load(&self, plan: &CudaMatmul<'_>, t: &str, token: &str) -> Option<String> {
        match &plan.fused {
            Some(fused) => fused.x_scale(plan, t, "block", self.elements),
            None => self.x_scale(plan, token, "block").map(|place| format!("gm_load({place})")),
        }
    }

    /// An expression of token `token`'s scale of super-block `block`; none where a row of activations has one.
    pub(super) fn x_scale(&self, plan: &CudaMatmul<'_>, token: &str, block: &str) -> Option<String> {
        let of = plan.format.activations.block?;
        Some(format!("a.x_scales + (u64)({token}) * a.x_blocks + {block} * {} / {of}", self.elements))
    }
}

/// An expression of the address of a term of all rows of a panel for run `run`: f32, or a super-block's integers.
pub(super) fn of_run(plan: &CudaMatmul<'_>, term: Term, [panel, run]: [&str; 2]) -> String {
    let rows = plan.pack.packing.rows;
    let Some(parts) = SuperBlockTerms::of(plan) else {
        let array = term.array();
        return format!("a.{array} + ((u64)({panel}) * a.units + {run}) * {rows}");
    };
    let runs = parts.runs;
    let block = parts.at(term, panel, &format!("{run} / {runs}"));
    let within = match term {
        Term::Scale => format!("{run} % {runs} * {rows}"),
        Term::Min => format!("{run} % {runs} / 2 * {}", 2 * rows),
    };
    format!("(const i8 *)({block} + {rows}) + {within}")
}

/// An expression of what row `row` of them has. Minima of two runs stand side by side.
pub(super) fn of_run_and_row(plan: &CudaMatmul<'_>, term: Term, of: [&str; 2], row: &str) -> String {
    let ([_, run], place) = (of, of_run(plan, term, of));
    match (plan.format.superblock.is_some(), term) {
        (false, _) => format!("gm_load({place} + {row})"),
        (true, Term::Scale) => format!("(i32)gm_load({place} + {row})"),
        (true, Term::Min) => format!("(i32)gm_load({place} + ({row}) * 2 + {run} % 2)"),
    }
}

/// The integer terms of one run: its sum times its integer, and that of its minimum times the sum of its activations,
/// `x_sum`.
pub(super) fn integer_terms(
    plan: &CudaMatmul<'_>,
    sum: &str,
    scale: &str,
    min: &str,
) -> (String, Option<String>) {
    let sum = i32(scale) * lower::corrected(plan.format, i32(sum), i32("x_sum"));
    (cuda::expr(&sum), plan.format.offset.then(|| format!("{min} * x_sum")))
}

/// Statements that add the terms of a super-block to `y`: `sum` and `low` are the sums of its runs' integer terms, `scale`
/// and `min` what they share, `x_scale` the token's.
pub(super) fn add_terms(plan: &CudaMatmul<'_>, [y, sum, low, scale, min]: [&str; 5]) -> String {
    let term =
        |factor, sum| cuda::expr(&lower::term(plan.format, Some(f32(factor)), f32("x_scale"), i32(sum)));
    let mut out = format!("{y} = {y} + {};", term(scale, sum));
    if plan.format.offset {
        let _ = write!(out, " {y} = {y} - {};", term(min, low));
    }
    out
}

/// Statements that bind `x_sum` and `x_scale` of token `token` and run `unit`, where they are used.
pub(super) fn run_of_token(plan: &CudaMatmul<'_>) -> String {
    if let Some(fused) = &plan.fused {
        return fused.run_of_token(plan);
    }
    let mut out = x_sum_of_run(plan);
    if let Some(place) = place_of_x_scale(plan, "(u64)token", "unit") {
        let _ = writeln!(out, "const f32 x_scale = gm_load(a.x_scales + {place});");
    }
    out
}

/// The place of the scale of `token` for run `unit` (expressions) in their array; none where a row of activations has one.
pub(super) fn place_of_x_scale(plan: &CudaMatmul<'_>, token: &str, unit: &str) -> Option<String> {
    let block = plan.format.activations.block?;
    Some(format!("{token} * a.x_blocks + {unit} * {} / {block}", plan.format.k_group))
}

/// A statement that binds `x_sum` of token `token` and run `unit`, where that is used.
pub(super) fn x_sum_of_run(plan: &CudaMatmul<'_>) -> String {
    match &plan.fused {
        _ if !needs_sums(plan.format) => String::new(),
        Some(fused) => fused.x_sum(),
        None => "const i32 x_sum = gm_load(a.x_sums + (u64)token * a.units + unit);\n".to_string(),
    }
}

impl Fused {
    /// Statements that bind `x_sum` of run `unit` of token `t`.
    pub(super) fn x_sum(&self) -> String {
        format!("const i32 x_sum = x_sums[t * {} + unit];\n(void)token;\n", self.sums)
    }

    /// An expression of token `t`'s scale of the run or super-block `index`, which has `elements`; none where a row has one.
    pub(super) fn x_scale(
        &self,
        plan: &CudaMatmul<'_>,
        t: &str,
        index: &str,
        elements: u32,
    ) -> Option<String> {
        let of = plan.format.activations.block?;
        Some(format!("x_scales[{t} * {} + {index} * {elements} / {of}]", self.scales))
    }

    /// As [`run_of_token`](run_of_token), from shared memory.
    pub(super) fn run_of_token(&self, plan: &CudaMatmul<'_>) -> String {
        let mut out = if needs_sums(plan.format) { self.x_sum() } else { "(void)token;\n".to_string() };
        if let Some(scale) = self.x_scale(plan, "t", "unit", plan.format.k_group) {
            let _ = writeln!(out, "const f32 x_scale = {scale};");
        }
        out
    }
}

/// Whether products need the sums of activations.
pub(super) fn needs_sums(format: &FormatPlan<'_>) -> bool {
    format.min() != 0 || format.offset
}
