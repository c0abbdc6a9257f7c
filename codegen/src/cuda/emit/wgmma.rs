//! Products of many tokens by `wgmma`: consumer warpgroups multiply, each 128 rows, and a producer warpgroup brings their operands. Rows
//! are one integer sum, or runs with scales (`wgmma_runs`).
//!
//! A warp has a panel of 32 rows in fragment order, which is operand A of two products: rows 0 to 15 of the four panels, then
//! rows 16 to 31. So `mma`'s packing serves here too. The tokens are operand B, in shared memory: the producer warpgroup
//! loads them and stores their words in the order in which a lane of A has its k; bulk copies bring the codes. Stages of
//! k are a ring in shared memory, each with a full and an empty barrier.

use super::accumulators::Accumulators;
use super::arrays::Array;
use super::epilogue::epilogue_row;
use super::fragments::{fragments, staged};
use super::header::HOPPER_HEADER;
use super::operands::{load_table, table_of};
use super::overlap::wait;
use super::parameters::exported;
use super::pipelined;
use super::product::{CudaMatmul, MMA_ROWS};
use super::split::SHARE;
use super::tiles::{RunTerms, Warpgroups, most_shared, registers_in_words, shared_out};
use super::wgmma_row;
use super::wgmma_runs::{self, PRODUCERS, ProducerTerms};
use crate::Error;
use crate::text::joined;
use gristmill_spec::model::Origin;
use std::fmt::Write;

/// Stages in shared memory at most: more than memory's latency needs, whatever k of them is multiplied in a cycle.
const MOST_STAGES: u32 = 8;
/// Threads of a warpgroup.
const GROUP: u32 = 128;
/// Registers of a thread that multiplies, of three warpgroups; one of the producer has the rest.
const MORE: u32 = 208;

impl Warpgroups {
    /// The division of a tile of `tokens` and `threads`, or what is wrong with it.
    pub fn new(plan: &CudaMatmul<'_>, variant: &Origin) -> Result<Warpgroups, Error> {
        let terms = match plan.format.k_group {
            0 => None,
            _ => Some(RunTerms::new(plan)),
        };
        let groups = plan.threads / GROUP - 1;
        let steps = plan.pack.tile.k / 32;
        let division = Warpgroups {
            groups,
            panels: groups * 4,
            stages: MOST_STAGES,
            step_bytes: plan.tokens * 32 + if steps > 1 { 64 } else { 0 },
            // Three warpgroups with the sums of 128 tokens need more registers than a thread's even share.
            registers: (plan.threads == 3 * GROUP && plan.tokens == 128).then_some(shared_out(MORE)),
            terms,
        };
        // One block of three warpgroups takes the registers of a multiprocessor; of two warpgroups there are two.
        let most = most_shared(4 - plan.threads / GROUP);
        let with =
            |stages: u32| Warpgroups { stages, terms: terms.map(|terms| terms.beside(stages)), ..division };
        let mut division = with(MOST_STAGES);
        while division.stages > 1 && division.shared_bytes(plan) > most {
            division = with(division.stages - 1);
        }
        if division.stages < 2 {
            let (tile, bytes) = ((plan.tokens, division.panels * MMA_ROWS), 2 * division.stage_bytes(plan));
            return Err(Error::large_stages(plan.format.format, variant, tile, (bytes, most)));
        }
        Ok(division)
    }

    /// In words.
    pub fn describe(&self) -> String {
        let registers = registers_in_words(self.registers);
        let terms = self
            .terms
            .map_or(String::new(), |terms| format!(", with the terms of {} runs at a time", terms.together));
        format!(
            "{} warpgroups of 128 rows each and one that copies{registers}; {} stages of k in shared memory{terms}",
            self.groups, self.stages
        )
    }

    /// Bytes of shared memory of a CUDA block, all of which the launch gives.
    pub(super) fn shared_bytes(&self, plan: &CudaMatmul<'_>) -> u32 {
        arrays(plan, self).iter().map(apart).sum()
    }

