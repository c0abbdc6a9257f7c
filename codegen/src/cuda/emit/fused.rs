//! Products of few tokens that quantize their activations: [`dp4a`](super::dp4a) in one launch, from floats.
//!
//! Each CUDA block quantizes its tokens into its shared memory, by the statements of the kernel that does nothing else, while
//! its first weights are on their way. So that this is done a few times a multiprocessor and not for every panel, a CUDA
//! block has several panels beside each other, and more of them one after the other.

use super::activations::{Statements, Target, shared_bytes, statements};
use super::dp4a::{AHEAD, declare_sums, half, hand_over, prefetch_run, step, sum_of_runs, vector};
use super::epilogue::Epilogue;
use super::form::Form;
use super::operands::load_table;
use super::overlap::wait;
use super::parameters::exported;
use super::product::{CudaMatmul, DP4A_ROWS, handed_over, round_bytes};
use super::terms::{SuperBlockTerms, corrected, needs_sums};
use super::tiles::Fused;
use crate::Error;
use crate::plan::{Term, lcm};
use crate::text::when;
use gristmill_spec::model::{CudaBudget, Origin};
use std::fmt::Write;

/// Rows are multiples of this, so that four values are loaded at once.
pub(super) const MULTIPLE: u64 = 4;
/// Threads that a multiprocessor of every architecture holds, and has registers for if they take 64.
const RESIDENT: u32 = 1024;
/// Bytes of shared memory that a multiprocessor of every architecture has.
const SHARED: u32 = 64 * 1024;
/// Bytes that terms may take if they are kept for two rounds.
pub(super) const ROUNDS: u32 = 16 * 1024;

/// The longest row of blocks with scales of their own for which quantizing in each CUDA block takes less time than a launch in
/// front, whose CUDA blocks share the row: docs/cuda.md has the counts. A row with one scale is one CUDA block's there too.
const SHARED_ROW: u32 = 6144;

impl Fused {
    /// As much as is left beside the sums or terms.
    pub(super) fn new(plan: &CudaMatmul<'_>, variant: &Origin) -> Result<Fused, Error> {
        let format = plan.format;
        let refused = |what: &str| Error::shared_memory(format.format, variant, what);
        let (unit, multiple) = (format.k_group, plan.pack.multiple);
        let block = format.activations.block;
        let apart = lcm(u64::from(if unit == 0 { multiple } else { unit }), u64::from(block.unwrap_or(1)));
        let apart = u32::try_from(apart).map_err(|_| refused("its blocks are too long"))?;
        let terms = plan.rounds * round_bytes(format, plan.algorithm, plan.threads, plan.tokens);
        // What warps find of a row.
        let others = terms + 3 * 4 * plan.threads / 32 + 256;
        let blocks_per_sm = (RESIDENT / plan.threads).max(1);
        let most = (SHARED / blocks_per_sm).clamp(SHARED / 2, CudaBudget::default().shared);
        let units = |k: u32| k.checked_div(unit);
        let room = |k: u32| Fused {
            k,
            values: units(k).map_or(k, |units| units * unit.next_multiple_of(multiple)),
            scales: block.map_or(1, |block| k / block),
            sums: units(k).unwrap_or(1),
            blocks_per_sm,
        };
        let fits =
            |room: &Fused| others + plan.tokens * (room.values + 4 * (room.scales + room.sums)) <= most;
        let longest = if block.is_some() { SHARED_ROW.max(apart) } else { most };
        (1..=longest / apart).map(|blocks| room(blocks * apart)).take_while(fits).last().ok_or_else(|| {
            refused(&format!(
                "quantizing {} tokens beside the sums of {} threads needs more than the {most} bytes of shared memory that a CUDA block has",
                plan.tokens, plan.threads
            ))
        })
    }

    /// Bytes of shared memory of a CUDA block.
    pub(super) fn shared_bytes(&self, plan: &CudaMatmul<'_>) -> u32 {
        let sums = if needs_sums(plan.format) { self.sums } else { 0 };
        let terms = plan.rounds * round_bytes(plan.format, plan.algorithm, plan.threads, plan.tokens);
        let row = shared_bytes(plan.format.activations, plan.threads);
        terms + row + plan.tokens * (self.values + 4 * (self.scales + sums))
    }
}

/// What quantizes the tokens of a CUDA block.
pub(super) struct Quantizing {
    /// Declarations in the kernel's outermost scope, with those of what its threads hand over.
    pub(super) declare: String,
    /// Statements behind the wait, with `first_token` and the number of `tokens` bound where a CUDA block has several.
    pub(super) statements: String,
}

