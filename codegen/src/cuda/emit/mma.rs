//! Products of few tokens by `mma.sync`, over panels of 32 rows in fragment order.
//!
//! A warp has 32 rows, whose operands it gets by masks and shifts from sixteen bytes a lane; the tokens are columns,
//! eight to an `mma`. The warps of a CUDA block share the k of one panel, so that a small matrix still occupies the
//! device. Many tokens are `pipelined`'s.

use super::adding::Adding;
use super::ends::{Ends, OfRows, indented};
use super::form::{Form, in_each_form};
use super::fragments::{loads, products};
use super::operands::load_table;
use super::product::{CudaMatmul, DoubleBuffer, MMA_ROWS, handed_over};
use super::split::{SHARE, TILE, counted};
use super::terms::{SuperBlockTerms, corrected, of_run_and_row, place_of_x_scale};
use super::tiles::unrolled;
use crate::text::{joined, when};
use std::fmt::Write;

/// Loads of sixteen bytes that a warp starts before it uses the first, where a row is one integer sum.
pub(super) const AHEAD: u32 = 4;

/// The kernel.
pub fn mma(plan: &CudaMatmul<'_>) -> String {
    let share = if plan.format.k_group == 0 { SHARE } else { "" };
    format!("{share}{}", in_each_form(plan, |form| kernel(plan, form)))
}

fn kernel(plan: &CudaMatmul<'_>, form: Form) -> String {
    let columns = plan.tokens / 8;
    let body = format!(
        "const u32 g = gm_lane() / 4, t = gm_lane() % 4, first_token = {first_token};
    const u32 panel = gm_block();
    const u8 *codes = a.codes + panel * a.stride + gm_lane() * 16;
    // Columns beyond the last token are computed from it and not stored.
    const i8 *xs[{columns}];
    GM_UNROLL for (u32 c = 0; c < {columns}; c++) xs[c] = a.x + gm_min(first_token + c * 8 + g, a.m - 1) * a.x_stride + t * 8;
    {begin}{table}{wait}{body}",
        first_token = form.first_token(plan),
        begin = when(plan.format.k_group == 0, || {
            format!(
                "const u32 all_tiles = (u32)(a.stride / {}), begin = share(all_tiles, gm_block_z());
    const u32 tiles = share(all_tiles, gm_block_z() + 1);
    ",
                plan.pack.tile.bytes
            )
        }),
        table = load_table(plan),
        wait = form.wait(&early(plan)),
        body = if plan.format.k_group == 0 { one_sum(plan, form) } else { by_k_group(plan, form) },
    );
    form.kernel(plan, &handed_over(plan), &body)
}