    fn x_bytes(&self, plan: &CudaMatmul<'_>) -> u32 {
        plan.pack.tile.k / 32 * self.step_bytes
    }

    fn stage_bytes(&self, plan: &CudaMatmul<'_>) -> u32 {
        self.x_bytes(plan) + self.panels * plan.pack.tile.bytes
    }
}

/// The arrays of a CUDA block, in their order: tokens, codes, barriers, and what outputs are finished with.
fn arrays(plan: &CudaMatmul<'_>, division: &Warpgroups) -> Vec<Array> {
    let stages = division.stages;
    let w_bytes = division.panels * plan.pack.tile.bytes;
    let mut arrays = vec![
        Array { ty: "u8", name: "xs", count: stages * division.x_bytes(plan) },
        Array { ty: "u8", name: "ws", count: stages * w_bytes },
        Array { ty: "u64", name: "full", count: stages },
        Array { ty: "u64", name: "empty", count: stages },
    ];
    match &division.terms {
        Some(of) => arrays.extend(wgmma_runs::arrays(plan, division, of)),
        None => arrays.extend(wgmma_row::arrays(plan)),
    }
    arrays
}

/// Bytes from the begin of an array to that of the next.
fn apart(array: &Array) -> u32 {
    array.bytes().next_multiple_of(16)
}

/// Their declarations.
fn declared(plan: &CudaMatmul<'_>, division: &Warpgroups) -> String {
    let mut begin = 0;
    let each = arrays(plan, division).into_iter().map(|array| {
        let text = format!("GM_SHARED_FROM({}, {}, {}, {begin});", array.ty, array.name, array.count);
        begin += apart(&array);
        text
    });
    joined(each, "\n    ")
}

/// What stands before the kernel: the vocabulary, and the instruction for as many columns as a CUDA block has tokens.
pub fn vocabulary(plan: &CudaMatmul<'_>) -> String {
    let (tokens, count) = (plan.tokens, plan.tokens / 2);
    let Accumulators { operands: sums, outputs } = Accumulators::new(count, 'r');
    let operands = joined((count..count + 4).map(|i| format!("%{i}")), ", ");
    format!(
        "{HOPPER_HEADER}
#ifndef GM_EMULATOR
// d += a * b, or d = a * b where `add` is 0: 64 rows by {tokens} columns by 32 k.
GM_DEVICE void gm_wgmma_us(i32 (&d)[{count}], const u32 (&a)[4], u64 b, u32 add = 1) {{
    asm volatile(
        \"{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{add}, 0;\\n\"
        \"wgmma.mma_async.sync.aligned.m64n{tokens}k32.s32.u8.s8 {{{sums}}}, {{{operands}}}, %{b}, add;\\n}}\"
        : {outputs}
        : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b), \"r\"(add));
}}
#endif

",
        b = count + 4,
        add = count + 5,
    )
}

