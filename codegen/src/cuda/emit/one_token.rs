//! One token by `mma.sync`, over panels of 32 rows in fragment order: so that a device which holds weights in that order only decodes as fast as
//! one that holds another copy for it.
//!
//! All eight columns of a product are the token, so that each lane gets every sum of its rows, of which it finishes one: lane
//! `g * 4 + quarter` that of row `quarter * 8 + g`. Loads are a round ahead: the codes of a warp, and the terms of its runs. Where the
//! activations are quantized by each CUDA block, a block has several panels one after the other, as in [`fused`](super::fused).

use super::adding::Adding;
use super::form::{Form, in_each_form};
use super::fragments::{loads, products};
use super::fused;
use super::operands::load_table;
use super::overlap::wait;
use super::product::{CudaMatmul, DoubleBuffer, MMA_ROWS, handed_over, runs_of_warp};
use super::terms::{
    SuperBlockTerms, add_terms, corrected, integer_terms, of_run, of_run_and_row, run_of_token, terms,
    x_sum_of_run,
};
use super::tiles::{Fused, unrolled};
use crate::plan::Term;
use crate::text::{joined, when};
use std::fmt::Write;

/// Registers of sixteen bytes for the codes of a round; of more codes each run's are loaded when it begins.
const MOST_AHEAD: u32 = 4;

/// The sum of the row that a lane finishes.
const OWN_SUM: &str = "quarter < 2 ? (quarter == 0 ? sums[0][0][0] : sums[0][0][2]) : (quarter == 2 ? sums[1][0][0] : sums[1][0][2])";
/// The next warp finishes the outputs of the next panel, so that none is behind.
const NEXT_ADDER: &str = "adder = adder + 1 == WARPS ? 0 : adder + 1;";

/// The kernel.
pub fn one_token(plan: &CudaMatmul<'_>) -> String {
    match &plan.fused {
        Some(room) => quantizing(plan, room),
        None => in_each_form(plan, |form| quantized(plan, form)),
    }
}

/// What both have in front of their activations.
fn begin(plan: &CudaMatmul<'_>) -> String {
    format!(
        "enum : u32 {{ WARPS = {warps} }};
    const u32 g = gm_lane() / 4, quarter = gm_lane() % 4, own_row = quarter * 8 + g;
    const u32 panels = (a.n + {last_row}) / {MMA_ROWS}, own = gm_block();
    {table}",
        warps = plan.threads / 32,
        last_row = MMA_ROWS - 1,
        table = load_table(plan),
    )
}

/// From activations that another kernel quantized.
fn quantized(plan: &CudaMatmul<'_>, form: Form) -> String {
    let Product { early, behind, product } = Product::new(plan, form);
    let body = format!(
        "{begin}const u32 t = 0, first_token = {first_token}, token = first_token;
    const i8 *const xs = a.x + (u64)first_token * a.x_stride + quarter * 8;
    (void)t;
    (void)token;
    {wait}{behind}{product}",
        begin = begin(plan),
        first_token = form.first_token(plan),
        wait = form.wait(&early),
    );
    form.kernel(plan, &handed_over(plan), &body)
}

/// From floats.
fn quantizing(plan: &CudaMatmul<'_>, room: &Fused) -> String {
    let Product { early, behind, product } = Product::new(plan, Form::One);
    let fused::Quantizing { declare, statements } = fused::quantizing(plan, room);
    let body = format!(
        "    {declare}{begin}const u32 first_token = gm_block_y();
    {wait}{behind}{statements}
    const u32 t = 0, token = first_token;
    (void)token;
    {product}
",
        begin = begin(plan),
        wait = wait(&early),
    );
    fused::kernel(plan, room, &body)
}

/// The parts of a kernel's text.
struct Product {
    /// In front of what other kernels write.
    early: String,
    /// Loads that begin right behind the wait.
    behind: String,
    /// Behind the activations.
    product: String,
}

impl Product {
    fn new(plan: &CudaMatmul<'_>, form: Form) -> Product {
        if plan.format.k_group == 0 { one_sum(plan, form) } else { by_k_group(plan, form) }
    }
}

