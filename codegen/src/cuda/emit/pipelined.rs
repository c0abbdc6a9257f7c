//! Products of many tokens by `mma.sync`: a CUDA block has several panels of rows and many tokens, and what they need of
//! the next stretches of k is copied to shared memory while it multiplies this one.
//!
//! A warp has 32 rows and 32 or 64 of the tokens, and goes through k in order, so that its f32 sums are in order.

use super::arrays::{self, Array};
use super::ends::{Ends, OfRows, indented, outputs, shared_pair};
use super::epilogue::Epilogue;
use super::form::{Form, in_each_form};
use super::fragments::{products, staged};
use super::operands::load_table;
use super::product::{CudaMatmul, MMA_ROWS};
use super::split::{SHARE, gather};
use super::superblock;
use super::terms::{SuperBlockTerms, corrected, needs_sums, place_of_x_scale};
use super::tiles::Tiling;
use crate::Error;
use crate::plan::Term;
use crate::text::{joined, when};
use gristmill_spec::model::{CudaBudget, Origin};
use std::fmt::Write;

/// Elements of k that a stage has, where runs allow it.
const STAGE: u32 = 64;
/// Stages in shared memory at most.
const MOST_STAGES: u32 = 4;

impl Tiling {
    /// The tiling of a tile of `tokens` and `threads`, or what is wrong with it.
    pub fn new(plan: &CudaMatmul<'_>, variant: &Origin) -> Result<Tiling, Error> {
        let (tokens, warps) = (plan.tokens, plan.threads / 32);
        let format = plan.format;
        // Where runs have scales, a warp has f32 sums beside its integer sums.
        let most = if format.k_group == 0 { 64 } else { 32 };
        let warp_tokens = if tokens <= most { tokens } else { most };
        let beside = tokens / warp_tokens;
        if !tokens.is_multiple_of(warp_tokens) || !warps.is_multiple_of(beside) {
            let message =
                format!("{tokens} tokens do not divide among {warps} warps of {warp_tokens} tokens");
            let help = format!("use a multiple of {most} tokens and of {} threads", 32 * beside);
            return Err(Error::refused("tile-rows", variant, message, help));
        }
        let k = plan.pack.tile.k;
        let run = format.k_group_tiles(k);
        let fits = |tiles: u32| run == 0 || run.is_multiple_of(tiles) || tiles.is_multiple_of(run);
        let tiles = Some(STAGE / k).filter(|tiles| fits(*tiles)).unwrap_or(1);
        let runs = tiles.checked_div(run).map_or(0, |runs| runs.max(1));
        let mut tiling =
            Tiling { warp_tokens, panels: warps / beside, tiles, run, runs, stages: MOST_STAGES };
        let most = CudaBudget::default().shared;
        while tiling.stages > 1 && tiling.stages * tiling.stage_bytes(plan) > most {
            tiling.stages -= 1;
        }
        if tiling.stages == 1 {
            let (tile, bytes) = ((tokens, tiling.panels * MMA_ROWS), 2 * tiling.stage_bytes(plan));
            return Err(Error::large_stages(format.format, variant, tile, (bytes, most)));
        }
        Ok(tiling)
    }

    /// In words.
    pub fn describe(&self) -> String {
        format!("32 rows x {} tokens a warp; copied {} stages ahead", self.warp_tokens, self.stages - 1)
    }

    /// Bytes of shared memory of a CUDA block.
    pub(super) fn shared_bytes(&self, plan: &CudaMatmul<'_>) -> u32 {
        self.stages * self.stage_bytes(plan)
    }

    fn stage_bytes(&self, plan: &CudaMatmul<'_>) -> u32 {
        arrays(plan, self).iter().map(Array::bytes).sum()
    }