/// Statements that fetch what a warp loads first to the L2 cache: its first tiles, or its first run.
fn early(plan: &CudaMatmul<'_>) -> String {
    let bytes = plan.pack.tile.bytes;
    let (begin, end, first, apart, count) = match plan.format.k_group {
        0 => ("begin + ", format!("tiles * {bytes}"), 1, plan.threads / 32, AHEAD),
        _ => {
            let tiles = plan.format.k_group_tiles(plan.pack.tile.k);
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

/// An expression of load `part` of tile `tile`.
fn weights(plan: &CudaMatmul<'_>, tile: &str, part: u32) -> String {
    format!(
        "gm_load_once((const u32x4 *)(codes + (u64)({tile}) * {} + {}))",
        plan.pack.tile.bytes,
        part * 512
    )
}

/// Statements that multiply a tile's weights `w` with the tokens of tile `tile` into `sums`.
fn multiply(plan: &CudaMatmul<'_>) -> String {
    let k = plan.pack.tile.k;
    products(plan, plan.tokens / 8, |step| {
        format!("gm_load((const u32x2 *)(xs[c] + tile * {k} + {}))", 32 * step)
    })
}

/// How what a lane's rows have of a run comes: with its codes, so a run ahead.
struct RowTerms {
    /// Declarations in front of the loop over runs, with the loads for the first.
    declare: String,
    /// Statements that bind them for a run, and load those of the warp's next.
    take: String,
}

impl RowTerms {
    fn new(plan: &CudaMatmul<'_>) -> RowTerms {
        let mut terms = RowTerms { declare: String::new(), take: String::new() };
        let mut loads = String::new();
        let ty = if plan.format.superblock.is_some() { "i32" } else { "f32" };
        for term in plan.format.terms() {
            let name = OfRows::of_run(plan, term).name();
            let from = of_run_and_row(plan, term, ["panel", "next"], "g + r * 8");
            let _ = write!(terms.declare, "{ty} {name}_ahead[4];\n    ");
            let _ = write!(
                terms.take,
                "{ty} {name}[4];
            GM_UNROLL for (u32 r = 0; r < 4; r++) {name}[r] = {name}_ahead[r];
            "
            );
            let _ = write!(
                loads,
                "\n            GM_UNROLL for (u32 r = 0; r < 4; r++) {name}_ahead[r] = {from};"
            );
        }
        let fetch = |run: &str| {
            format!(
                "{{\n            const u32 next = gm_min({run}, a.units - 1);{loads}\n            }}\n    "
            )
        };
        terms.declare += &fetch("gm_warp()");
        terms.take += &fetch(&format!("unit + {}", plan.threads / 32));
        terms
    }
}

/// Statements for each of a lane's sums over a run, with the terms that it gives: what is added, and what is subtracted. What rows have
/// is bound, as [`RowTerms`] says.
fn each_term(plan: &CudaMatmul<'_>, body: impl Fn(&str, Option<&str>) -> String) -> String {
    // Tokens beyond the last are computed from it and not stored.
    let of_tokens = |name: &str| {
        let token = |n: u32| format!("(u64)gm_min(first_token + c * 8 + t * 2 + {n}, a.m - 1)");
        let [first, second] = [0, 1].map(|n| match (name, place_of_x_scale(plan, &token(n), "unit")) {
            ("x_scale", Some(place)) => format!("gm_load(a.x_scales + {place})"),
            _ => format!("(u32)gm_load(a.x_sums + {} * a.units + unit)", token(n)),
        });
        format!("{}{{{first}, {second}}}", if name == "x_scale" { "f32x2" } else { "u32x2" })
    };
    let columns = plan.tokens / 8;
    let ends = Ends { columns, all_rows: true, of_rows: &|_| String::new(), of_tokens: &of_tokens };
    indented("            ", &ends.terms(plan, body))
}

/// What the threads of outputs declare to add up the terms of runs, and the statements that add those of run `first + i` to output `j`;
/// `place` is an expression of the place of its terms without the output's.
fn adding(plan: &CudaMatmul<'_>, own: u32, place: &str) -> [String; 2] {
    let x_scale = SuperBlockTerms::of(plan)
        .and_then(|parts| parts.x_scale(plan, "gm_min(token, a.m - 1)", "block"))
        .map(|place| format!("gm_load({place})"));
    let adding = Adding {
        of_output: "[j]",
        count: format!("[{own}]"),
        from: format!("{place} + at"),
        row: format!("const u32 lane = at % 32;\n{}                    (void)token;", output(plan, "")),
        x_scale,
    };
    adding.emit(plan)
}

/// Statements that bind `row`, which counts from `first` on, and `token` of the output whose place is `at`.
fn output(plan: &CudaMatmul<'_>, first: &str) -> String {
    let columns = plan.tokens / 8;
    let row = format!("{first}at / {} * 16 + at / 64 % 2 * 8 + lane / 4", 128 * columns);
    let token = format!("first_token + at / 128 % {columns} * 8 + lane % 4 * 2 + at / 32 % 2");
    indented("        ", &format!("const u32 row = {row};\nconst u32 token = {token};"))
}

/// A row is one integer sum: the warps have every so many tiles of the same rows, the first one adds them up.
fn one_sum(plan: &CudaMatmul<'_>, form: Form) -> String {
    let (warps, columns, outputs) = (plan.threads / 32, plan.tokens / 8, MMA_ROWS * plan.tokens);
    let parts = loads(plan);
    let each_part = joined((0..parts).map(|part| weights(plan, "tile", part)), ", ");
    let x_sum = when(plan.format.min() != 0, || "const i32 x_sum = gm_load(a.x_sums + token);\n        ");
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
            GM_UNROLL for (u32 j = 0; j < 4; j++)
                parts[gm_warp() * {outputs} + {place}] = sums[half][c][j];
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
        guard = when(some_are_beyond(plan), || {
            format!("if (j * {} + gm_thread() >= {outputs}) continue;\n            ", plan.threads)
        }),
        counted = counted(plan),
        stride = AHEAD * warps,
        products = multiply(plan),
        place = place(plan),
    )
}

/// Where the terms or sums of a CUDA block's outputs stand in shared memory: sum `j` of column `c` of a half, lane by lane.
fn place(plan: &CudaMatmul<'_>) -> String {
    format!("((half * {} + c) * 4 + j) * 32 + gm_lane()", plan.tokens / 8)
}

/// Statements for each output that a thread has to itself when all threads divide them, in the order of [`place`]:
/// `at` is its place, `j` its number among the thread's, `row` and `token` say which it is.
fn each_output(plan: &CudaMatmul<'_>, body: &str) -> String {
    let (threads, outputs) = (plan.threads, MMA_ROWS * plan.tokens);
    format!(
        "GM_UNROLL for (u32 j = 0; j < {own}; j++) {{
        const u32 at = j * {threads} + gm_thread(), lane = at % 32;
{output}        if ({guard}row >= a.n || token >= a.m) continue;
        {body}
    }}",
        own = outputs.div_ceil(threads),
        output = output(plan, &format!("panel * {MMA_ROWS} + ")),
        guard = when(some_are_beyond(plan), || format!("at >= {outputs} || ")),
    )
}

