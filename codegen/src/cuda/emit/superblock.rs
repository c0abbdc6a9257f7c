//! Super-blocks in [`pipelined`](super::pipelined): integers of runs are copied with the stage that needs them, beside what
//! their super-block shares.

use super::product::{CudaMatmul, MMA_ROWS};
use super::terms::SuperBlockTerms;
use super::tiles::Tiling;
use crate::plan::Term;

/// Statements that start the copies of a stage's integers and of what its super-block shares; `unit` is the stage's first run.
pub(super) fn copy(
    plan: &CudaMatmul<'_>,
    tiling: &Tiling,
    parts: &SuperBlockTerms,
    unit: &str,
    each: &dyn Fn(u32, &str) -> String,
) -> String {
    let Tiling { panels, runs, .. } = *tiling;
    let (tokens, in_block) = (plan.tokens, parts.runs);
    let mut out = String::new();
    for term in plan.format.terms() {
        let array = term.array();
        let (integers, bytes, together) = match term {
            Term::Scale => ("scale_integers", runs * MMA_ROWS, 1),
            Term::Min => ("min_integers", runs.div_ceil(2) * 2 * MMA_ROWS, 2),
        };
        let panel = |parts: u32| format!("panel = gm_min(first_panel + i / {parts}, last_panel)");
        let from = parts.at(term, "panel", &format!("({unit}) / {in_block}"));
        out += &each(
            panels * 8,
            &format!(
                "        const u32 {};
        gm_copy({array}, to * {} + i * 4, (const f32x4 *)({from} + i % 8 * 4));
",
                panel(8),
                panels * MMA_ROWS,
            ),
        );
        // Sixteen bytes each.
        let pieces = bytes / 16;
        out += &each(
            panels * pieces,
            &format!(
                "        const u32 {};
        gm_copy({integers}, to * {} + i * 16,
            (const u32x4 *)((const u8 *)({from} + {MMA_ROWS}) + ({unit}) % {in_block} / {together} * {} + i % {pieces} * 16));
",
                panel(pieces),
                panels * bytes,
                together * MMA_ROWS,
            ),
        );
    }
    let token = format!("gm_min(first_token + i % {tokens}, a.m - 1)");
    if let Some(from) = parts.x_scale(plan, &token, &format!("({unit}) / {in_block}")) {
        out += &each(tokens, &format!("        gm_copy(x_scales, to * {tokens} + i, {from});\n"));
    }
    out
}