    /// What a stage holds besides codes and activations.
    fn arrays(&self, plan: &CudaMatmul<'_>) -> Vec<Array> {
        let used = Used::of(plan);
        let (runs, rows, tokens) = (self.runs, self.panels * MMA_ROWS, plan.tokens);
        // Integers of runs, and with them an f32 for all runs of the stage: they are of one super-block.
        let integers = plan.format.superblock.is_some();
        let shared = if integers { 1 } else { runs };
        let all = [
            (used.scales, "f32", "scales", shared * rows),
            (used.mins, "f32", "mins", shared * rows),
            (used.scales && integers, "i8", "scale_integers", runs * rows),
            (used.mins && integers, "i8", "min_integers", runs.div_ceil(2) * 2 * rows),
            (used.x_scales, "f32", "x_scales", shared * tokens),
            (used.x_sums, "i32", "x_sums", runs * tokens),
        ];
        arrays::used(all).collect()
    }
}

/// What a run's terms are made of.
pub(super) struct Used {
    pub(super) scales: bool,
    pub(super) mins: bool,
    pub(super) x_scales: bool,
    pub(super) x_sums: bool,
}

impl Used {
    pub(super) fn of(plan: &CudaMatmul<'_>) -> Used {
        let format = plan.format;
        Used {
            scales: format.has_scales(),
            mins: format.offset,
            x_scales: format.activations.block.is_some(),
            x_sums: format.k_group != 0 && needs_sums(format),
        }
    }
}

/// The kernel.
pub fn pipelined(plan: &CudaMatmul<'_>, tiling: &Tiling) -> String {
    let share = if plan.format.k_group == 0 { SHARE } else { "" };
    let copy = copy(plan, tiling, &Used::of(plan));
    format!("{share}{copy}{}", in_each_form(plan, |form| kernel(plan, tiling, form)))
}

fn kernel(plan: &CudaMatmul<'_>, tiling: &Tiling, form: Form) -> String {
    let (threads, tokens) = (plan.threads, plan.tokens);
    let Tiling { warp_tokens, panels, tiles, stages, .. } = *tiling;
    let arrays = arrays(plan, tiling);
    let shared = arrays
        .iter()
        .map(|Array { ty, name, count }| format!("GM_SHARED({ty}, {name}, {stages} * {count});"));
    let shared = joined(shared, "\n    ") + "\n    ";
    let beside = tokens / warp_tokens;
    let count = if plan.format.k_group == 0 {
        format!("(u32)(a.stride / {})", plan.pack.tile.bytes)
    } else {
        format!("a.units * {}", tiling.run)
    };
    let sums = format!("i32 sums[2][{}][4] = {{}};", warp_tokens / 8);
    let totals = if plan.format.k_group == 0 {
        sums
    } else {
        format!("{sums}\n    {}", outputs(plan, warp_tokens / 8))
    };
    // The stages that the CUDA block has, from where to where.
    let (begin, end, from) = if plan.format.k_group == 0 {
        let parts =
            "\n    const u32 begin = share(stages, gm_block_z()), end = share(stages, gm_block_z() + 1);";
        (parts, "end", "begin")
    } else {
        ("", "stages", "0")
    };
    let behind = when(plan.format.k_group == 0, || format!("{from} + "));
    let gathered = when(plan.format.k_group == 0, || {
        gather(plan, threads / 32, warp_tokens / 8, &|i| format!("sums[half][c][{i}]"))
    });
    let body = format!(
        "const u32 g = gm_lane() / 4, t = gm_lane() % 4;
    const u32 first_token = {first_token}, first_panel = gm_block() * {panels};
    const u32 own_panel = gm_warp() / {beside}, own_tokens = gm_warp() % {beside} * {warp_tokens};
    const u32 tiles = {count}, stages = (tiles + {tiles} - 1) / {tiles};{begin}
    {table}{wait}{totals}
    // Stages before the first are empty groups; there is a group for each stage, copied or not.
    u32 to = 0, at = 0;
    for (u32 stage = {from}; stage < {end} + {ahead}; stage++) {{
        if (stage >= {behind}{ahead}) {{
            gm_copy_wait<{pending}>();
            gm_sync();
        }}
        if (stage < {end}) copy_stage({arrays}, a, first_token, first_panel, tiles, stage, to);
        gm_copy_commit();
        to = to + 1 == {stages} ? 0 : to + 1;
        if (stage < {behind}{ahead}) continue;
        {multiply}
        at = at + 1 == {stages} ? 0 : at + 1;
    }}
    {gathered}{store}",
        first_token = form.first_token(plan),
        table = load_table(plan),
        wait = form.wait(""),
        ahead = stages - 1,
        pending = stages - 2,
        arrays = arrays::arguments(&arrays),
        multiply = multiply(plan, tiling),
        store = form.storing(&store(plan, warp_tokens, "sums[half][c][j]")),
    );
    form.kernel(plan, &shared, &body)
}