/// The kernel.
pub fn wgmma(plan: &CudaMatmul<'_>, division: &Warpgroups) -> String {
    let tokens = plan.tokens;
    let Warpgroups { panels, stages, .. } = *division;
    let (more, fewer) = match division.registers {
        Some((more, fewer)) => (
            format!("gm_more_registers<{more}>();\n        "),
            format!("gm_fewer_registers<{fewer}>();\n        "),
        ),
        None => (String::new(), String::new()),
    };
    let terms = match &division.terms {
        Some(of) => wgmma_runs::producer_terms(plan, division, of, ahead(plan)),
        None => {
            let arrays: Vec<Array> = wgmma_row::arrays(plan).collect();
            ProducerTerms { begin: wgmma_row::load_tokens(plan), ..ProducerTerms::of(&arrays) }
        }
    };
    let OwnText { functions, stages: own_stages, multiply } = match &division.terms {
        Some(of) => by_runs(plan, division, of),
        None => by_row(plan, division),
    };
    let body = format!(
        "    {arrays}
    const u32 first_token = gm_block_y() * {tokens}, first_panel = gm_block() * {panels};
    {own_stages}
    if (gm_thread() == 0) {{
        for (u32 i = 0; i < {stages}; i++) {{
            gm_barrier_init(full, i, 4);
            gm_barrier_init(empty, i, {panels});
        }}
        gm_fence_proxy();
    }}
    {wait}if (gm_warp() >= {panels}) {{
        {fewer}bring(xs, ws, full, empty{terms}, a, first_token, first_panel, first_stage, stages);
    }} else {{
        {more}const u32 own_panel = gm_warp(), own_tokens = 0, g = gm_lane() / 4, t = gm_lane() % 4;
        {table}{multiply}
    }}
",
        terms = terms.arguments,
        arrays = declared(plan, division),
        wait = wait(&(early(plan, division) + "gm_sync();\n    ")),
        table = load_table(plan),
    );
    let declared = format!("GM_KERNEL({})", plan.threads);
    let kernel = exported(&declared, &plan.name(), "const Matmul a", &body);
    functions + &bring(plan, division, &terms) + &products(plan, division) + &kernel
}

/// What of the kernel's text depends on whether a row is one integer sum.
struct OwnText {
    functions: String,
    /// Declarations of the stages that a CUDA block has.
    stages: String,
    /// Statements of a warp that multiplies.
    multiply: String,
}

/// Where a row is one integer sum, of which a CUDA block may have a part.
fn by_row(plan: &CudaMatmul<'_>, division: &Warpgroups) -> OwnText {
    let tile_bytes = plan.pack.tile.bytes;
    OwnText {
        functions: SHARE.to_string() + &epilogue_row(plan),
        stages: format!(
            "const u32 all_stages = (u32)(a.stride / {tile_bytes}), first_stage = share(all_stages, gm_block_z());
    const u32 stages = share(all_stages, gm_block_z() + 1) - first_stage;"
        ),
        multiply: wgmma_row::multiply(plan, division),
    }
}

/// Where runs have scales: f32 sums are in the order of k, so that a CUDA block has all of it.
fn by_runs(plan: &CudaMatmul<'_>, division: &Warpgroups, of: &RunTerms) -> OwnText {
    let (_, table) = table_of(plan);
    OwnText {
        functions: wgmma_runs::functions(plan, division, of),
        stages: format!("const u32 first_stage = 0, stages = a.units * {};", of.run),
        multiply: format!(
            "{sums}
{multiply}
    {store}",
            sums = wgmma_runs::sums(plan),
            multiply = wgmma_runs::multiply(plan, division, of, table),
            store = pipelined::store(plan, plan.tokens, ""),
        ),
    }
}

/// Statements that fetch the codes of the first stages to the L2 cache.
fn early(plan: &CudaMatmul<'_>, division: &Warpgroups) -> String {
    // A line for a thread.
    let each = (division.stages * plan.pack.tile.bytes / 128).min(plan.threads / division.panels);
    format!(
        "if (gm_thread() < {lines} && gm_thread() % {each} * 128 < stages * {tile_bytes}) {{
        const u32 panel = gm_min(first_panel + gm_thread() / {each}, (a.n - 1) / {MMA_ROWS});
        gm_prefetch_early(a.codes + panel * a.stride + first_stage * {tile_bytes} + gm_thread() % {each} * 128);
    }}
    ",
        lines = division.panels * each,
        tile_bytes = plan.pack.tile.bytes,
    )
}

/// So many stages ahead tokens are loaded, as far as registers hold them. Two were not enough on an H200: what multiplies waited for two
/// fifths of its time.
fn ahead(plan: &CudaMatmul<'_>) -> u32 {
    if rounds(plan) > 2 { 3 } else { 4 }
}

