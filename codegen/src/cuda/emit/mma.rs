//! Products of few tokens by `mma.sync`, over panels of 32 rows in fragment order.
//!
//! A warp has 32 rows, whose operands it gets by masks and shifts from sixteen bytes a lane; the tokens are columns,
//! eight to an `mma`. The warps of a CUDA block share the k of one panel, so that a small matrix still occupies the
//! device. Many tokens are `pipelined`'s.

use super::form::{Form, in_each_form};
use super::operands::{fields, load_table};
use super::product::{CudaMatmul, MMA_ROWS};
use super::split::{SHARE, TILE, counted};
use super::terms::{SuperBlockTerms, add_terms, corrected, integer_terms, needs_sums, run_of_token, terms};
use std::fmt::Write;

/// A statement that binds `weights[2][4]`, operands of both halves of 32 rows, from a tile's `w`.
pub(super) fn fragments(plan: &CudaMatmul<'_>, step: u32) -> String {
    let mut out = String::from("        const u32 weights[2][4] = {");
    let words = ["x", "y", "z", "w"];
    for half in 0..2usize {
        out.push_str(if half == 0 { "{" } else { "}, {" });
        let operands: Vec<String> = match plan.pack.bits() {
            2 => {
                let low = fields(plan, &format!("w[0].{}", words[2 * step as usize]));
                let high = fields(plan, &format!("w[0].{}", words[2 * step as usize + 1]));
                vec![
                    low[2 * half].clone(),
                    low[2 * half + 1].clone(),
                    high[2 * half].clone(),
                    high[2 * half + 1].clone(),
                ]
            }
            4 => {
                let low = fields(plan, &format!("w[0].{}", words[2 * half]));
                let high = fields(plan, &format!("w[0].{}", words[2 * half + 1]));
                vec![low[0].clone(), low[1].clone(), high[0].clone(), high[1].clone()]
            }
            _ => [0, 2, 1, 3].map(|word| format!("w[{half}].{}", words[word])).to_vec(),
        };
        out.push_str(&operands.join(", "));
    }
    out.push_str("}};\n");
    out
}

/// Loads of sixteen bytes that a warp starts before it uses the first, where a row is one integer sum.
pub(super) const AHEAD: u32 = 4;

/// The kernel.
pub fn mma(plan: &CudaMatmul<'_>) -> String {
    let share = if plan.format.unit == 0 { SHARE } else { "" };
    format!("{share}{}", in_each_form(plan, |form| kernel(plan, form)))
}

fn kernel(plan: &CudaMatmul<'_>, form: Form) -> String {
    let (threads, tokens, name) = (plan.threads, plan.tokens, form.name(plan));
    let (warps, columns) = (threads / 32, tokens / 8);
    let shared = if plan.format.unit == 0 {
        format!("GM_SHARED(i32, parts, {warps} * {});", MMA_ROWS * tokens)
    } else {
        let kept = plan.rounds;
        // Terms of super-blocks are integers until they are added up.
        let ty = if plan.format.superblock.is_some() { "i32" } else { "f32" };
        let array =
            |name: &str| format!("GM_SHARED({ty}, {name}, {kept} * {warps} * {});", MMA_ROWS * tokens);
        let subtracted =
            if plan.format.offset { format!("\n    {}", array("subtracted")) } else { String::new() };
        array("added") + &subtracted
    };
    let one = plan.format.unit == 0;
    format!(
        "{declared}({threads}) {name}({parameters}) {{
    {shared}
    {expert}const u32 g = gm_lane() / 4, t = gm_lane() % 4, first_token = {tile} * {tokens};
    const u32 panel = gm_block();
    const u8 *codes = a.codes + panel * a.stride + gm_lane() * 16;
    // Columns beyond the last token are computed from it and not stored.
    const i8 *xs[{columns}];
    GM_UNROLL for (u32 c = 0; c < {columns}; c++) xs[c] = a.x + gm_min(first_token + c * 8 + g, a.m - 1) * a.x_stride + t * 8;
    {begin}{table}{wait}{body}
}}
GM_EXPORT({name})
",
        declared = form.kernel(plan),
        parameters = form.parameters(),
        expert = form.begin(),
        tile = form.tile(),
        begin = if one {
            format!(
                "const u32 all_tiles = (u32)(a.stride / {}), begin = share(all_tiles, gm_block_z());
    const u32 tiles = share(all_tiles, gm_block_z() + 1);
    ",
                plan.pack.tile.bytes
            )
        } else {
            String::new()
        },
        table = load_table(plan),
        wait = form.wait(&early(plan)),
        body = if plan.format.unit == 0 { one_sum(plan, form) } else { by_unit(plan, form) },
    )
}