/// The arrays of a stage in shared memory.
fn arrays(plan: &CudaMatmul<'_>, tiling: &Tiling) -> Vec<Array> {
    let Tiling { panels, tiles, .. } = *tiling;
    let own = [
        Array { ty: "u8", name: "xs", count: plan.tokens * tiles * plan.pack.tile.k },
        Array { ty: "u8", name: "ws", count: panels * tiles * plan.pack.tile.bytes },
    ];
    own.into_iter().chain(tiling.arrays(plan)).collect()
}

/// `copy_stage`: starts the copies of one stage to place `to`.
fn copy(plan: &CudaMatmul<'_>, tiling: &Tiling, used: &Used) -> String {
    let (threads, tokens) = (plan.threads, plan.tokens);
    let Tiling { panels, tiles, .. } = *tiling;
    let (k, bytes) = (plan.pack.tile.k, plan.pack.tile.bytes);
    // Sixteen bytes of tokens, then of codes.
    let (x_each, w_each) = (tiles * k / 16, tiles * bytes / 16);
    let each = |count: u32, body: &str| {
        let guard = if count.is_multiple_of(threads) {
            String::new()
        } else {
            format!("        if (i >= {count}) continue;\n")
        };
        format!(
            "    GM_UNROLL for (u32 round = 0; round < {}; round++) {{
        const u32 i = round * {threads} + gm_thread();
{guard}{body}    }}
",
            count.div_ceil(threads)
        )
    };
    // The last stage may have fewer tiles.
    let there = |part: u32| {
        when(tiles != 1, || format!("        if (stage * {tiles} + part * 16 / {part} >= tiles) continue;\n"))
    };
    let mut out = each(
        tokens * x_each,
        &format!(
            "        const u32 token = gm_min(first_token + i / {x_each}, a.m - 1), part = i % {x_each};
{}        gm_copy(xs, (to * {} + part / 2 * {tokens} + i / {x_each}) * 32 + part % 2 * 16,
            (const u32x4 *)(a.x + token * a.x_stride + stage * {} + part * 16));
",
            there(k),
            tokens * (tiles * k / 32),
            tiles * k,
        ),
    );
    out += &each(
        panels * w_each,
        &format!(
            "        const u32 panel = gm_min(first_panel + i / {w_each}, last_panel), part = i % {w_each};
{}        gm_copy(ws, to * {} + i * 16, (const u32x4 *)(a.codes + panel * a.stride + (u64)stage * {} + part * 16));
",
            there(bytes),
            panels * tiles * bytes,
            tiles * bytes,
        ),
    );
    out += &copy_terms(plan, tiling, used, &each);
    let arrays = arrays(plan, tiling);
    let (types, names) = (arrays::types(&arrays), arrays::parameters(&arrays));
    format!(
        "// Starts the copies of a stage of k to its place in shared memory: of each 32 k, 32 bytes of every token.
template <{types}>
GM_DEVICE void copy_stage({names}, const Matmul &a, u32 first_token, u32 first_panel, u32 tiles, u32 stage, u32 to) {{
    const u32 last_panel = (a.n - 1) / {MMA_ROWS};
    (void)tiles;
{out}}}

",
    )
}

