//! Products of few tokens by `dp4a`, over the panels of sixteen rows that the CPU reads too.
//!
//! Four lanes have the sixteen rows of a tile, four rows each; lanes beside them have the next tiles. So the threads of a
//! CUDA block, as many as it was launched with, share the k of one panel. Weights are loaded and masked once for all
//! tokens of the CUDA block.

use super::adding::Adding;
use super::form::{Form, in_each_form};
use super::operands::{WORDS, fields, load_table};
use super::product::{CudaMatmul, DP4A_ROWS, DoubleBuffer, handed_over};
use super::terms::{
    SuperBlockTerms, corrected, integer_terms, needs_sums, run_of_token, terms, x_sum_of_run,
};
use super::tiles::unrolled;
use crate::plan::Term;
use crate::text::{joined, when};
use std::fmt::Write;

/// Loads of sixteen bytes that a lane starts before it uses the first, where a row is one integer sum.
pub(super) const AHEAD: u32 = 2;

/// The kernel.
pub fn dp4a(plan: &CudaMatmul<'_>) -> String {
    in_each_form(plan, |form| kernel(plan, form))
}

fn kernel(plan: &CudaMatmul<'_>, form: Form) -> String {
    let tokens = plan.tokens;
    let body = format!(
        "const u32 panel = gm_block(), first_token = {first_token};
    const u32 within = gm_thread(), group = within / 4, quad = within % 4, groups = gm_threads() / 4;
    const u32 tokens = gm_min(a.m - first_token, {tokens}u);
    const u8 *codes = a.codes + panel * a.stride + quad * 16;
    const i8 *xs = a.x + first_token * a.x_stride;
    {table}{body}",
        first_token = form.first_token(plan),
        table = load_table(plan),
        body = if plan.format.k_group == 0 { one_sum(plan, form) } else { by_k_group(plan, form) },
    );
    form.kernel(plan, &handed_over(plan), &body)
}

/// The type of a token's bytes for a tile.
pub(super) fn vector(plan: &CudaMatmul<'_>) -> &'static str {
    match plan.pack.fields {
        4 => "u32x4",
        2 => "u32x2",
        _ => "u32",
    }
}

/// Statements that take weights `w` and the tokens' bytes into `sums`; `x` is an expression of token `t`'s.
pub(super) fn step(plan: &CudaMatmul<'_>, x: &str) -> String {
    let pack = &plan.pack;
    let vector = vector(plan);
    let operands = joined(
        WORDS.iter().map(|name| format!("{{{}}}", fields(plan, &format!("w.{name}")).join(", "))),
        ", ",
    );
    let mut products = String::new();
    for row in 0..4 {
        for field in 0..pack.fields {
            let x = if pack.fields == 1 { "x".to_string() } else { format!("x.{}", WORDS[field as usize]) };
            let sum = if plan.shift_free { field } else { 0 };
            let _ = writeln!(
                products,
                "                sums[t][{sum}][{row}] = gm_dp4a_us(operands[{row}][{field}], {x}, sums[t][{sum}][{row}]);"
            );
        }
    }
    let inner = format!("const {vector} x = {x};\n{products}");
    format!(
        "const u32 operands[4][{}] = {{{}}};
            {}",
        pack.fields,
        operands,
        each_token(plan, &inner)
    )
}

/// Statements for each token `t` that is there.
pub(super) fn each_token(plan: &CudaMatmul<'_>, body: &str) -> String {
    let tokens = plan.tokens;
    if tokens == 1 {
        return format!("{{\n                const u32 t = 0;\n                {body}            }}");
    }
    format!(
        "GM_UNROLL for (u32 t = 0; t < {tokens}; t++) {{
                if (t >= tokens) continue;
                {body}            }}"
    )
}

/// The sum of row `r`'s fields.
pub(super) fn total(plan: &CudaMatmul<'_>, row: &str) -> String {
    let sums = if plan.shift_free { plan.pack.fields } else { 1 };
    let each = (0..sums).map(|field| match field * plan.pack.bits() {
        0 => format!("sums[t][{field}][{row}]"),
        shift => format!("(sums[t][{field}][{row}] >> {shift})"),
    });
    joined(each, " + ")
}

