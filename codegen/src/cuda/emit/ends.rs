//! The end of a run in kernels whose sums lie in fragments of `mma`: its terms are added to the outputs, in the order of k.

use super::product::CudaMatmul;
use super::terms::{add_terms, integer_terms, needs_sums, terms};
use crate::plan::Term;
use crate::text::when;
use std::fmt::Write;

/// What the rows of a lane have of a term.
#[derive(Clone, Copy)]
pub(super) enum OfRows {
    /// f32, of a run or a super-block.
    Floats(Term),
    /// Integers of a super-block's run.
    Integers(Term),
}

impl OfRows {
    /// Of a run of the plan.
    pub(super) fn of_run(plan: &CudaMatmul<'_>, term: Term) -> OfRows {
        if plan.format.superblock.is_some() { OfRows::Integers(term) } else { OfRows::Floats(term) }
    }

    /// Their name.
    pub(super) fn name(self) -> &'static str {
        match self {
            OfRows::Floats(term) => term.one(),
            OfRows::Integers(Term::Scale) => "integer",
            OfRows::Integers(Term::Min) => "lower",
        }
    }
}

/// How a kernel names what it has at the end of a run, `run` of those whose terms are in shared memory.
pub(super) struct Ends<'a> {
    /// Columns of eight tokens.
    pub(super) columns: u32,
    /// Sums are those of all of a warp's rows, and are not taken up by the next product; else of `half` of them, overwritten by it.
    pub(super) all_rows: bool,
    /// A declaration of what the lane's rows have.
    pub(super) of_rows: &'a dyn Fn(OfRows) -> String,
    /// An expression of what the two tokens of a lane have in column `c`: `x_scale`, or `x_sum` as u32.
    pub(super) of_tokens: &'a dyn Fn(&str) -> String,
}

impl Ends<'_> {
    /// A loop over the sums of a lane. `per_column` has declarations of a column's tokens, `body` is for each sum.
    fn each_sum(&self, [per_column, body]: [&str; 2]) -> String {
        let halves = if self.all_rows { "GM_UNROLL for (u32 half = 0; half < 2; half++)\n    " } else { "" };
        format!(
            "GM_UNROLL for (u32 c = 0; c < {}; c++) {{
    {per_column}{halves}GM_UNROLL for (u32 j = 0; j < 4; j++) {{
        {body}
    }}
}}
",
            self.columns
        )
    }

    /// Declarations of the scales and sums of a column's tokens, where they are used, and of those of a token.
    fn of_tokens(&self, scales: bool, sums: bool) -> [String; 2] {
        let all = [(scales, "f32", "f32x2", "x_scale"), (sums, "i32", "u32x2", "x_sum")];
        let (mut column, mut token) = (String::new(), String::new());
        for (_, ty, pair, name) in all.into_iter().filter(|(used, ..)| *used) {
            let _ = write!(column, "const {pair} {name}_of = {};\n    ", (self.of_tokens)(name));
            let _ = write!(token, "const {ty} {name} = ({ty})(j % 2 ? {name}_of.y : {name}_of.x);\n        ");
        }
        [column, token]
    }

    /// What stands behind names for a sum: the lane's sums, and its rows' numbers.
    fn indices(&self) -> [&'static str; 2] {
        if self.all_rows {
            ["sums[half][c][j]", "[half * 2 + j / 2]"]
        } else {
            ["sums[c * 4 + j]", "[j / 2]"]
        }
    }

    /// Statements for the terms of each sum, integers of a run or of f32: what is added, and what is subtracted.
    pub(super) fn terms(&self, plan: &CudaMatmul<'_>, body: impl Fn(&str, Option<&str>) -> String) -> String {
        let format = plan.format;
        let integers = format.superblock.is_some();
        let of_run = |term| OfRows::of_run(plan, term);
        let [sum, row] = self.indices();
        let [of_scale, of_min] = [Term::Scale, Term::Min].map(|term| format!("{}{row}", of_run(term).name()));
        let (added, subtracted) = match integers {
            true => integer_terms(plan, sum, &of_scale, &of_min),
            false => terms(plan, sum, &of_scale, &of_min),
        };
        let x_scales = !integers && format.activations.block.is_some();
        let [column, token] = self.of_tokens(x_scales, needs_sums(format));
        let body = token + &body(&added, subtracted.as_deref());
        let of_rows: String = format.terms().map(of_run).map(self.of_rows).collect();
        of_rows + &self.each_sum([&column, &body])
    }

    /// Statements that add terms to the lane's outputs; for a run of a super-block `is_last` is the condition that it is the last one.
    pub(super) fn emit(&self, plan: &CudaMatmul<'_>, is_last: Option<&str>) -> String {
        let half = if self.all_rows { "[half]" } else { "" };
        let clear = if self.all_rows { " sums[half][c][j] = 0;" } else { "" };
        let [y, total, low] = ["y", "total", "low"].map(|name| format!("{name}{half}[c][j]"));
        let Some(is_last) = is_last else {
            return self.terms(plan, |added, subtracted| {
                let subtract = subtracted.map_or(String::new(), |text| format!(" {y} = {y} - {text};"));
                format!("{y} = {y} + {added};{subtract}{clear}")
            });
        };
        let of_run = self.terms(plan, |added, subtracted| {
            let added_low = subtracted.map_or(String::new(), |text| format!(" {low} += {text};"));
            format!("{total} += {added};{added_low}{clear}")
        });
        let [_, row] = self.indices();
        let [scale, min] = ["scale", "min"].map(|name| format!("{name}{row}"));
        let zero = when(plan.format.offset, || format!(" {low} = 0;"));
        let [column, token] = self.of_tokens(plan.format.activations.block.is_some(), false);
        let body = format!("{token}{} {total} = 0;{zero}", add_terms(plan, [&y, &total, &low, &scale, &min]));
        format!(
            "{of_run}if ({is_last}) {{
// The end of a super-block.
{}{}}}
",
            plan.format.terms().map(OfRows::Floats).map(self.of_rows).collect::<String>(),
            self.each_sum([&column, &body]),
        )
    }
}

/// What two neighbouring tokens have in shared memory, where those of the kernel begin at `place`.
pub(super) fn shared_pair(name: &str, place: &str) -> String {
    let pair = if name == "x_sum" { "u32x2" } else { "f32x2" };
    format!("gm_shared_get<{pair}>({name}s, {place} + c * 8 + t * 2)")
}

/// Declarations of the outputs that a lane keeps for so many columns, beside its sums.
pub(super) fn outputs(plan: &CudaMatmul<'_>, columns: u32) -> String {
    let mut out = format!("f32 y[2][{columns}][4] = {{}};");
    if plan.format.superblock.is_some() {
        let low = when(plan.format.offset, || format!(", low[2][{columns}][4] = {{}}"));
        let _ = write!(out, "\n    i32 total[2][{columns}][4] = {{}}{low};");
    }
    out
}

/// Lines of text, each behind `indent`.
pub(super) fn indented(indent: &str, text: &str) -> String {
    text.lines().map(|line| format!("{indent}{}", line.trim_end()) + "\n").collect()
}