/// Statements that start the copies of what a stage's runs have beside codes and activations; `each` has the threads do so many.
fn copy_terms(
    plan: &CudaMatmul<'_>,
    tiling: &Tiling,
    used: &Used,
    each: &dyn Fn(u32, &str) -> String,
) -> String {
    let (tokens, format) = (plan.tokens, plan.format);
    let Tiling { panels, tiles, runs, .. } = *tiling;
    let mut out = String::new();
    // The first run of the stage.
    let unit = format!("stage * {tiles} / {}", tiling.run.max(1));
    let parts = SuperBlockTerms::of(plan);
    let of_terms = |array: &str| {
        each(
            runs * panels * 8,
            &format!(
                "        const u32 unit = {unit} + i / {per_run}, panel = gm_min(first_panel + i % {per_run} / 8, last_panel);
        if (unit >= a.units) continue;
        gm_copy({array}, to * {place} + i * 4, (const f32x4 *)(a.{array} + ((u64)panel * a.units + unit) * {MMA_ROWS} + i % 8 * 4));
",
                per_run = panels * 8,
                place = runs * panels * MMA_ROWS,
            ),
        )
    };
    out += &match &parts {
        Some(parts) => superblock::copy(plan, tiling, parts, &unit, each),
        None => format.terms().map(Term::array).map(of_terms).collect(),
    };
    let of_runs = place_of_x_scale(plan, "(u64)token", "unit").filter(|_| parts.is_none());
    for (array, from) in
        [("x_scales", of_runs), ("x_sums", used.x_sums.then(|| "(u64)token * a.units + unit".to_string()))]
    {
        if let Some(from) = from {
            out += &each(
                runs * tokens,
                &format!(
                    "        const u32 unit = {unit} + i / {tokens}, token = gm_min(first_token + i % {tokens}, a.m - 1);
        if (unit < a.units) gm_copy({array}, to * {place} + i, a.{array} + {from});
",
                    place = runs * tokens,
                ),
            );
        }
    }
    out
}

/// Statements that multiply the stage at place `at`.
fn multiply(plan: &CudaMatmul<'_>, tiling: &Tiling) -> String {
    let (tokens, k) = (plan.tokens, plan.pack.tile.k);
    let Tiling { warp_tokens, panels, tiles, run, .. } = *tiling;
    let columns = warp_tokens / 8;
    let parts = staged(plan, &format!("(at * {panels} + own_panel) * {tiles} + i"));
    let products = products(plan, columns, |step| {
        format!(
            "gm_shared_get<u32x2>(xs, ((at * {stage_steps} + i * {steps} + {step}) * {tokens} + own_tokens + c * 8 + g) * 32 + t * 8)",
            stage_steps = tiles * k / 32,
            steps = k / 32,
        )
    });
    let flush = when(run != 0, || flush(plan, tiling));
    let beyond = when(tiles != 1, || {
        format!("            if ((stage - {}) * {tiles} + i >= tiles) continue;\n", tiling.stages - 1)
    });
    format!(
        "GM_UNROLL for (u32 i = 0; i < {tiles}; i++) {{
{beyond}            const u32x4 w[{count}] = {{{parts}}};
{products}{flush}        }}",
        products = indented("    ", &products),
        count = parts.len(),
        parts = parts.join(", "),
    )
}