/// Statements that fetch what a warp loads first to the L2 cache: its first tiles, or its first run.
fn early(plan: &CudaMatmul<'_>) -> String {
    let bytes = plan.pack.tile.bytes;
    let (begin, end, first, apart, count) = match plan.format.unit {
        0 => ("begin + ", format!("tiles * {bytes}"), 1, plan.threads / 32, AHEAD),
        unit => {
            let tiles = unit.div_ceil(plan.pack.tile.k);
            ("", "a.stride".to_string(), tiles, 1, tiles)
        }
    };
    format!(
        "for (u32 line = gm_lane(); line < {lines}; line += 32) {{
        const u64 at = (u64)({begin}gm_warp() * {first} + line / {each} * {apart}) * {bytes} + line % {each} * 128;
        if (at < {end}) gm_prefetch_early(a.codes + panel * a.stride + at);
    }}
    ",
        lines = count * bytes / 128,
        each = bytes / 128,
    )
}

/// Loads of sixteen bytes a lane that a tile takes.
fn loads(plan: &CudaMatmul<'_>) -> u32 {
    plan.pack.tile.bytes / 512
}

/// An expression of load `part` of tile `tile`.
fn weights(plan: &CudaMatmul<'_>, tile: &str, part: u32) -> String {
    format!(
        "gm_load_once((const u32x4 *)(codes + (u64)({tile}) * {} + {}))",
        plan.pack.tile.bytes,
        part * 512
    )
}

/// Statements that multiply a tile's weights `w[0]` (and `w[1]`) with the tokens of tile `tile` into `sums`.
fn products(plan: &CudaMatmul<'_>) -> String {
    let mut out = String::new();
    for step in 0..plan.pack.tile.k / 32 {
        let _ = write!(
            out,
            "        {{
{weights}        GM_UNROLL for (u32 c = 0; c < {columns}; c++) {{
            const u32x2 x = gm_load((const u32x2 *)(xs[c] + tile * {k} + {offset}));
            const u32 b[2] = {{x.x, x.y}};
            gm_mma_16832_us(sums[0][c], weights[0], b);
            gm_mma_16832_us(sums[1][c], weights[1], b);
        }}
        }}
",
            weights = fragments(plan, step),
            columns = plan.tokens / 8,
            k = plan.pack.tile.k,
            offset = 32 * step,
        );
    }
    out
}

/// Statements for each sum of a lane: `half`, `c` and `i` name it, `row` and `token` are its output's.
fn each(plan: &CudaMatmul<'_>, body: &str) -> String {
    format!(
        "GM_UNROLL for (u32 half = 0; half < 2; half++)
        GM_UNROLL for (u32 c = 0; c < {columns}; c++)
            GM_UNROLL for (u32 i = 0; i < 4; i++) {{
                const u32 row = panel * {MMA_ROWS} + half * 16 + i / 2 * 8 + g, token = first_token + c * 8 + t * 2 + i % 2;
                {body}
            }}",
        columns = plan.tokens / 8,
    )
}

/// The same for sums over a run, with the terms that they give: `(what is added, what is subtracted)`, of tokens that
/// are there.
fn each_term(plan: &CudaMatmul<'_>, body: impl Fn(&str, Option<&str>) -> String) -> String {
    if let Some(parts) = SuperBlockTerms::of(plan, MMA_ROWS) {
        return each_integer_term(plan, &parts, body);
    }
    let at = format!("((u64)panel * a.units + unit) * {MMA_ROWS} + half * 16 + i / 2 * 8 + g");
    let (added, subtracted) = terms(
        plan,
        "sums[half][c][i]",
        &format!("gm_load(a.scales + {at})"),
        &format!("gm_load(a.mins + {at})"),
    );
    let text = format!(
        "(void)row;
                const u32 nearest = gm_min(token, a.m - 1);
                {{
                const u32 token = nearest;
                {run}                {body}
                }}",
        run = run_of_token(plan),
        body = body(&added, subtracted.as_deref()),
    );
    each(plan, &text)
}

