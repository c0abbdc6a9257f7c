//! What [`wgmma`](super::wgmma) does beyond products of rows that are one integer sum: a run's sums are products of their own,
//! begun anew with it, and behind its last one their terms are added to f32 sums in registers, in the order of k. While the
//! terms of the upper half of a warp's rows are made, the lower half's products go on.
//!
//! The producer warpgroup brings a stage's activation scales and sums with its tokens, and with the first stage of several runs the
//! terms of all of them, panel by panel, by bulk copies.

use super::arrays::{self, Array};
use super::ends::{Ends, OfRows, indented, outputs, shared_pair};
use super::pipelined::Used;
use super::product::{CudaMatmul, MMA_ROWS};
use super::terms::{SuperBlockTerms, place_of_x_scale};
use super::tiles::{RunTerms, Warpgroups};
use crate::plan::Term;
use crate::text::{joined, when};
use std::fmt::Write;

/// Warps of the producer warpgroup: each has one or two of the four panels of each multiplying warpgroup.
pub(super) const PRODUCERS: u32 = 4;
/// Runs whose terms are copied together where they have f32 scales.
const TOGETHER: u32 = 4;

impl RunTerms {
    /// Those of a plan whose runs have scales.
    pub(super) fn new(plan: &CudaMatmul<'_>) -> RunTerms {
        let (together, words) = match SuperBlockTerms::of(plan) {
            Some(parts) => (parts.runs, parts.words),
            None => (TOGETHER, TOGETHER * MMA_ROWS),
        };
        let run = plan.format.k_group_tiles(plan.pack.tile.k);
        RunTerms { run, together, bytes: 4 * words, places: 0 }
    }

    /// With as many places that none is written again before its last stage is done.
    pub(super) fn beside(self, stages: u32) -> RunTerms {
        RunTerms { places: 1 + (stages - 1).div_ceil(self.run * self.together), ..self }
    }
}

/// The arrays that the kernel has for its terms.
pub(super) fn arrays(plan: &CudaMatmul<'_>, division: &Warpgroups, of: &RunTerms) -> Vec<Array> {
    let used = Used::of(plan);
    let bytes = of.places * division.panels * of.bytes;
    let by_token = division.stages * plan.tokens;
    let all = [
        (used.scales, "u8", "scales", bytes),
        (used.mins, "u8", "mins", bytes),
        (used.x_scales, "f32", "x_scales", by_token),
        (used.x_sums, "i32", "x_sums", by_token),
    ];
    arrays::used(all).collect()
}

/// What `bring` does for terms, as parts of its text.
#[derive(Default)]
pub(super) struct ProducerTerms {
    /// Template parameters and parameters.
    pub(super) types: String,
    pub(super) parameters: String,
    pub(super) arguments: String,
    /// Statements in front of the loop.
    pub(super) begin: String,
    /// An expression of bytes beside those of the codes, and statements that copy them.
    pub(super) bytes: String,
    pub(super) copies: String,
    /// Statements of each stage.
    pub(super) stage: String,
}

impl ProducerTerms {
    /// With these arrays in shared memory.
    pub(super) fn of(arrays: &[Array]) -> ProducerTerms {
        let listed = |of: fn(&[Array]) -> String| when(!arrays.is_empty(), || format!(", {}", of(arrays)));
        ProducerTerms {
            types: listed(arrays::types),
            parameters: listed(arrays::parameters),
            arguments: listed(arrays::arguments),
            ..ProducerTerms::default()
        }
    }
}