/// Statements at the end of a run.
fn flush(plan: &CudaMatmul<'_>, tiling: &Tiling) -> String {
    let Tiling { warp_tokens, panels, tiles, run, runs, stages } = *tiling;
    let tokens = plan.tokens;
    let block = plan.format.superblock.as_ref().map(|superblock| superblock.runs);
    // Of a super-block the stage has a place for what all its runs share.
    let (place, shared) = match block {
        Some(_) => (format!("at * {panels} + own_panel"), "at".to_string()),
        None => (format!("(at * {runs} + run) * {panels} + own_panel"), format!("(at * {runs} + run)")),
    };
    let of_rows = |of: OfRows| {
        let (ty, from) = match of {
            OfRows::Integers(Term::Scale) => {
                ("i32", format!("scale_integers[(({place}) * {runs} + run) * {MMA_ROWS} + r * 8 + g]"))
            }
            OfRows::Integers(Term::Min) => (
                "i32",
                format!(
                    "min_integers[(({place}) * {} + run / 2) * {} + (r * 8 + g) * 2 + unit % 2]",
                    runs.div_ceil(2),
                    2 * MMA_ROWS
                ),
            ),
            OfRows::Floats(term) => ("f32", format!("{}[({place}) * {MMA_ROWS} + r * 8 + g]", term.array())),
        };
        let name = of.name();
        format!("{ty} {name}[4];\nGM_UNROLL for (u32 r = 0; r < 4; r++) {name}[r] = {from};\n")
    };
    let ends = Ends {
        columns: warp_tokens / 8,
        all_rows: true,
        of_rows: &of_rows,
        of_tokens: &|name| {
            let run = if name == "x_sum" { format!("(at * {runs} + run)") } else { shared.clone() };
            shared_pair(name, &format!("{run} * {tokens} + own_tokens"))
        },
    };
    let is_last = block.map(|block| format!("unit % {block} == {}", block - 1));
    let tile = format!("((stage - {}) * {tiles} + i)", stages - 1);
    let at_end = when(run != 1, || format!("if ({tile} % {run} == {}) ", run - 1));
    let which = if runs > 1 { format!("i / {run}") } else { "0".to_string() };
    let unit = when(block.is_some(), || format!(", unit = {tile} / {run}"));
    let add = indented("                ", &ends.emit(plan, is_last.as_deref()));
    format!(
        "            {at_end}{{
                // The end of a run: its terms, in the order of k.
                const u32 run = {which}{unit};
{add}            }}
"
    )
}

/// Statements that compute the outputs of a lane and store them: all loads first, without branches between them. `sum` is an
/// expression of an integer sum by `half`, `c` and `j`, for `tokens` from `own_tokens` on and the rows of `own_panel`.
pub(super) fn store(plan: &CudaMatmul<'_>, tokens: u32, sum: &str) -> String {
    let columns = tokens / 8;
    let epilogue = Epilogue::of(plan);
    let mut out = format!(
        "const u32 first_row = (first_panel + own_panel) * {MMA_ROWS} + g, last_row = a.n - 1, last_token = a.m - 1;\n"
    );
    out += &epilogue.load_rows("    ", "gm_min(first_row + r * 8, last_row)");
    let mut of_token = String::new();
    if epilogue.x_scale {
        of_token
            .push_str("            const f32 x_scale = gm_load(a.x_scales + gm_min(token, last_token));\n");
    }
    let total = if plan.format.k_group == 0 {
        if plan.format.min() != 0 {
            of_token
                .push_str("            const i32 x_sum = gm_load(a.x_sums + gm_min(token, last_token));\n");
        }
        corrected(plan, sum, "x_sum")
    } else {
        "y[half][c][j]".to_string()
    };
    let x_scale = epilogue.x_scale.then(|| "x_scale".to_string());
    let arguments = joined(epilogue.row_arguments().chain(x_scale), ", ");
    let _ = write!(
        out,
        "    GM_UNROLL for (u32 c = 0; c < {columns}; c++)
        GM_UNROLL for (u32 j = 0; j < 4; j++) {{
            const u32 token = first_token + own_tokens + c * 8 + t * 2 + j % 2;
{of_token}            GM_UNROLL for (u32 half = 0; half < 2; half++) {{
                const u32 row = first_row + half * 16 + j / 2 * 8;
                const f32 done = epilogue(a, {total}, {arguments});
                if (row <= last_row && token <= last_token) gm_store(a.y + (u64)token * a.n + row, done);
            }}
        }}",
    );
    out
}