/// As [`each_term`], where runs have integers: what they and the sums give before a super-block's scale.
fn each_integer_term(
    plan: &CudaMatmul<'_>,
    parts: &SuperBlockTerms,
    body: impl Fn(&str, Option<&str>) -> String,
) -> String {
    let runs = parts.runs;
    let integers = |array: &str| {
        format!("(const i8 *)({} + {MMA_ROWS})", parts.at(array, "panel", &format!("unit / {runs}")))
    };
    let mut declare = format!(
        "const i8 *scale_integers = {} + unit % {runs} * {MMA_ROWS} + g;\n            ",
        integers("scales")
    );
    if plan.format.offset {
        let _ = write!(
            declare,
            "const i8 *min_integers = {} + unit % {runs} / 2 * {} + g * 2 + unit % 2;\n            ",
            integers("mins"),
            2 * MMA_ROWS,
        );
    }
    let (added, subtracted) = integer_terms(
        plan,
        "sums[half][c][i]",
        "(i32)gm_load(scale_integers + half * 16 + i / 2 * 8)",
        "(i32)gm_load(min_integers + (half * 16 + i / 2 * 8) * 2)",
    );
    let x_sum = if needs_sums(plan.format) {
        "const i32 x_sum = gm_load(a.x_sums + (u64)gm_min(token, a.m - 1) * a.units + unit);"
    } else {
        "(void)token;"
    };
    let text = format!(
        "(void)row;
                {x_sum}
                {}",
        body(&added, subtracted.as_deref())
    );
    declare + &each(plan, &text)
}

/// What the threads of outputs declare to add up the terms of runs in the order of k, and the statements that add those
/// of run `first + i` to output `j`; `place` is an expression of the place of its terms without the output's.
fn adding(plan: &CudaMatmul<'_>, own: u32, place: &str) -> (String, String) {
    let Some(parts) = SuperBlockTerms::of(plan, MMA_ROWS) else {
        let subtract = if plan.format.offset {
            format!(" y[j] = y[j] - subtracted[{place} + at];")
        } else {
            String::new()
        };
        return (String::new(), format!("y[j] = y[j] + added[{place} + at];{subtract}"));
    };
    let (runs, columns) = (parts.runs, plan.tokens / 8);
    let mut declare = format!("i32 total[{own}] = {{}};\n    ");
    let mut add = format!("total[j] += added[{place} + at];");
    let mut loads = format!("const f32 scale = gm_load({} + row);", parts.at("scales", "panel", "block"));
    let mut zero = String::from("total[j] = 0;");
    if plan.format.offset {
        let _ = write!(declare, "i32 low[{own}] = {{}};\n    ");
        let _ = write!(add, " low[j] += subtracted[{place} + at];");
        let _ = write!(
            loads,
            "\n                    const f32 min = gm_load({} + row);",
            parts.at("mins", "panel", "block")
        );
        zero.push_str(" low[j] = 0;");
    }
    if let Some(place) = parts.x_scale(plan, "gm_min(token, a.m - 1)", "block") {
        let _ = write!(loads, "\n                    const f32 x_scale = gm_load({place});");
    }
    let _ = write!(
        add,
        "
                if ((first + i) % {runs} == {last}) {{
                    const u32 block = (first + i) / {runs}, lane = at % 32;
                    const u32 row = at / {half} * 16 + at / 64 % 2 * 8 + lane / 4;
                    const u32 token = first_token + at / 128 % {columns} * 8 + lane % 4 * 2 + at / 32 % 2;
                    (void)token;
                    {loads}
                    {terms}
                    {zero}
                }}",
        last = runs - 1,
        half = 128 * columns,
        terms = add_terms(plan, ["y[j]", "total[j]", "low[j]", "scale", "min"]),
    );
    (declare, add)
}