pub(super) fn declare_sums(plan: &CudaMatmul<'_>) -> String {
    let sums = if plan.shift_free { plan.pack.fields } else { 1 };
    format!("i32 sums[{}][{sums}][4] = {{}};", plan.tokens)
}

/// A row is one integer sum: all threads add up their parts.
fn one_sum(plan: &CudaMatmul<'_>, form: Form) -> String {
    let (tokens, vector) = (plan.tokens, vector(plan));
    let x_load = |token: &str| format!("gm_load((const {vector} *)(x_next + i * x_apart{token}))");
    // One token's bytes come ahead as well; those of more would take too many registers.
    let (x_declare, x_load, x) = if tokens == 1 {
        (
            format!("{vector} x_ahead[{AHEAD}] = {{}};"),
            format!("x_ahead[i] = {};", x_load("")),
            "x_ahead[i]".to_string(),
        )
    } else {
        (String::new(), String::new(), x_load(" + t * a.x_stride"))
    };
    let x_sum = when(plan.format.min() != 0, || "const i32 x_sum = gm_load(a.x_sums + token);\n    ");
    format!(
        "const u32 tiles = (u32)(a.stride / {bytes});
    {declare}
    // Addresses that move on, so that none is computed anew in front of a load.
    const u8 *next = codes + group * {bytes};
    const i8 *x_next = xs + group * {k};
    const u64 apart = groups * {bytes}, x_apart = groups * {k};
    u32x4 ahead[{AHEAD}] = {{}};
    {wait}for (u32 first = group; first < tiles; first += {AHEAD} * groups) {{
        u32x4 now[{AHEAD}];
        {x_declare}
        next += {AHEAD} * apart;
        GM_UNROLL for (u32 i = 0; i < {AHEAD}; i++) {{
            now[i] = ahead[i];
            if (first + i * groups < tiles) {{ {x_load} }}
            if (first + ({AHEAD} + i) * groups < tiles) ahead[i] = gm_load_once((const u32x4 *)(next + i * apart));
        }}
        GM_UNROLL for (u32 i = 0; i < {AHEAD}; i++) {{
            if (first + i * groups >= tiles) continue;
            const u32x4 w = now[i];
            {step}
        }}
        x_next += {AHEAD} * x_apart;
    }}
    {hand_over}
    const u32 i = gm_thread();
    const u32 row = panel * {DP4A_ROWS} + i % {DP4A_ROWS}, token = first_token + i / {DP4A_ROWS};
    if (i >= tokens * {DP4A_ROWS} || row >= a.n) return;
    i32 dot = 0;
    for (u32 warp = 0; warp < gm_threads() / 32; warp++) dot += parts[warp * {tokens} * {DP4A_ROWS} + i];
    {store}",
        wait = form.wait(&format!(
            "GM_UNROLL for (u32 i = 0; i < {AHEAD}; i++)
        if (group + i * groups < tiles) ahead[i] = gm_load_early((const u32x4 *)(next + i * apart));
    "
        )),
        bytes = plan.pack.tile.bytes,
        k = plan.pack.tile.k,
        declare = declare_sums(plan),
        step = step(plan, &x),
        hand_over = hand_over(plan, "gm_warp()"),
        store = form
            .storing(&format!("{x_sum}store_output(a, row, token, {});", corrected(plan, "dot", "x_sum"))),
    )
}

/// Statements that hand a warp's sums over as those of warp number `warp` of `parts`, and wait for the other warps.
pub(super) fn hand_over(plan: &CudaMatmul<'_>, warp: &str) -> String {
    let tokens = plan.tokens;
    format!(
        "GM_UNROLL for (u32 t = 0; t < {tokens}; t++)
        GM_UNROLL for (u32 r = 0; r < 4; r++) {{
            i32 dot = {total};
            GM_UNROLL for (u32 mask = 4; mask < 32; mask *= 2) dot += gm_shfl_xor(dot, mask);
            if (gm_lane() < 4) parts[({warp} * {tokens} + t) * {DP4A_ROWS} + gm_lane() * 4 + r] = dot;
        }}
    gm_sync();",
        total = total(plan, "r"),
    )
}