/// An expression of the eight bytes that a lane multiplies of 32 k, by their number in tile `tile`.
fn x(plan: &CudaMatmul<'_>, step: u32) -> String {
    let k = plan.pack.tile.k;
    match plan.fused {
        Some(_) => format!("gm_shared_get<u32x2>(x_values, tile * {k} + {} + quarter * 8)", 32 * step),
        None => format!("gm_load((const u32x2 *)(xs + tile * {k} + {}))", 32 * step),
    }
}

/// A statement that writes the output of row `row`, whose sum is `y`.
fn store(plan: &CudaMatmul<'_>, form: Form, y: &str) -> String {
    match &plan.fused {
        Some(room) => fused::epilogue(plan, room, y),
        None => form.storing(&format!("store_output(a, row, token, {y});")),
    }
}

/// Statements that load codes to `ahead`: `count` times sixteen bytes of each of `each` pieces of a panel, `bytes` each, of which the first
/// is `first` and there are `all`.
fn fetch(load: &str, [panel, first, all]: [&str; 3], [each, count, bytes]: [u32; 3]) -> String {
    format!(
        "GM_UNROLL for (u32 e = 0; e < {each}; e++) {{
            const u32 piece = {first} + e * WARPS + gm_warp();
            const u8 *const from = a.codes + (u64)({panel}) * a.stride + (u64)piece * {bytes} + gm_lane() * 16;
            if (piece < {all})
                GM_UNROLL for (u32 i = 0; i < {count}; i++) ahead[e * {count} + i] = {load}((const u32x4 *)(from + i * 512));
        }}
        "
    )
}

/// A row is one integer sum: the warps have every so many tiles of a panel, one of them adds them up.
fn one_sum(plan: &CudaMatmul<'_>, form: Form) -> Product {
    let (parts, bytes) = (loads(plan), plan.pack.tile.bytes);
    // Tiles of a warp that are loaded at once. A table takes registers, of which two CUDA blocks leave 64.
    let ahead = if plan.pack.table.is_some() { 2 } else { 4 };
    let count = ahead * parts;
    let fetch = |load, panel, first| fetch(load, [panel, first, "tiles"], [ahead, parts, bytes]);
    let early = format!(
        "const u32 tiles = (u32)(a.stride / {bytes});
    u32x4 ahead[{count}] = {{}};
    if (own < panels) {{
        {}
    }}
    ",
        fetch("gm_load_early", "own", "0")
    );
    let tile = joined((0..parts).map(|part| format!("now[i * {parts} + {part}]")), ", ");
    let x_sum = when(plan.format.min() != 0, || match &plan.fused {
        Some(_) => "const i32 x_sum = x_sums[0];\n            ".to_string(),
        None => "const i32 x_sum = gm_load(a.x_sums + token);\n            ".to_string(),
    });
    let DoubleBuffer { declare: half, flip, .. } = DoubleBuffer::of(plan, "half_of_sums");
    let product = format!(
        "u32 adder = 0;
    {half}
    GM_NO_UNROLL for (u32 panel = own; panel < panels; panel += gm_blocks(){flip}) {{
        i32 sums[2][1][4] = {{}};
        GM_NO_UNROLL for (u32 first = 0; first < tiles; first += {ahead} * WARPS) {{
            u32x4 now[{count}];
            GM_UNROLL for (u32 i = 0; i < {count}; i++) now[i] = ahead[i];
            // Behind the last codes of a panel come the first of the next.
            const bool last = first + {ahead} * WARPS >= tiles;
            const u32 next_panel = last ? panel + gm_blocks() : panel, next = last ? 0 : first + {ahead} * WARPS;
            if (next_panel < panels) {{
                {fetch}
            }}
            GM_UNROLL for (u32 i = 0; i < {ahead}; i++) {{
                const u32 tile = first + i * WARPS + gm_warp();
                if (tile >= tiles) continue;
                const u32x4 w[{parts}] = {{{tile}}};
{products}            }}
        }}
        parts[(half_of_sums * WARPS + gm_warp()) * {MMA_ROWS} + gm_lane()] = {OWN_SUM};
        gm_sync();
        const u32 row = panel * {MMA_ROWS} + own_row;
        if (gm_warp() == adder && row < a.n) {{
            i32 dot = 0;
            GM_UNROLL for (u32 warp = 0; warp < WARPS; warp++) dot += parts[(half_of_sums * WARPS + warp) * {MMA_ROWS} + gm_lane()];
            {x_sum}{store}
        }}
        {NEXT_ADDER}
    }}",
        fetch = fetch("gm_load_once", "next_panel", "next"),
        products = products(plan, 1, |step| x(plan, step)),
        store = store(plan, form, &corrected(plan, "dot", "x_sum")),
    );
    Product { early, behind: String::new(), product }
}