/// A row is one integer sum: the warps have every so many tiles of the same rows, the first one adds them up.
fn one_sum(plan: &CudaMatmul<'_>, form: Form) -> String {
    let (warps, columns, outputs) = (plan.threads / 32, plan.tokens / 8, MMA_ROWS * plan.tokens);
    let parts = loads(plan);
    let each_part: Vec<String> = (0..parts).map(|part| weights(plan, "tile", part)).collect();
    let x_sum =
        if plan.format.min() == 0 { "" } else { "const i32 x_sum = gm_load(a.x_sums + token);\n        " };
    let epilogue = each_output(
        plan,
        &form.storing(&format!(
            "{x_sum}store_output(a, row, token, {});",
            corrected(plan, "dots[j]", "x_sum")
        )),
    );
    format!(
        "i32 sums[2][{columns}][4] = {{}};
    for (u32 first = begin + gm_warp(); first < tiles; first += {stride}) {{
        u32x4 ahead[{AHEAD}][{parts}] = {{}};
        GM_UNROLL for (u32 i = 0; i < {AHEAD}; i++) {{
            const u32 tile = first + i * {warps};
            if (tile >= tiles) continue;
            const u32x4 w[{parts}] = {{{each_part}}};
            GM_UNROLL for (u32 part = 0; part < {parts}; part++) ahead[i][part] = w[part];
        }}
        GM_UNROLL for (u32 i = 0; i < {AHEAD}; i++) {{
            const u32 tile = first + i * {warps};
            if (tile >= tiles) continue;
            const u32x4 (&w)[{parts}] = ahead[i];
{products}        }}
    }}
    GM_UNROLL for (u32 half = 0; half < 2; half++)
        GM_UNROLL for (u32 c = 0; c < {columns}; c++)
            GM_UNROLL for (u32 i = 0; i < 4; i++)
                parts[gm_warp() * {outputs} + {place}] = sums[half][c][i];
    gm_sync();
    i32 dots[{own}] = {{}};
    {each_own} {{
        {guard}GM_UNROLL for (u32 warp = 0; warp < {warps}; warp++) dots[j] += parts[warp * {outputs} + {at}];
    }}
    if (gm_blocks_z() > 1) {{
        {TILE}
        i32 *const layers = a.parts + (u64)tile * gm_blocks_z() * {outputs};
        {each_own} {{
            {guard}gm_store(layers + gm_block_z() * {outputs} + {at}, dots[j]);
        }}
        {counted}
        for (u32 z = 0; z < gm_blocks_z(); z++) {{
            if (z == gm_block_z()) continue;
            {each_own} {{
                {guard}dots[j] += gm_load(layers + z * {outputs} + {at});
            }}
        }}
    }}
    {epilogue}",
        own = outputs.div_ceil(plan.threads),
        each_own = format!("GM_UNROLL for (u32 j = 0; j < {}; j++)", outputs.div_ceil(plan.threads)),
        at = format!("j * {} + gm_thread()", plan.threads),
        guard = if beyond(plan).is_empty() {
            String::new()
        } else {
            format!("if (j * {} + gm_thread() >= {outputs}) continue;\n            ", plan.threads)
        },
        counted = counted(plan),
        stride = AHEAD * warps,
        each_part = each_part.join(", "),
        products = products(plan),
        place = place(plan),
    )
}

/// Where the terms or sums of a CUDA block's outputs stand in shared memory: sum `i` of column `c` of a half, lane by lane.
fn place(plan: &CudaMatmul<'_>) -> String {
    format!("((half * {} + c) * 4 + i) * 32 + gm_lane()", plan.tokens / 8)
}

/// Statements for each output that a thread has to itself when all threads divide them, in the order of [`place`]:
/// `at` is its place, `j` its number among the thread's, `row` and `token` say which it is.
fn each_output(plan: &CudaMatmul<'_>, body: &str) -> String {
    let (threads, columns, outputs) = (plan.threads, plan.tokens / 8, MMA_ROWS * plan.tokens);
    format!(
        "GM_UNROLL for (u32 j = 0; j < {own}; j++) {{
        const u32 at = j * {threads} + gm_thread(), lane = at % 32;
        const u32 row = panel * {MMA_ROWS} + at / {half} * 16 + at / 64 % 2 * 8 + lane / 4;
        const u32 token = first_token + at / 128 % {columns} * 8 + lane % 4 * 2 + at / 32 % 2;
        if ({guard}row >= a.n || token >= a.m) continue;
        {body}
    }}",
        own = outputs.div_ceil(threads),
        half = 128 * columns,
        guard = beyond(plan),
    )
}