/// Runs of k have scales.
fn by_k_group(plan: &CudaMatmul<'_>, form: Form) -> String {
    let [declare, sum] = sum_of_runs(plan);
    format!(
        "f32 y = 0.0f;
    {declare}{half}
    {wait}{sum}
    const u32 row = panel * {DP4A_ROWS} + within % {DP4A_ROWS};
    if (within < tokens * {DP4A_ROWS} && row < a.n) {store}",
        half = half(plan).declare,
        wait = form.wait(&format!("if (group < a.units)\n        {}\n    ", prefetch_run(plan, "panel"))),
        store = form.storing(&format!("store_output(a, row, first_token + within / {DP4A_ROWS}, y);")),
    )
}

/// A statement that fetches the codes of run `group` of a panel, which lie together: the four lanes that will load them fetch a line each.
pub(super) fn prefetch_run(plan: &CudaMatmul<'_>, panel: &str) -> String {
    let run = plan.format.k_group_tiles(plan.pack.tile.k) * plan.pack.tile.bytes;
    format!(
        "for (u32 line = quad * 128; line < {run}; line += 512) gm_prefetch_early(a.codes + {panel} * a.stride + group * {run} + line);"
    )
}

/// The double buffer of the terms.
pub(super) fn half(plan: &CudaMatmul<'_>) -> DoubleBuffer {
    DoubleBuffer::of(plan, "half")
}

/// Declarations beside `y`, and a loop over the runs of a panel: lanes compute the terms of many runs, a thread for each row and token
/// adds them in the order of k.
pub(super) fn sum_of_runs(plan: &CudaMatmul<'_>) -> [String; 2] {
    let (vector, k) = (vector(plan), plan.pack.tile.k);
    // Whether there is a panel, the number of the thread's four lanes in the CUDA block and what leads to that of the panel's first
    // four, and the bytes of token `t`. Tables take registers, of which two CUDA blocks leave 64.
    let (there, group, first_group, x, unroll) = match &plan.fused {
        None => {
            let x = format!("gm_load((const {vector} *)(xs + tile * {k} + t * a.x_stride))");
            ("", "group", "", x, "GM_UNROLL ")
        }
        Some(room) => {
            let x = format!("gm_shared_get<{vector}>(x_values, t * {} + tile * {k})", room.values);
            let unroll = if plan.pack.table.is_some() { "GM_UNROLL_TWO " } else { "GM_UNROLL " };
            ("there && ", "gm_thread() / 4", "side * groups + ", x, unroll)
        }
    };
    let tokens = plan.tokens;
    let tiles = plan.format.k_group_tiles(plan.pack.tile.k);
    let groups = plan.threads / 4;
    let at = format!("((half * {groups} + {group}) * {tokens} + t) * {DP4A_ROWS} + quad * 4");
    let TermText { load, of_token, store } = TermText::of(plan, &at);
    let width = tokens * DP4A_ROWS;
    let [declare, add] = adding(plan, format!("(half * {groups} + {first_group}i) * {width} + within"));
    let DoubleBuffer { flip, meet, .. } = half(plan);
    let text = format!(
        "for (u32 first = 0; first < a.units; first += groups{flip}) {{
        const u32 unit = first + group;
        if ({there}unit < a.units) {{
            {load}{fields}
            {unroll}for (u32 i = 0; i < {tiles}; i++) {{
            const u32 tile = unit * {tiles} + i;
            const u32x4 w = gm_load_once((const u32x4 *)(codes + (u64)tile * {bytes}));
            {step}
            }}
            {each}
        }}
        gm_sync();
        // A thread for each row and token: terms were computed in any order, they are added in the order of k.
        if ({there}within < tokens * {DP4A_ROWS}) {{
            const u32 count = gm_min(a.units - first, groups);
            for (u32 i = 0; i < count; i++) {{
                {add}
            }}
        }}
        {meet}
    }}",
        unroll = unrolled(tiles, unroll),
        fields = declare_sums(plan),
        bytes = plan.pack.tile.bytes,
        step = step(plan, &x),
        each = each_token(plan, &format!("const u32 token = first_token + t;\n{of_token}{store}")),
    );
    [declare, text]
}