/// The parts of `bring`'s text.
pub(super) fn producer_terms(
    plan: &CudaMatmul<'_>,
    division: &Warpgroups,
    of: &RunTerms,
    ahead: u32,
) -> ProducerTerms {
    let used = Used::of(plan);
    let RunTerms { run, together, bytes, places } = *of;
    let (panels, tokens) = (division.panels, plan.tokens);
    let mut out = ProducerTerms::of(&arrays(plan, division, of));
    let stages = run * together;
    let unit = |stage: &str| if run == 1 { stage.to_string() } else { format!("({stage}) / {run}") };
    let copied: Vec<Term> = plan.format.terms().collect();
    if !copied.is_empty() {
        out.begin.push_str("    u32 terms_place = 0;\n");
        // Rows are whole super-blocks; of other runs there may be fewer at the end.
        let parts = SuperBlockTerms::of(plan);
        let size = match &parts {
            Some(_) => bytes.to_string(),
            None => format!("gm_min({together}u, a.units - {}) * {}", unit("stage"), 4 * MMA_ROWS),
        };
        let from = |term: Term| match &parts {
            Some(parts) => parts.at(term, "panel", &format!("stage / {stages}")),
            None => {
                format!("a.{} + ((u64)panel * a.units + {}) * {MMA_ROWS}", term.array(), unit("stage"))
            }
        };
        let each_warp = panels / PRODUCERS;
        let copies = each_warp * copied.len() as u32;
        out.bytes = format!(" + (stage % {stages} == 0 ? {size} * {copies} : 0)");
        let each: String = copied
            .iter()
            .map(|&term| {
                format!(
                    "\n                    gm_bulk_copy({name}, (terms_place * {panels} + i) * {bytes}, (const u8 *)({}), {size}, full, place);",
                    from(term),
                    name = term.array(),
                )
            })
            .collect();
        out.copies = format!(
            "            if (stage % {stages} == 0) {{
                GM_UNROLL for (u32 j = 0; j < {each_warp}; j++) {{
                    const u32 i = warp + j * {PRODUCERS}, panel = gm_min(first_panel + i, last_panel);{each}
                }}
                terms_place = terms_place + 1 == {places} ? 0 : terms_place + 1;
            }}
"
        );
    }
    let scale = |stage: &str| place_of_x_scale(plan, "(u64)own_token", &unit(stage));
    let sum = |stage: &str| used.x_sums.then(|| format!("(u64)own_token * a.units + {}", unit(stage)));
    if used.x_scales || used.x_sums {
        let _ =
            writeln!(out.begin, "    const u32 own_token = gm_min(first_token + own % {tokens}, a.m - 1);");
        let _ = writeln!(out.stage, "        const u32 later = gm_min(stage + {ahead}, stages - 1);");
    }
    let first = "gm_min(i, stages - 1)";
    for (ty, name, first, later) in
        [("f32", "x_scales", scale(first), scale("later")), ("i32", "x_sums", sum(first), sum("later"))]
    {
        let (Some(first), Some(later)) = (first, later) else { continue };
        let _ = writeln!(
            out.begin,
            "    {ty} {name}_ahead[{ahead}];
    GM_UNROLL for (u32 i = 0; i < {ahead}; i++) {name}_ahead[i] = gm_load(a.{name} + {first});"
        );
        let _ = writeln!(
            out.stage,
            "        if (own < {tokens}) {name}[place * {tokens} + own] = {name}_ahead[i];
        {name}_ahead[i] = gm_load(a.{name} + {later});"
        );
    }
    out
}

/// Declarations of the sums that a warp keeps.
pub(super) fn sums(plan: &CudaMatmul<'_>) -> String {
    format!("i32 sums[2][{}] = {{}};\n    {}", plan.tokens / 2, outputs(plan, plan.tokens / 8))
}

/// What `add_terms` reads and adds to, as parameters and, for half `half` of a warp's rows, as arguments.
fn terms_of(plan: &CudaMatmul<'_>, arrays: &[Array], half: u32) -> [String; 2] {
    let columns = plan.tokens / 8;
    let own = [format!("const i32 (&sums)[{}]", plan.tokens / 2), format!("f32 (&y)[{columns}][4]")];
    let mut parameters: Vec<String> = [arrays::parameters(arrays)].into_iter().chain(own).collect();
    let mut arguments = vec![arrays::arguments(arrays), format!("sums[{half}], y[{half}]")];
    if plan.format.superblock.is_some() {
        for name in ["total"].into_iter().chain(plan.format.offset.then_some("low")) {
            parameters.push(format!("i32 (&{name})[{columns}][4]"));
            arguments.push(format!("{name}[{half}]"));
        }
    }
    [parameters, arguments].map(|all| joined(all.iter().filter(|one| !one.is_empty()), ", "))
}

