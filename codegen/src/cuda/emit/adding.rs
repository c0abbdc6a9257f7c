//! How the threads of outputs add up what others computed of their runs: terms come about in any order, and are added in the order of k.

use super::product::CudaMatmul;
use super::terms::{SuperBlockTerms, add_terms};
use crate::plan::Term;
use crate::text::{joined, when};
use std::fmt::Write;

/// How a kernel names what its threads add.
pub(super) struct Adding<'a> {
    /// What stands behind the names of an output's sums: its number among the thread's, where a thread has several; and how many.
    pub(super) of_output: &'a str,
    pub(super) count: String,
    /// The place of the term of run `first + i` among those that were handed over.
    pub(super) from: String,
    /// Statements that bind `row`, the output's in the panel.
    pub(super) row: String,
    /// An expression of the scale of the output's token in super-block `block`, where it has one.
    pub(super) x_scale: Option<String>,
}

impl Adding<'_> {
    /// What such a thread declares beside `y`, and the statements that add the term of run `first + i`.
    pub(super) fn emit(&self, plan: &CudaMatmul<'_>) -> [String; 2] {
        let Adding { of_output, count, from, row, x_scale } = self;
        let [y, total, low] = ["y", "total", "low"].map(|name| format!("{name}{of_output}"));
        let offset = plan.format.offset;
        let Some(parts) = SuperBlockTerms::of(plan) else {
            let subtract = when(offset, || format!(" {y} = {y} - subtracted[{from}];"));
            return [String::new(), format!("{y} = {y} + added[{from}];{subtract}")];
        };
        let runs = parts.runs;
        let of_rows = |term: Term| {
            format!("const f32 {} = gm_load({} + row);", term.one(), parts.at(term, "panel", "block"))
        };
        let mut declare = format!("i32 total{count} = {{}};\n    ");
        let mut add = format!("{total} += added[{from}];");
        let mut loads = joined(plan.format.terms().map(of_rows), "\n                    ");
        let mut zero = format!("{total} = 0;");
        if offset {
            let _ = write!(declare, "i32 low{count} = {{}};\n    ");
            let _ = write!(add, " {low} += subtracted[{from}];");
            let _ = write!(zero, " {low} = 0;");
        }
        if let Some(x_scale) = x_scale {
            let _ = write!(loads, "\n                    const f32 x_scale = {x_scale};");
        }
        let _ = write!(
            add,
            "
                if ((first + i) % {runs} == {last}) {{
                    const u32 block = (first + i) / {runs};
                    {row}
                    {loads}
                    {terms}
                    {zero}
                }}",
            last = runs - 1,
            terms = add_terms(plan, [&y, &total, &low, "scale", "min"]),
        );
        [declare, add]
    }
}