/// Pieces of sixteen bytes of tokens that a producer thread has of each stage, the last maybe beyond the last.
fn rounds(plan: &CudaMatmul<'_>) -> u32 {
    (plan.tokens * (plan.pack.tile.k / 16)).div_ceil(GROUP)
}

/// `bring`: what the producer warpgroup does.
fn bring(plan: &CudaMatmul<'_>, division: &Warpgroups, terms: &ProducerTerms) -> String {
    let (tokens, k, tile_bytes) = (plan.tokens, plan.pack.tile.k, plan.pack.tile.bytes);
    let Warpgroups { groups, panels, stages, step_bytes, .. } = *division;
    // Sixteen bytes of a token at a time.
    let pieces = k / 16;
    let rounds = rounds(plan);
    let guard = if (tokens * pieces).is_multiple_of(GROUP) {
        String::new()
    } else {
        format!("            if (r * {GROUP} + own >= {}) continue;\n", tokens * pieces)
    };
    format!(
        "// Brings stage after stage as their places become empty. Tokens are loaded {ahead} stages ahead, each into registers of its own: a
// copy from one to another would wait for the load. The two words of a piece that a lane of A has as its first four k go to one core
// matrix, those it has as its last four to the other.
template <class X, class W, class B{types}>
GM_DEVICE void bring(X &xs, W &ws, B &full, B &empty{parameters}, const Matmul &a, u32 first_token, u32 first_panel, u32 first_stage, u32 stages) {{
    // The compiler is to know that a warp's number is the same for all its lanes.
    const u32 own = gm_thread() - {first}, warp = gm_shfl(own, 0) / 32, last_panel = (a.n - 1) / {MMA_ROWS};
    const i8 *from[{rounds}];
    u32x4 ahead[{ahead}][{rounds}] = {{}};
    GM_UNROLL for (u32 r = 0; r < {rounds}; r++) {{
        // Tokens beyond the last are computed from it and not stored.
        const u32 token = gm_min(first_token + (r * {GROUP} + own) / {pieces}, a.m - 1);
        from[r] = a.x + token * a.x_stride + first_stage * {k} + own % {pieces} * 16;
        GM_UNROLL for (u32 i = 0; i < {ahead}; i++)
            ahead[i][r] = gm_load_written((const u32x4 *)(from[r] + gm_min(i, stages - 1) * {k}));
    }}
{begin}    u32 place = 0, phase = 1;
    GM_NO_UNROLL for (u32 first = 0; first < stages; first += {ahead})
    GM_UNROLL for (u32 i = 0; i < {ahead}; i++) {{
        const u32 stage = first + i;
        if (stage >= stages) break;
        gm_barrier_wait(empty, place, phase);
        if (gm_elect()) {{
            // A warp has every fourth panel.
            gm_barrier_expect(full, place, {w_bytes}{bytes});
            GM_UNROLL for (u32 j = 0; j < {of_warp}; j++) {{
                const u32 panel = warp + j * {PRODUCERS};
                const u8 *codes = a.codes + gm_min(first_panel + panel, last_panel) * a.stride + (u64)(first_stage + stage) * {tile_bytes};
                gm_bulk_copy(ws, (place * {panels} + panel) * {tile_bytes}, codes, {tile_bytes}, full, place);
            }}
{copies}        }}
{of_stage}        const u64 next = (u64)gm_min(stage + {ahead}, stages - 1) * {k};
        GM_UNROLL for (u32 r = 0; r < {rounds}; r++) {{
{guard}            const u32x4 x = ahead[i][r];
            const u32 token = (r * {GROUP} + own) / {pieces}, piece = own % {pieces};
            const u32 at = place * {x_bytes} + piece / 2 * {step_bytes} + token * 16 + piece % 2 * 8;
            gm_shared_put(xs, at, u32x2{{x.x, x.z}});
            gm_shared_put(xs, at + {matrix}, u32x2{{x.y, x.w}});
            ahead[i][r] = gm_load_written((const u32x4 *)(from[r] + next));
        }}
{fence}        gm_sync_warp();
        if (gm_elect()) gm_barrier_arrive(full, place);
        place = place + 1 == {stages} ? 0 : place + 1;
        phase ^= place == 0;
    }}
}}

",
        ahead = ahead(plan),
        first = groups * GROUP,
        of_warp = panels / PRODUCERS,
        w_bytes = panels / PRODUCERS * tile_bytes,
        x_bytes = division.x_bytes(plan),
        matrix = tokens * 16,
        types = terms.types,
        parameters = terms.parameters,
        begin = terms.begin,
        bytes = terms.bytes,
        copies = terms.copies,
        of_stage = terms.stage,
        fence = if division.terms.is_some() { "        gm_fence_proxy();\n" } else { "" },
    )
}