/// Whether the last outputs of some threads are beyond the last.
fn some_are_beyond(plan: &CudaMatmul<'_>) -> bool {
    !(MMA_ROWS * plan.tokens).is_multiple_of(plan.threads)
}

/// How a warp loads the weights of its runs.
struct RunLoads {
    /// Declarations in front of the loop over runs.
    declare: String,
    /// Statements at the begin of run `unit`.
    take: String,
    /// The loads of tile `i` of the run, as expressions.
    tile: String,
}

impl RunLoads {
    /// The next run's weights are on their way while this one's are used, as far as registers allow.
    fn new(plan: &CudaMatmul<'_>) -> RunLoads {
        let (warps, parts) = (plan.threads / 32, loads(plan));
        let tiles = plan.format.k_group_tiles(plan.pack.tile.k);
        let count = tiles * parts;
        if count > 4 {
            let tile = joined((0..parts).map(|part| weights(plan, "tile", part)), ", ");
            return RunLoads { declare: String::new(), take: String::new(), tile };
        }
        let all =
            (0..count).map(|load| weights(plan, &format!("next * {tiles} + {}", load / parts), load % parts));
        let all = joined(all, ", ");
        let fetch = |unit: &str| {
            format!(
                "const u32 next = gm_min({unit}, a.units - 1);
            const u32x4 fetched[{count}] = {{{all}}};
            GM_UNROLL for (u32 i = 0; i < {count}; i++) ahead[i] = fetched[i];"
            )
        };
        RunLoads {
            declare: format!(
                "u32x4 ahead[{count}];\n    {{\n            {}\n    }}\n    ",
                fetch("gm_warp()")
            ),
            take: format!(
                "u32x4 now[{count}];
            GM_UNROLL for (u32 i = 0; i < {count}; i++) now[i] = ahead[i];
            {}
            ",
                fetch(&format!("unit + {warps}"))
            ),
            tile: joined((0..parts).map(|part| format!("now[i * {parts} + {part}]")), ", "),
        }
    }
}

/// Runs of k have scales and tokens are few: warps compute terms of many runs, each thread adds those of some outputs in
/// the order of k.
fn by_k_group(plan: &CudaMatmul<'_>, form: Form) -> String {
    let (threads, columns) = (plan.threads, plan.tokens / 8);
    let warps = threads / 32;
    let outputs = MMA_ROWS * plan.tokens;
    let tiles = plan.format.k_group_tiles(plan.pack.tile.k);
    let RunLoads { declare, take, tile } = RunLoads::new(plan);
    let of_rows = RowTerms::new(plan);
    let slot = |warp: &str| format!("(half_of_terms * {warps} + {warp}) * {outputs}");
    let DoubleBuffer { declare: half, flip, meet } = DoubleBuffer::of(plan, "half_of_terms");
    let terms = each_term(plan, |added, subtracted| {
        let at = format!("{} + {}", slot("gm_warp()"), place(plan));
        let subtract =
            subtracted.map_or(String::new(), |text| format!("\n        subtracted[{at}] = {text};"));
        format!("added[{at}] = {added};{subtract}")
    });
    let own = outputs.div_ceil(threads);
    let guard = when(some_are_beyond(plan), || format!("if (at >= {outputs}) continue;\n            "));
    let [totals, add] = adding(plan, own, &slot("i"));
    format!(
        "{declare}{declare_rows}{half}
    {totals}f32 y[{own}] = {{}};
    for (u32 first = 0; first < a.units; first += {warps}{flip}) {{
        const u32 unit = first + gm_warp();
        if (unit < a.units) {{
            {take}{take_rows}i32 sums[2][{columns}][4] = {{}};
            {unroll}for (u32 i = 0; i < {tiles}; i++) {{
        const u32 tile = unit * {tiles} + i;
        const u32x4 w[{parts}] = {{{tile}}};
{products}            }}
{terms}        }}
        gm_sync();
        // Terms were computed in any order; they are added in the order of k.
        GM_UNROLL for (u32 j = 0; j < {own}; j++) {{
            const u32 at = j * {threads} + gm_thread();
            {guard}const u32 count = gm_min(a.units - first, {warps}u);
            for (u32 i = 0; i < count; i++) {{
                {add}
            }}
        }}
        {meet}
    }}
    {epilogue}",
        epilogue = each_output(plan, &form.storing("store_output(a, row, token, y[j]);")),
        unroll = unrolled(tiles, "GM_UNROLL "),
        declare_rows = of_rows.declare,
        take_rows = of_rows.take,
        parts = loads(plan),
        products = multiply(plan),
    )
}
