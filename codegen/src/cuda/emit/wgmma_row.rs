//! What the multiplying warps of [`wgmma`](super::wgmma) do where a row is one integer sum: the loop over stages, and outputs, which are
//! finished with what stands in shared memory by token.

use super::arrays::{self, Array};
use super::epilogue::Epilogue;
use super::operands::table_of;
use super::pipelined;
use super::product::{CudaMatmul, MMA_ROWS};
use super::split::gather;
use super::tiles::Warpgroups;
use crate::text::joined;
use std::fmt::Write;

/// Statements that multiply all stages and store the outputs.
pub(super) fn multiply(plan: &CudaMatmul<'_>, division: &Warpgroups) -> String {
    let tokens = plan.tokens;
    let sum = match shift(plan) {
        Some(shift) => format!("(sums[half][c * 4 + j] >> {shift})"),
        None => "sums[half][c * 4 + j]".to_string(),
    };
    // Two sets of operands beside the sums of 96 tokens are more registers than three warpgroups have evenly.
    let overlap = division.groups > 1 && tokens != 96;
    let gather = gather(plan, division.panels, tokens / 8, &|i| format!("sums[half][c * 4 + {i}]"));
    format!(
        "i32 sums[2][{count}] = {{}};
{stages}
        {gather}if ({whole}) {{
{store_whole}
            return;
        }}
    {store}",
        count = tokens / 2,
        stages = stages(plan, division, overlap),
        whole = whole(plan, division),
        store_whole = store_whole(plan, &sum),
        store = pipelined::store(plan, tokens, &sum),
    )
}

/// What an expression of a sum is shifted right by, where fields were multiplied where they stand: a row has one field.
fn shift(plan: &CudaMatmul<'_>) -> Option<&'static str> {
    match (plan.shift_free, plan.pack.bits()) {
        (false, _) => None,
        (true, 2) => Some("(half * 4 + j / 2 * 2)"),
        (true, _) => Some("(j / 2 * 4)"),
    }
}

/// Whether activations are divided by what is kept of a token, and whether sums are corrected by the sum of its elements.
fn used(plan: &CudaMatmul<'_>) -> (bool, bool) {
    (plan.format.activations.keeps_multiplier, plan.format.min() != 0)
}

/// What outputs are finished with, by token.
pub(super) fn arrays(plan: &CudaMatmul<'_>) -> impl Iterator<Item = Array> {
    let (divides, corrects) = used(plan);
    let all = [(true, "f32", "x_scales"), (divides, "f32", "inverses"), (corrects, "i32", "corrections")];
    let count = plan.tokens;
    arrays::used(all.map(|(used, ty, name)| (used, ty, name, count)))
}

/// Statements that bring it to shared memory, by the threads that bring the first stage: who waits for that has it too.
pub(super) fn load_tokens(plan: &CudaMatmul<'_>) -> String {
    let (divides, corrects) = used(plan);
    let inverse = if divides { "\n        inverses[own] = 1.0f / x_scale;" } else { "" };
    let correction =
        if corrects { "\n        corrections[own] = gm_load(a.x_sums + token) * a.min;" } else { "" };
    format!(
        "    if (own < {}) {{
        const u32 token = gm_min(first_token + own, a.m - 1);
        const f32 x_scale = gm_load(a.x_scales + token);
        x_scales[own] = x_scale;{inverse}{correction}
    }}
",
        plan.tokens
    )
}

/// Whether all of a warp's outputs are there, and can be divided without regard for the ends of f32's range.
fn whole(plan: &CudaMatmul<'_>, division: &Warpgroups) -> String {
    let tokens = plan.tokens;
    let inside =
        format!("first_token + {tokens} <= a.m && (first_panel + {}) * {MMA_ROWS} <= a.n", division.panels);
    if !used(plan).0 {
        return inside;
    }
    let each = joined(
        (0..tokens / 32).map(|i| format!("gm_divides_in_place(x_scales[{} + gm_lane()])", i * 32)),
        " && ",
    );
    format!("{inside} && gm_ballot({}) == 0xffffffffu", each)
}