/// The text that quantizes them to `x_values`, `x_scales` and `x_sums`.
pub(super) fn quantizing(plan: &CudaMatmul<'_>, room: &Fused) -> Quantizing {
    let (threads, tokens) = (plan.threads, plan.tokens);
    let (unit, multiple) = (plan.format.k_group, plan.pack.multiple);
    let target = Target::Shared {
        unit: if unit == 0 { (0, multiple) } else { (unit, unit.next_multiple_of(multiple)) },
        capacity: [room.values, room.scales, room.sums],
        sums: needs_sums(plan.format),
        threads,
    };
    let Statements { declare, call, meets } = statements(plan.format.activations, &target);
    let quantize = match plan.format.activations.block {
        Some(_) => format!("{call};"),
        None => format!("if (!{call}) return;"),
    };
    let array = |ty: &str, name: &str, count: u32| format!("GM_SHARED({ty}, {name}, {count});\n    ");
    let mut shared = array("i8", "x_values", tokens * room.values);
    shared += &array("f32", "x_scales", tokens * room.scales);
    if needs_sums(plan.format) {
        shared += &array("i32", "x_sums", tokens * room.sums);
    }
    let meet = if meets { "" } else { "gm_sync();\n    " };
    let meet_at_last = if tokens == 1 { meet } else { "" };
    let of_token = if tokens == 1 {
        format!("{{\n    const u32 t = 0;\n    const u64 row = first_token;\n    {quantize}\n    }}")
    } else {
        format!(
            "for (u32 t = 0; t < tokens; t++) {{
    const u64 row = first_token + t;
    {quantize}
    {meet}}}"
        )
    };
    Quantizing {
        declare: format!("{shared}{}{declare}", handed_over(plan)),
        statements: format!(
            "const void *x = a.x;
    u64 *fault = a.fault;
    const u32 type = a.x_type, k = a.k;
    {of_token}
    {meet_at_last}"
        ),
    }
}

/// The kernel.
pub fn fused(plan: &CudaMatmul<'_>, room: &Fused) -> String {
    let tokens = plan.tokens;
    let Quantizing { declare, statements } = quantizing(plan, room);
    let (early, product) =
        if plan.format.k_group == 0 { one_sum(plan, room) } else { by_k_group(plan, room) };
    let body = format!(
        "    {declare}// As many threads share the k of a panel, a power of two where they are not all; the CUDA block's sides have a panel each,
    // and more of them afterwards.
    const u32 sharing = gm_threads() >> a.sides;
    const u32 side = a.sides == 0 ? 0 : gm_thread() >> gm_popc(sharing - 1), within = gm_thread() - side * sharing;
    const u32 group = within / 4, quad = within % 4, groups = sharing / 4;
    const u32 panels = (a.n + {last_row}) / {DP4A_ROWS}, apart = gm_blocks() << a.sides;
    const u32 own = gm_block() + side * gm_blocks();
    const u32 first_token = {first_token}, tokens = gm_min(a.m - first_token, {tokens}u);
    const u8 *all_codes = a.codes + quad * 16;
    {table}{early}{statements}{product}
",
        first_token = Form::One.first_token(plan),
        last_row = DP4A_ROWS - 1,
        table = load_table(plan),
    );
    kernel(plan, room, &body)
}

/// A kernel that quantizes its tokens: as many CUDA blocks are held as there is room for. `body` has its statements, lines of text.
pub(super) fn kernel(plan: &CudaMatmul<'_>, room: &Fused, body: &str) -> String {
    let declared = format!("GM_KERNEL_OF({}, {})", plan.threads, room.blocks_per_sm);
    exported(&declared, &plan.name(), "const Matmul a", body)
}

/// Statements that write output (row, first_token + t), whose sum is `y`.
pub(super) fn epilogue(plan: &CudaMatmul<'_>, room: &Fused, y: &str) -> String {
    let scale = when(Epilogue::of(plan).x_scale, || format!(", x_scales[t * {}]", room.scales));
    format!("store_output(a, row, first_token + t, {y}{scale});")
}

