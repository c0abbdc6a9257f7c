//! Super-blocks in [`pipelined`](super::pipelined): integers of runs are copied with the stage that needs them, beside what
//! their super-block shares.

use super::product::{CudaMatmul, MMA_ROWS};
use super::terms::{Parts, add_terms, integer_terms, needs_sums};
use super::tiles::Tiling;
use std::fmt::Write;

/// Statements that start the copies of a stage's integers and of what its super-block shares; `unit` is the stage's first run.
pub(super) fn copy(
    plan: &CudaMatmul<'_>,
    tiling: &Tiling,
    parts: &Parts,
    unit: &str,
    each: &dyn Fn(u32, &str) -> String,
) -> String {
    let Tiling { panels, runs, .. } = *tiling;
    let (tokens, in_block) = (plan.tokens, parts.runs);
    let mut out = String::new();
    let mut arrays = vec![("scales", "scale_integers", runs * MMA_ROWS, 1)];
    if plan.format.offset {
        arrays.push(("mins", "min_integers", runs.div_ceil(2) * 2 * MMA_ROWS, 2));
    }
    for (array, integers, bytes, together) in arrays {
        let panel = |parts: u32| format!("panel = gm_min(first_panel + i / {parts}, last_panel)");
        let from = parts.at(array, "panel", &format!("({unit}) / {in_block}"));
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

/// Statements at the end of a run with integers, and at the end of its super-block.
pub(super) fn flush(plan: &CudaMatmul<'_>, tiling: &Tiling, parts: &Parts) -> String {
    let Tiling { warp_tokens, panels, tiles, run, runs, stages } = *tiling;
    let (tokens, columns, offset) = (plan.tokens, warp_tokens / 8, plan.format.offset);
    let tile = format!("((stage - {}) * {tiles} + i)", stages - 1);
    let ends = if run == 1 { String::new() } else { format!("if ({tile} % {run} == {}) ", run - 1) };
    let which = if runs > 1 { format!("i / {run}") } else { "0".to_string() };
    let mut rows = format!(
        "                i32 integer[4];
                GM_UNROLL for (u32 r = 0; r < 4; r++) integer[r] = scale_integers[((at * {panels} + own_panel) * {runs} + run) * {MMA_ROWS} + r * 8 + g];
"
    );
    let mut shared = format!(
        "                    f32 scale[4];
                    GM_UNROLL for (u32 r = 0; r < 4; r++) scale[r] = scales[(at * {panels} + own_panel) * {MMA_ROWS} + r * 8 + g];
"
    );
    if offset {
        let _ = writeln!(
            rows,
            "                i32 lower[4];
                GM_UNROLL for (u32 r = 0; r < 4; r++) lower[r] = min_integers[((at * {panels} + own_panel) * {pairs} + run / 2) * {both} + (r * 8 + g) * 2 + unit % 2];",
            pairs = runs.div_ceil(2),
            both = 2 * MMA_ROWS,
        );
        let _ = writeln!(
            shared,
            "                    f32 min[4];
                    GM_UNROLL for (u32 r = 0; r < 4; r++) min[r] = mins[(at * {panels} + own_panel) * {MMA_ROWS} + r * 8 + g];"
        );
    }
    let (x_sums, x_sum) = if needs_sums(plan.format) {
        (
            format!(
                "const u32x2 both_x_sums = gm_shared_get<u32x2>(x_sums, (at * {runs} + run) * {tokens} + own_tokens + c * 8 + t * 2);
                    const i32 x_sum_of[2] = {{(i32)both_x_sums.x, (i32)both_x_sums.y}};"
            ),
            "const i32 x_sum = x_sum_of[j % 2];",
        )
    } else {
        (String::new(), "")
    };
    let (x_scales, x_scale) = if plan.format.activations.block.is_some() {
        (
            format!(
                "const f32x2 both_x_scales = gm_shared_get<f32x2>(x_scales, at * {tokens} + own_tokens + c * 8 + t * 2);
                        const f32 x_scale_of[2] = {{both_x_scales.x, both_x_scales.y}};"
            ),
            "const f32 x_scale = x_scale_of[j % 2];",
        )
    } else {
        (String::new(), "")
    };
    let (added, subtracted) =
        integer_terms(plan, "sums[half][c][j]", "integer[half * 2 + j / 2]", "lower[half * 2 + j / 2]");
    let low = subtracted.map_or(String::new(), |text| format!(" low[half][c][j] += {text};"));
    let zero = if offset { " low[half][c][j] = 0;" } else { "" };
    let terms = add_terms(
        plan,
        [
            "y[half][c][j]",
            "total[half][c][j]",
            "low[half][c][j]",
            "scale[half * 2 + j / 2]",
            "min[half * 2 + j / 2]",
        ],
    );
    format!(
        "            {ends}{{
                // The end of a run: its sums times its integers.
                const u32 run = {which}, unit = {tile} / {run};
{rows}                GM_UNROLL for (u32 c = 0; c < {columns}; c++) {{
                    {x_sums}
                    GM_UNROLL for (u32 half = 0; half < 2; half++)
                    GM_UNROLL for (u32 j = 0; j < 4; j++) {{
                        {x_sum}
                        total[half][c][j] += {added};{low}
                        sums[half][c][j] = 0;
                    }}
                }}
                if (unit % {in_block} == {last}) {{
                    // The end of a super-block: its terms, in the order of k.
{shared}                    GM_UNROLL for (u32 c = 0; c < {columns}; c++) {{
                        {x_scales}
                        GM_UNROLL for (u32 half = 0; half < 2; half++)
                        GM_UNROLL for (u32 j = 0; j < 4; j++) {{
                            {x_scale}
                            {terms}
                            total[half][c][j] = 0;{zero}
                        }}
                    }}
                }}
            }}
",
        in_block = parts.runs,
        last = parts.runs - 1,
    )
}