/// How a thread adds the terms of its output, of which that of run `first + i` is at `from`.
fn adding(plan: &CudaMatmul<'_>, from: String) -> [String; 2] {
    let parts = SuperBlockTerms::of(plan);
    let t = format!("within / {DP4A_ROWS}");
    let x_scale = parts.and_then(|parts| parts.x_scale_load(plan, &t, &format!("first_token + {t}")));
    let row = format!("const u32 row = within % {DP4A_ROWS};");
    Adding { of_output: "", count: String::new(), from, row, x_scale }.emit(plan)
}

/// How the terms of runs come about.
struct TermText {
    /// Statements that load what a run's weights have.
    load: String,
    /// Those that load what its activations have.
    of_token: String,
    /// Those that store the terms of a token.
    store: String,
}

impl TermText {
    /// Terms that stand from `at` on.
    fn of(plan: &CudaMatmul<'_>, at: &str) -> TermText {
        match SuperBlockTerms::of(plan) {
            Some(parts) => terms_of_runs(plan, &parts, at),
            None => terms_of_k_groups(plan, at),
        }
    }
}

/// The four rows of a lane in one vector.
fn four(ty: &str, of: &dyn Fn(&str, usize) -> String) -> String {
    let each = joined(WORDS.iter().enumerate().map(|(r, name)| of(name, r)), ", ");
    format!("{ty}{{{}}}", each)
}

/// Each run has an f32.
fn terms_of_k_groups(plan: &CudaMatmul<'_>, at: &str) -> TermText {
    let load = |term: Term| {
        format!(
            "const f32x4 {} = gm_load_once((const f32x4 *)(a.{} + ((u64)panel * a.units + unit) * {DP4A_ROWS} + quad * 4));\n            ",
            term.one(),
            term.array()
        )
    };
    let term = |name: &str, r: usize| {
        let dot = format!("({})", total(plan, &r.to_string()));
        terms(plan, &dot, &format!("scale.{name}"), &format!("min.{name}"))
    };
    let mut store = format!("gm_shared_put(added, {at}, {});\n", four("f32x4", &|name, r| term(name, r).0));
    if plan.format.offset {
        let _ = writeln!(
            store,
            "                gm_shared_put(subtracted, {at}, {});",
            four("f32x4", &|name, r| term(name, r).1.unwrap_or_default())
        );
    }
    TermText { load: plan.format.terms().map(load).collect(), of_token: run_of_token(plan), store }
}

/// Each run has integers, and its super-block an f32.
fn terms_of_runs(plan: &CudaMatmul<'_>, parts: &SuperBlockTerms, at: &str) -> TermText {
    let SuperBlockTerms { runs, .. } = parts;
    let integers = |term: Term| {
        format!("(const u8 *)({} + {DP4A_ROWS})", parts.at(term, "panel", &format!("unit / {runs}")))
    };
    let mut load = format!(
        "const u32 scale = gm_load_once((const u32 *)({} + unit % {runs} * {DP4A_ROWS} + quad * 4));
            ",
        integers(Term::Scale)
    );
    let offset = plan.format.offset;
    if offset {
        let _ = write!(
            load,
            "const u32x2 min = gm_load_once((const u32x2 *)({} + unit % {runs} / 2 * {} + quad * 8));
            ",
            integers(Term::Min),
            2 * DP4A_ROWS,
        );
    }
    let term = |r: usize| {
        let word = if r < 2 { "x" } else { "y" };
        integer_terms(
            plan,
            &total(plan, &r.to_string()),
            &format!("(i32)(i8)(scale >> {})", 8 * r),
            &format!("(i32)(i8)(min.{word} >> ({} + unit % 2 * 8))", r % 2 * 16),
        )
    };
    let mut store =
        format!("gm_shared_put(added, {at}, {});\n", four("u32x4", &|_, r| format!("(u32)({})", term(r).0)));
    if offset {
        let _ = writeln!(
            store,
            "                gm_shared_put(subtracted, {at}, {});",
            four("u32x4", &|_, r| format!("(u32)({})", term(r).1.unwrap_or_default()))
        );
    }
    let of_token = if needs_sums(plan.format) { x_sum_of_run(plan) } else { "(void)token;\n".to_string() };
    TermText { load, of_token, store }
}