/// A condition that ends with `||`, where the last outputs of some threads are beyond the last.
fn beyond(plan: &CudaMatmul<'_>) -> String {
    let outputs = MMA_ROWS * plan.tokens;
    if outputs.is_multiple_of(plan.threads) { String::new() } else { format!("at >= {outputs} || ") }
}

/// Runs of k have scales and tokens are few: warps compute terms of many runs, each thread adds those of some outputs in
/// the order of k.
fn by_unit(plan: &CudaMatmul<'_>, form: Form) -> String {
    let (threads, columns) = (plan.threads, plan.tokens / 8);
    let warps = threads / 32;
    let outputs = MMA_ROWS * plan.tokens;
    let tiles = plan.format.unit.div_ceil(plan.pack.tile.k);
    let parts = loads(plan);
    // The next run's weights are on their way while this one's are used, as far as registers allow.
    let ahead = tiles * parts <= 4;
    let all: Vec<String> = (0..tiles)
        .flat_map(|tile| (0..parts).map(move |part| (tile, part)))
        .map(|(tile, part)| weights(plan, &format!("next * {tiles} + {tile}"), part))
        .collect();
    let (declare, take) = if ahead {
        let fetch = |unit: &str| {
            format!(
                "const u32 next = gm_min({unit}, a.units - 1);
            const u32x4 fetched[{0}] = {{{1}}};
            GM_UNROLL for (u32 i = 0; i < {0}; i++) ahead[i] = fetched[i];",
                tiles * parts,
                all.join(", ")
            )
        };
        (
            format!(
                "u32x4 ahead[{}];\n    {{\n            {}\n    }}\n    ",
                tiles * parts,
                fetch("gm_warp()")
            ),
            format!(
                "u32x4 now[{0}];
            GM_UNROLL for (u32 i = 0; i < {0}; i++) now[i] = ahead[i];
            {1}
            ",
                tiles * parts,
                fetch(&format!("unit + {warps}"))
            ),
        )
    } else {
        (String::new(), String::new())
    };
    let each_part: Vec<String> = (0..parts)
        .map(|part| if ahead { format!("now[i * {parts} + {part}]") } else { weights(plan, "tile", part) })
        .collect();
    let kept = plan.rounds;
    let slot = |warp: &str| format!("(half_of_terms * {warps} + {warp}) * {outputs}");
    let (half, flip) = if kept == 2 {
        ("u32 half_of_terms = 0;\n    ", ", half_of_terms ^= 1")
    } else {
        ("const u32 half_of_terms = 0;\n    ", "")
    };
    let terms = each_term(plan, |added, subtracted| {
        let at = format!("{} + {}", slot("gm_warp()"), place(plan));
        let subtract =
            subtracted.map_or(String::new(), |text| format!("\n                subtracted[{at}] = {text};"));
        format!("added[{at}] = {added};{subtract}")
    });
    let own = outputs.div_ceil(threads);
    let guard = if beyond(plan).is_empty() {
        String::new()
    } else {
        format!("if (at >= {outputs}) continue;\n            ")
    };
    let (totals, add) = adding(plan, own, &slot("i"));
    format!(
        "{declare}{half}{totals}f32 y[{own}] = {{}};
    for (u32 first = 0; first < a.units; first += {warps}{flip}) {{
        const u32 unit = first + gm_warp();
        if (unit < a.units) {{
            {take}i32 sums[2][{columns}][4] = {{}};
            {unroll}for (u32 i = 0; i < {tiles}; i++) {{
        const u32 tile = unit * {tiles} + i;
        const u32x4 w[{parts}] = {{{each_part}}};
{products}            }}
            {terms}
        }}
        gm_sync();
        // Terms were computed in any order; they are added in the order of k.
        GM_UNROLL for (u32 j = 0; j < {own}; j++) {{
            const u32 at = j * {threads} + gm_thread();
            {guard}const u32 count = gm_min(a.units - first, {warps}u);
            for (u32 i = 0; i < count; i++) {{
                {add}
            }}
        }}
        {last}
    }}
    {epilogue}",
        epilogue = each_output(plan, &form.storing("store_output(a, row, token, y[j]);")),
        unroll = if tiles <= 4 { "GM_UNROLL " } else { "" },
        each_part = each_part.join(", "),
        products = products(plan),
        last = if kept == 2 { "" } else { "gm_sync();" },
    )
}