/// What a run has of a lane's row: `scale` and `min`, f32 or a super-block's integers.
struct Terms<'p> {
    plan: &'p CudaMatmul<'p>,
    each: u32,
}

impl Terms<'_> {
    /// Their names.
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.plan.format.terms().map(Term::one)
    }

    /// Their type.
    fn ty(&self) -> &'static str {
        if self.plan.format.superblock.is_some() { "i32" } else { "f32" }
    }

    /// Declarations of what is loaded ahead.
    fn declare(&self) -> String {
        let (ty, each) = (self.ty(), self.each);
        self.names().map(|name| format!("{ty} {name}_ahead[{each}] = {{}};\n    ")).collect()
    }

    /// Statements that bind it for a round, before that of the next is loaded.
    fn take(&self) -> String {
        let (ty, each) = (self.ty(), self.each);
        let take = |name| {
            format!(
                "{ty} {name}_now[{each}];\n            GM_UNROLL for (u32 e = 0; e < {each}; e++) {name}_now[e] = {name}_ahead[e];\n            "
            )
        };
        self.names().map(take).collect()
    }

    /// Statements that load those of a warp's runs from run `first` of a panel on.
    fn fetch(&self, panel: &str, first: &str) -> String {
        let mut each = String::new();
        for term in self.plan.format.terms() {
            let load = of_run_and_row(self.plan, term, [panel, "run"], "own_row");
            let _ = write!(each, "\n            {}_ahead[e] = {load};", term.one());
        }
        format!(
            "GM_UNROLL for (u32 e = 0; e < {}; e++) {{
            const u32 run = gm_min({first} + e * WARPS + gm_warp(), a.units - 1);{each}
        }}
        ",
            self.each
        )
    }

    /// Statements that fetch those of a warp's first runs of its first panel to the L2 cache.
    fn early(&self) -> String {
        let mut each = String::new();
        for term in self.plan.format.terms() {
            let _ = write!(
                each,
                "\n            if (gm_lane() == 0 && run < a.units) gm_prefetch_early((const u8 *)({}));",
                of_run(self.plan, term, ["own", "run"])
            );
        }
        format!(
            "GM_UNROLL for (u32 e = 0; e < {}; e++) {{
            const u32 run = e * WARPS + gm_warp();{each}
        }}
        ",
            self.each
        )
    }

    /// Statements that bind those of a run from what was loaded, and store its terms at place `at`.
    fn store(&self, at: &str) -> String {
        let plan = self.plan;
        let ty = self.ty();
        let mut out: String = self
            .names()
            .map(|name| format!("const {ty} {name} = {name}_now[e];\n                "))
            .collect();
        let ((added, subtracted), of_token) = match plan.format.superblock {
            None => (terms(plan, "sum", "scale", "min"), run_of_token(plan)),
            Some(_) => (integer_terms(plan, "sum", "scale", "min"), x_sum_of_run(plan)),
        };
        let _ = write!(out, "{of_token}                added[{at}] = {added};");
        if let Some(subtracted) = subtracted {
            let _ = write!(out, "\n                subtracted[{at}] = {subtracted};");
        }
        out
    }
}

/// How the warp that adds a panel's terms does so.
struct Sums {
    /// Declarations for each panel.
    of_panel: String,
    /// Loads at the begin of a round.
    loads: String,
    /// Statements at its end.
    add: String,
}