/// The emitted `add_terms`: what a run's sums of sixteen rows add to the outputs.
pub(super) fn functions(plan: &CudaMatmul<'_>, division: &Warpgroups, of: &RunTerms) -> String {
    let arrays = arrays(plan, division, of);
    let [parameters, _] = terms_of(plan, &arrays, 0);
    let template = when(!arrays.is_empty(), || format!("template <{}> ", arrays::types(&arrays)));
    format!(
        "// The end of a run, the `run`-th of those whose terms are at `terms_place`, for half of a warp's rows: its terms, in the order of k.
{template}GM_DEVICE void add_terms({parameters}, const Matmul &a, u32 half, u32 place, u32 terms_place, u32 run) {{
    const u32 g = gm_lane() / 4, t = gm_lane() % 4, panel = (terms_place * {panels} + gm_warp()) * {bytes}, row = half * 16 + g;
    (void)a; (void)panel; (void)row; (void)run; (void)place; (void)t;
{body}}}

",
        panels = division.panels,
        bytes = of.bytes,
        body = add_terms(plan),
    )
}

/// Statements of `add_terms`.
fn add_terms(plan: &CudaMatmul<'_>) -> String {
    let parts = SuperBlockTerms::of(plan);
    let own = 4 * MMA_ROWS;
    // Of each row its number, and that as an operand.
    let pair = |ty: &str, name: &str, of: &dyn Fn(&str, &str) -> String| {
        format!("const {ty} {name}[2] = {{{}, {}}};\n", of("row", "row"), of("row + 8", "(row + 8)"))
    };
    let of_rows = |of: OfRows| match of {
        OfRows::Integers(Term::Scale) => pair("i32", of.name(), &|_, row| {
            format!("(i32)(i8)scales[panel + {own} + run * {MMA_ROWS} + {row}]")
        }),
        OfRows::Integers(Term::Min) => pair("i32", of.name(), &|_, row| {
            format!("(i32)(i8)mins[panel + {own} + run / 2 * {} + {row} * 2 + run % 2]", 2 * MMA_ROWS)
        }),
        OfRows::Floats(term) => pair("f32", of.name(), &|row, operand| match parts {
            Some(_) => format!("gm_shared_get<f32>({}, panel + {operand} * 4)", term.array()),
            None => format!("gm_shared_get<f32>({}, panel + (run * {MMA_ROWS} + {row}) * 4)", term.array()),
        }),
    };
    let ends = Ends {
        columns: plan.tokens / 8,
        all_rows: false,
        of_rows: &of_rows,
        of_tokens: &|name| shared_pair(name, &format!("place * {}", plan.tokens)),
    };
    let is_last = parts.as_ref().map(|parts| format!("run == {}", parts.runs - 1));
    indented("    ", &ends.emit(plan, is_last.as_deref()))
}

/// Statements that go through all stages; `table` is the argument of `products` where codes are looked up.
pub(super) fn multiply(plan: &CudaMatmul<'_>, division: &Warpgroups, of: &RunTerms, table: &str) -> String {
    let RunTerms { run, together, places, .. } = *of;
    let steps = plan.pack.tile.k / 32;
    let arrays = arrays(plan, division, of);
    // Tiles of a run, where it has several.
    let (first, next) = match run {
        1 => ("0", "run++;".to_string()),
        _ => ("tile", format!("tile = tile + 1 == {run} ? 0 : tile + 1;\n            run += tile == 0;")),
    };
    let ends = |half: u32| {
        let [_, arguments] = terms_of(plan, &arrays, half);
        let call = format!("add_terms({arguments}, a, {half}, place, terms_place, run);");
        if run == 1 { call } else { format!("if (tile == {}) {call}", run - 1) }
    };
    format!(
        "        u32 operands[{steps}][2][4];
        u32 place = 0, phase = 0, terms_place = 0, run = 0{tile};
        GM_NO_UNROLL for (u32 stage = 0; stage < stages; stage++) {{
            products(xs, ws, full, place, phase{table}, operands, sums, {first});
            gm_wgmma_wait<1>();
            gm_wgmma_done(sums[0]);
            {upper}
            gm_wgmma_wait<0>();
            gm_wgmma_done(sums[1]);
            {lower}
            gm_sync_warp();
            if (gm_lane() == 0) gm_barrier_arrive(empty, place);
            place = place + 1 == {stages} ? 0 : place + 1;
            phase ^= place == 0;
            {next}
            if (run == {together}) {{
                run = 0;
                terms_place = terms_place + 1 == {places} ? 0 : terms_place + 1;
            }}
        }}",
        tile = if run == 1 { "" } else { ", tile = 0" },
        upper = ends(0),
        lower = ends(1),
        stages = division.stages,
    )
}