/// Statements that compute and store all outputs of a lane, of which none is beyond the last.
fn store_whole(plan: &CudaMatmul<'_>, sum: &str) -> String {
    let (divides, corrects) = used(plan);
    let mut out = format!("            const u32 row = (first_panel + own_panel) * {MMA_ROWS} + g;\n");
    let epilogue = Epilogue::of(plan);
    out += &epilogue.load_rows("            ", "row + r * 8");
    let mut of_tokens = "const f32x2 x_scale = gm_shared_get<f32x2>(x_scales, c * 8 + t * 2);".to_string();
    if divides {
        of_tokens += "\n                const f32x2 inverse = gm_shared_get<f32x2>(inverses, c * 8 + t * 2);";
    }
    if corrects {
        of_tokens +=
            "\n                const u32x2 correction = gm_shared_get<u32x2>(corrections, c * 8 + t * 2);";
    }
    let total = if corrects {
        format!("(f32)({sum} + (i32)(j % 2 ? correction.y : correction.x))")
    } else {
        format!("(f32)({sum})")
    };
    let scale = "j % 2 ? x_scale.y : x_scale.x";
    let scaled = if divides {
        format!("gm_quotient({total}, {scale}, j % 2 ? inverse.y : inverse.x)")
    } else {
        format!("{total} * ({scale})")
    };
    let arguments = joined(epilogue.row_arguments(), ", ");
    let _ = write!(
        out,
        "            f32 *const y = a.y + (u64)(first_token + t * 2) * a.n + row;
            GM_UNROLL for (u32 c = 0; c < {columns}; c++) {{
                {of_tokens}
                GM_UNROLL for (u32 j = 0; j < 4; j++)
                GM_UNROLL for (u32 half = 0; half < 2; half++)
                    gm_store(y + (u64)(c * 8 + j % 2) * a.n + half * 16 + j / 2 * 8, epilogue_row(a, {scaled}, {arguments}));
            }}",
        columns = plan.tokens / 8,
    );
    out
}

/// Keeps the epilogue behind the last wait.
const DONE: &str = "gm_wgmma_done(sums[0]);\n        gm_wgmma_done(sums[1]);";

/// Statements that go through all stages. Where a multiprocessor has one CUDA block, operands of a stage are made while the
/// products of the one before go on (`overlap`), which takes two sets of registers; where it has several, others multiply.
fn stages(plan: &CudaMatmul<'_>, division: &Warpgroups, overlap: bool) -> String {
    let steps = plan.pack.tile.k / 32;
    let (_, table) = table_of(plan);
    let next = format!(
        "place = place + 1 == {} ? 0 : place + 1;\n            phase ^= place == 0;",
        division.stages
    );
    let start = |set: &str| format!("products(xs, ws, full, place, phase{table}, {set}, sums);");
    if !overlap {
        return format!(
            "        u32 operands[{steps}][2][4];
        u32 place = 0, phase = 0;
        for (u32 stage = 0; stage < stages; stage++) {{
            {}
            release<0>(empty, place);
            {next}
        }}
        {DONE}",
            start("operands")
        );
    }
    let (even, odd) = (start("even"), start("odd"));
    let done = format!("release<1>(empty, before);\n            before = place;\n            {next}");
    format!(
        "        u32 even[{steps}][2][4], odd[{steps}][2][4];
        u32 place = 0, phase = 0, before = 0, stage = 1;
        {even}
        {{
            {next}
        }}
        for (; stage + 1 < stages; stage += 2) {{
            {odd}
            {done}
            {even}
            {done}
        }}
        if (stage < stages) {{
            {odd}
        }}
        gm_wgmma_wait<0>();
        {DONE}"
    )
}