impl Sums {
    fn new(plan: &CudaMatmul<'_>, round: u32) -> Sums {
        let from = |i: &str| format!("(half_of_terms * {round} + {i}) * {MMA_ROWS} + gm_lane()");
        let blocks = SuperBlockTerms::of(plan);
        let scale_of = |parts: &SuperBlockTerms| parts.x_scale_load(plan, "t", "token");
        let whole = blocks.as_ref().filter(|parts| round.is_multiple_of(parts.runs));
        let Some(parts) = whole else {
            let adding = Adding {
                of_output: "",
                count: String::new(),
                from: from("i"),
                row: "const u32 row = own_row;".to_string(),
                x_scale: blocks.as_ref().and_then(scale_of),
            };
            let [of_panel, add] = adding.emit(plan);
            let add = format!(
                "const u32 count = gm_min(a.units - first, {round}u);
                for (u32 i = 0; i < count; i++) {{
                    {add}
                }}"
            );
            return Sums { of_panel, loads: String::new(), add };
        };
        // What super-blocks share is loaded before their runs are multiplied, not when they have been.
        let (runs, count) = (parts.runs, round / parts.runs);
        let offset = plan.format.offset;
        let x_scale = scale_of(parts);
        // Where the kernel quantizes, scales are already in shared memory.
        let x_ahead = x_scale.as_ref().filter(|_| plan.fused.is_none());
        let (mut declare, mut load) = (String::new(), String::new());
        for term in plan.format.terms() {
            let name = term.one();
            let _ = write!(declare, "f32 {name}_of[{count}] = {{}};\n        ");
            let place = parts.at(term, "panel", "block");
            let _ = write!(load, "\n                {name}_of[b] = gm_load({place} + own_row);");
        }
        if let Some(x_scale) = x_ahead {
            let _ = write!(declare, "f32 x_scale_of[{count}] = {{}};\n        ");
            let _ = write!(load, "\n                x_scale_of[b] = {x_scale};");
        }
        let loads = format!(
            "{declare}if (gm_warp() == adder)
            GM_UNROLL for (u32 b = 0; b < {count}; b++) {{
                const u32 block = gm_min(first / {runs} + b, a.units / {runs} - 1);{load}
            }}
        "
        );
        let bind = |name| format!("const f32 {name} = {name}_of[b];\n                ");
        let mut bound: String = plan.format.terms().map(Term::one).map(bind).collect();
        match (&x_scale, x_ahead) {
            (_, Some(_)) => bound.push_str("const f32 x_scale = x_scale_of[b];\n                "),
            (Some(x_scale), None) => {
                let _ = write!(
                    bound,
                    "const u32 block = first / {runs} + b;\n                const f32 x_scale = {x_scale};\n                "
                );
            }
            (None, None) => {}
        }
        let low = when(offset, || format!(" low += subtracted[{}];", from(&format!("b * {runs} + i"))));
        let add = format!(
            "GM_UNROLL for (u32 b = 0; b < {count}; b++) {{
                if (first + b * {runs} >= a.units) break;
                i32 total = 0{declare_low};
                GM_UNROLL for (u32 i = 0; i < {runs}; i++) {{
                    total += added[{added}];{low}
                }}
                {bound}{terms}
            }}",
            declare_low = if offset { ", low = 0" } else { "" },
            added = from(&format!("b * {runs} + i")),
            terms = add_terms(plan, ["y", "total", "low", "scale", "min"]),
        );
        Sums { of_panel: String::new(), loads, add }
    }
}