/// `products`: what the others begin a stage with. `release`: how they end it where a row is one sum.
fn products(plan: &CudaMatmul<'_>, division: &Warpgroups) -> String {
    let (tokens, steps) = (plan.tokens, plan.pack.tile.k / 32);
    let parts = staged(plan, &format!("place * {} + gm_warp()", division.panels));
    let (table, _) = table_of(plan);
    let mut operands = String::new();
    for step in 0..steps {
        let _ = write!(
            operands,
            "    {{
{weights}        GM_UNROLL for (u32 half = 0; half < 2; half++)
            GM_UNROLL for (u32 i = 0; i < 4; i++) operands[{step}][half][i] = weights[half][i];
    }}
",
            weights = fragments(plan, step),
        );
    }
    let operand = format!(
        "const u64 x = gm_wgmma_operand(xs, place * {} + step * {}, {}, 128);",
        division.x_bytes(plan),
        division.step_bytes,
        tokens * 16
    );
    // Runs are products of their own, and their halves two groups, of which the first is finished while the second goes on.
    let (of_run, start, release) = match &division.terms {
        None => (
            "",
            format!(
                "    gm_wgmma_fence();
    GM_UNROLL for (u32 step = 0; step < {steps}; step++) {{
        {operand}
        gm_wgmma_us(sums[0], operands[step][0], x);
        gm_wgmma_us(sums[1], operands[step][1], x);
    }}
    gm_wgmma_commit();
"
            ),
            RELEASE,
        ),
        Some(_) => (
            ", u32 behind",
            format!(
                "    GM_UNROLL for (u32 half = 0; half < 2; half++) {{
        gm_wgmma_fence();
        GM_UNROLL for (u32 step = 0; step < {steps}; step++) {{
            {operand}
            gm_wgmma_us(sums[half], operands[step][half], x, behind + step);
        }}
        gm_wgmma_commit();
    }}
"
            ),
            "",
        ),
    };
    let doc = match &division.terms {
        None => "",
        Some(_) => " It is the first of its run, or stands `behind` others.",
    };
    format!(
        "// Starts the products of the stage at `place`, once it is there.{doc}
template <class X, class W, class B>
GM_DEVICE void products(
    X &xs, W &ws, B &full, u32 place, u32 phase{table}, u32 (&operands)[{steps}][2][4], i32 (&sums)[2][{count}]{of_run}
) {{
    gm_barrier_wait(full, place, phase);
{fence}    const u32x4 w[{loads}] = {{{parts}}};
{operands}{start}}}

{release}",
        // What multiplies here waits for what brings, which has loads under way; where runs end, it is the other way round.
        fence = if division.terms.is_none() { "    gm_fence_proxy();\n" } else { "" },
        loads = parts.len(),
        parts = parts.join(", "),
        count = tokens / 2,
    )
}

/// `release`.
const RELEASE: &str = "\
// Waits for all products but those of the last PENDING stages, and gives back the place of the last stage that is done.
template <u32 PENDING, class B> GM_DEVICE void release(B &empty, u32 place) {
    gm_wgmma_wait<PENDING>();
    gm_sync_warp();
    if (gm_lane() == 0) gm_barrier_arrive(empty, place);
}

";