/// A row is one integer sum. What stands in front of the activations, and what behind them.
fn one_sum(plan: &CudaMatmul<'_>, room: &Fused) -> (String, String) {
    let (tokens, vector, warps) = (plan.tokens, vector(plan), plan.threads / 32);
    let (bytes, k) = (plan.pack.tile.bytes, plan.pack.tile.k);
    let early = wait(&format!(
        "const u32 tiles = (u32)(a.stride / {bytes});
    const u8 *next = all_codes + own * a.stride + group * {bytes};
    const u64 stride = groups * {bytes};
    u32x4 ahead[{AHEAD}] = {{}};
    if (own < panels)
        GM_UNROLL for (u32 i = 0; i < {AHEAD}; i++)
            if (group + i * groups < tiles) ahead[i] = gm_load_early((const u32x4 *)(next + i * stride));
    "
    ));
    let x = format!("gm_shared_get<{vector}>(x_values, t * {} + tile * {k})", room.values);
    let x_sum = when(plan.format.min() != 0, || {
        format!("const i32 x_sum = x_sums[t * {}];\n            ", room.sums)
    });
    let product = format!(
        "u32 half = 0;
    GM_NO_UNROLL for (u32 first_panel = gm_block(), panel = own; first_panel < panels; first_panel += apart, panel += apart, half ^= 1) {{
        {declare}
        // Behind the last weights of a panel come the first of the next.
        const u8 *after = all_codes + (u64)(panel + apart) * a.stride + group * {bytes};
        const bool more = panel + apart < panels;
        if (panel < panels)
        GM_NO_UNROLL for (u32 first = group; first < tiles; first += {AHEAD} * groups) {{
            const bool last = first + {AHEAD} * groups >= tiles;
            const u32 from = last ? group : first + {AHEAD} * groups, until = !last || more ? tiles : 0;
            next = last ? after : next + {AHEAD} * stride;
            u32x4 now[{AHEAD}];
            GM_UNROLL for (u32 i = 0; i < {AHEAD}; i++) {{
                now[i] = ahead[i];
                if (from + i * groups < until) ahead[i] = gm_load_once((const u32x4 *)(next + i * stride));
            }}
            GM_UNROLL for (u32 i = 0; i < {AHEAD}; i++) {{
                const u32 tile = first + i * groups;
                if (tile >= tiles) continue;
                const u32x4 w = now[i];
                {step}
            }}
        }}
        {hand_over}
        const u32 row = panel * {DP4A_ROWS} + within % {DP4A_ROWS}, t = within / {DP4A_ROWS};
        if (t < tokens && row < a.n) {{
            i32 dot = 0;
            const u32 first_warp = half * {warps} + side * (sharing / 32);
            for (u32 warp = 0; warp < sharing / 32; warp++) dot += parts[(first_warp + warp) * {width} + within];
            {x_sum}{epilogue}
        }}
    }}",
        declare = declare_sums(plan),
        step = step(plan, &x),
        hand_over = hand_over(plan, &format!("(half * {warps} + gm_warp())")),
        width = tokens * DP4A_ROWS,
        epilogue = epilogue(plan, room, &corrected(plan, "dot", "x_sum")),
    );
    (early, product)
}

/// Runs of k have scales: as in `dp4a`, for several panels.
fn by_k_group(plan: &CudaMatmul<'_>, room: &Fused) -> (String, String) {
    let mut fetch = prefetch_run(plan, "own");
    // As a run's codes, so do its terms lie together.
    for term in plan.format.terms() {
        let together = if term == Term::Min { 2 } else { 1 };
        let place = match SuperBlockTerms::of(plan) {
            Some(parts) => format!(
                "(const u8 *)({} + {DP4A_ROWS}) + group % {} / {together} * {}",
                parts.at(term, "own", &format!("group / {}", parts.runs)),
                parts.runs,
                together * DP4A_ROWS
            ),
            None => {
                format!("(const u8 *)(a.{} + ((u64)own * a.units + group) * {DP4A_ROWS})", term.array())
            }
        };
        let _ = write!(fetch, "\n        if (quad == 0) gm_prefetch_early({place});");
    }
    let early = wait(&format!(
        "if (own < panels && group < a.units) {{
        {fetch}
    }}
    "
    ));
    let [declare, sum] = sum_of_runs(plan);
    let product = format!(
        "{half}
    GM_NO_UNROLL for (u32 first_panel = gm_block(), panel = own; first_panel < panels; first_panel += apart, panel += apart) {{
        const bool there = panel < panels;
        const u8 *codes = all_codes + panel * a.stride;
        f32 y = 0.0f;
        {declare}
        {sum}
        const u32 row = panel * {DP4A_ROWS} + within % {DP4A_ROWS}, t = within / {DP4A_ROWS};
        if (t < tokens && row < a.n) {{ {epilogue} }}
    }}",
        half = half(plan).declare,
        epilogue = epilogue(plan, room, "y"),
    );
    (early, product)
}