/// Runs of k have scales: a warp computes the terms of some of them, and one warp adds all in the order of k.
fn by_k_group(plan: &CudaMatmul<'_>, form: Form) -> Product {
    let (parts, tiles) = (loads(plan), plan.format.k_group_tiles(plan.pack.tile.k));
    let each = runs_of_warp(plan.format, plan.algorithm, plan.tokens);
    let (count, bytes, round) = (tiles * parts, tiles * plan.pack.tile.bytes, each * plan.threads / 32);
    let comes_ahead = each * count <= MOST_AHEAD;
    let of_runs = Terms { plan, each };
    let fetch = |load, panel, first| {
        when(comes_ahead, || fetch(load, [panel, first, "a.units"], [each, count, bytes]))
    };
    let early = format!(
        "{codes}{declare}if (own < panels) {{
        {fetch}{terms}
    }}
    ",
        codes = when(comes_ahead, || format!("u32x4 ahead[{}] = {{}};\n    ", each * count)),
        declare = of_runs.declare(),
        fetch = fetch("gm_load_early", "own", "0"),
        terms = of_runs.early(),
    );
    let behind = format!("if (own < panels) {{\n        {}\n    }}\n    ", of_runs.fetch("own", "0"));
    let now = of_runs.take();
    let codes_now = when(comes_ahead, || {
        format!(
            "u32x4 now[{all}];\n            GM_UNROLL for (u32 i = 0; i < {all}; i++) now[i] = ahead[i];\n            ",
            all = each * count
        )
    });
    let tile = joined(
        (0..parts).map(|part| match comes_ahead {
            true => format!("now[e * {count} + i * {parts} + {part}]"),
            false => format!("gm_load_once((const u32x4 *)(codes + (i * {parts} + {part}) * 512))"),
        }),
        ", ",
    );
    let codes = when(!comes_ahead, || {
        format!(
            "const u8 *const codes = a.codes + (u64)panel * a.stride + (u64)unit * {bytes} + gm_lane() * 16;\n                "
        )
    });
    let DoubleBuffer { declare: half, flip, meet } = DoubleBuffer::of(plan, "half_of_terms");
    let Sums { of_panel, loads, add } = Sums::new(plan, round);
    // Beside codes of eight bits and minima, registers of two CUDA blocks do not hold them while runs are multiplied.
    let late = plan.fused.is_some() && plan.format.offset && each * count == MOST_AHEAD;
    let (loads_first, loads_last) = if late { (String::new(), loads) } else { (loads, String::new()) };
    let at = format!("(half_of_terms * {round} + e * WARPS + gm_warp()) * {MMA_ROWS} + gm_lane()");
    let product = format!(
        "u32 adder = 0;
    {half}
    GM_NO_UNROLL for (u32 panel = own; panel < panels; panel += gm_blocks()) {{
        f32 y = 0.0f;
        {of_panel}GM_NO_UNROLL for (u32 first = 0; first < a.units; first += {round}{flip}) {{
            {loads_first}{codes_now}{now}// Behind the last runs of a panel come the first of the next.
            const bool last = first + {round} >= a.units;
            const u32 next_panel = last ? panel + gm_blocks() : panel, next = last ? 0 : first + {round};
            if (next_panel < panels) {{
                {fetch_codes}{fetch_terms}
            }}
            GM_UNROLL for (u32 e = 0; e < {each}; e++) {{
                const u32 unit = first + e * WARPS + gm_warp();
                if (unit >= a.units) continue;
                {codes}i32 sums[2][1][4] = {{}};
                {unroll}for (u32 i = 0; i < {tiles}; i++) {{
                const u32 tile = unit * {tiles} + i;
                const u32x4 w[{parts}] = {{{tile}}};
{products}                }}
                const i32 sum = {OWN_SUM};
                {store_terms}
            }}
            {loads_last}gm_sync();
            // Terms were computed in any order; they are added in the order of k.
            if (gm_warp() == adder) {{
                {add}
            }}
            {meet}
        }}
        const u32 row = panel * {MMA_ROWS} + own_row;
        if (gm_warp() == adder && row < a.n) {{ {store} }}
        {NEXT_ADDER}
    }}",
        fetch_codes = fetch("gm_load_once", "next_panel", "next"),
        fetch_terms = of_runs.fetch("next_panel", "next"),
        unroll = unrolled(tiles, "GM_UNROLL "),
        products = products(plan, 1, |step| x(plan, step)),
        store_terms = of_runs.store(&at),
        store = store(plan, form, "y"),
    );
    Product { early, behind, product }
}
