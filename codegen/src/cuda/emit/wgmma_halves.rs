//! `wgmma_f16` and `wgmma_bf16`: many tokens on Hopper. Two warpgroups multiply, 64 rows each; a third brings what they need.
//!
//! A bringing warp has 32 rows. It copies their blocks to shared memory as they are, rounds a stage of 64 k to halves and
//! stores that as operand A; its share of the tokens goes straight to operand B. Both operands are core matrices without
//! swizzle, eight rows of sixteen bytes. A lane rounds 32 neighbours of one row, so that what a run has in common is computed
//! once, and eight lanes store what are neighbouring rows of a core matrix. Stages go round in shared memory between a
//! barrier that says a stage is full and one that says it is empty.

use super::division::{BARRIERS, Division, ROWS, Raw, STAGE};
use super::header::HOPPER_HEADER;
use super::rows_product::{RowsProduct, at_once};

/// Threads of a CUDA block: three warpgroups.
pub const THREADS: u32 = 384;
/// Warps that multiply, and those that bring.
const WARPS: u32 = 8;
const BRINGING: u32 = 4;
/// What stands in front of the unit's kernels.
pub const VOCABULARY: &str = HOPPER_HEADER;

/// The kernel, and the instruction for as many columns as it has tokens.
pub fn emit(plan: &RowsProduct<'_>, division: &Division, function: &str) -> String {
    let RowsProduct { tokens, .. } = *plan;
    let (x_bytes, w_bytes) = division.stage_bytes();
    let Division { stages, raw, .. } = *division;
    let (raw_array, raw_argument) = match raw {
        Some(raw) => (
            format!(
                "\n    GM_SHARED_FROM(u8, blocks, {}, {});",
                raw.places * ROWS * raw.stride,
                division.blocks()
            ),
            "blocks, ",
        ),
        None => (String::new(), ""),
    };
    let (more, fewer) = match division.registers {
        Some((more, fewer)) => (
            format!("gm_more_registers<{more}>();\n    "),
            format!("gm_fewer_registers<{fewer}>();\n        "),
        ),
        None => (String::new(), String::new()),
    };
    format!(
        "{instruction}{round}{copy}{bring}{multiply}GM_KERNEL({THREADS}) {function}(const Rows a) {{
    GM_SHARED_FROM(u8, xs, {stages} * {x_bytes}, 0);
    GM_SHARED_FROM(u8, ws, {stages} * {w_bytes}, {stages} * {x_bytes});{raw_array}
    GM_SHARED_FROM(u64, full, {stages}, {barriers});
    GM_SHARED_FROM(u64, empty, {stages}, {barriers} + {BARRIERS});
    const u32 first_row = gm_block() * {ROWS}, first_token = gm_block_y() * {tokens};
    const u32 stages = (a.k + {below}) / {STAGE};
    if (gm_thread() == 0) {{
        for (u32 i = 0; i < {stages}; i++) {{
            gm_barrier_init(full, i, {BRINGING});
            gm_barrier_init(empty, i, {WARPS});
        }}
        gm_fence_proxy();
    }}
    gm_sync();
    if (gm_warp() >= {WARPS}) {{
        {fewer}{function}_bring(xs, ws, {raw_argument}full, empty, a, first_row, first_token, stages);
        return;
    }}
    {more}const u32 group = gm_warp() / 4;
    f32 sums[{count}] = {{}};
    u32 place = 0, phase = 0, before = 0;
    {function}_multiply(xs, ws, full, place, phase, group, sums);
    GM_NO_UNROLL for (u32 stage = 1; stage < stages; stage++) {{
        place = place + 1 == {stages} ? 0 : place + 1;
        phase ^= place == 0;
        {function}_multiply(xs, ws, full, place, phase, group, sums);
        // The stage before is done, and its place is free.
        gm_wgmma_wait<1>();
        gm_sync_warp();
        if (gm_lane() == 0) gm_barrier_arrive(empty, before);
        before = place;
    }}
    gm_wgmma_wait<0>();
    gm_wgmma_done(sums);
    const u32 row = first_row + gm_warp() * 16 + gm_lane() / 4, token = first_token + gm_lane() % 4 * 2;
    f32 *const y = a.y + (u64)token * a.n + row;
    f32 bias[2];
    GM_UNROLL for (u32 i = 0; i < 2; i++)
        bias[i] = a.bias == nullptr || row + 8 * i >= a.n ? 0.0f : gm_load(a.bias + row + 8 * i);
    GM_UNROLL for (u32 i = 0; i < {count}; i++) {{
        const u32 column = i / 4 * 8 + i % 2, down = i % 4 / 2;
        if (row + down * 8 < a.n && token + column < a.m) gm_store(y + (u64)column * a.n + down * 8, sums[i] + bias[down]);
    }}
}}
GM_EXPORT({function})

",
        instruction = instruction(plan),
        round = round(plan, division, function),
        copy = copy(plan, division, function),
        bring = bring(plan, division, function),
        multiply = multiply(plan, division, function),
        barriers = division.barriers(),
        below = STAGE - 1,
        count = tokens / 2,
    )
}

/// `FUNCTION_multiply`: what the multiplying warps do with a stage.
fn multiply(plan: &RowsProduct<'_>, division: &Division, function: &str) -> String {
    let RowsProduct { precision, tokens, .. } = *plan;
    let (x_bytes, w_bytes) = division.stage_bytes();
    format!(
        "// Starts the products of the stage at `place`, once it is there.
template <class X, class W, class B>
GM_DEVICE void {function}_multiply(X &xs, W &ws, B &full, u32 place, u32 phase, u32 group, f32 (&sums)[{count}]) {{
    gm_barrier_wait(full, place, phase);
    gm_wgmma_fence();
    GM_UNROLL for (u32 step = 0; step < {STAGE} / 16; step++) {{
        const u64 w = gm_wgmma_operand(ws, place * {w_bytes} + step * {w_step} + group * 1024, {ROWS} * 16, 128);
        const u64 x = gm_wgmma_operand(xs, place * {x_bytes} + step * {x_step}, {tokens} * 16, 128);
        gm_wgmma_{precision}(sums, w, x);
    }}
    gm_wgmma_commit();
}}

",
        count = tokens / 2,
        w_step = 2 * ROWS * 16,
        x_step = 2 * tokens * 16,
    )
}

/// `gm_wgmma_f16` or `gm_wgmma_bf16` for the tile's columns.
fn instruction(plan: &RowsProduct<'_>) -> String {
    let RowsProduct { precision, tokens, .. } = *plan;
    let count = tokens / 2;
    let list = |items: Vec<String>| items.join(", ");
    let sums = list((0..count).map(|i| format!("%{i}")).collect());
    let outputs = list((0..count).map(|i| format!("\"+f\"(d[{i}])")).collect());
    format!(
        "#ifndef GM_EMULATOR
// d += a * b: 64 rows by {tokens} columns by 16 k.
GM_DEVICE void gm_wgmma_{precision}(f32 (&d)[{count}], u64 a, u64 b) {{
    asm volatile(
        \"{{\\n.reg .pred add;\\nsetp.ne.b32 add, 1, 0;\\n\"
        \"wgmma.mma_async.sync.aligned.m64n{tokens}k16.f32.{precision}.{precision} {{{sums}}}, %{a}, %{b}, add, 1, 1, 0, 0;\\n}}\"
        : {outputs}
        : \"l\"(a), \"l\"(b));
}}
#endif

",
        a = count,
        b = count + 1,
    )
}

/// `FUNCTION_round`: 32 neighbours of a row as halves.
fn round(plan: &RowsProduct<'_>, division: &Division, function: &str) -> String {
    let format = plan.format.format;
    let precision = plan.precision;
    // Blocks that are copied begin where a stage does, or every several. Where 32 neighbours are in one block, `|` lets the
    // compiler see that they are, and what a run of them has in common.
    let whole = format.elements.is_multiple_of(32);
    let (element, block) = match (division.raw, whole) {
        (Some(raw), _) if raw.elements > STAGE => ("e % ELEMENTS | (i * 8 + j)", ""),
        (Some(_), true) => ("e % ELEMENTS | (i * 8 + j)", " + e % 64 / ELEMENTS * BYTES"),
        (Some(_), false) => {
            ("(i * 8 + j) % ELEMENTS", " + (e % 64 / ELEMENTS + (i * 8 + j) / ELEMENTS) * BYTES")
        }
        (None, _) => ("(e + i * 8 + j) % ELEMENTS", " + (e + i * 8 + j) / ELEMENTS * BYTES"),
    };
    // Rows end where a block does; behind that weights are zeros. What is copied may be looked at there, and is forgotten.
    let ends = !format.elements.is_multiple_of(STAGE);
    let after = ends && division.raw.is_some() && format.elements.is_multiple_of(8);
    let inside = if ends && !after { "if (e + i * 8 + j < k) " } else { "" };
    let zero = match inside {
        "" => "",
        _ => "\n            GM_UNROLL for (u32 n = 0; n < AT_ONCE; n++) w[n] = 0.0f;",
    };
    let forget = if after {
        "    if (e + 32 > k) {
        GM_UNROLL for (u32 i = 0; i < 4; i++)
            if (e + i * 8 >= k) pieces[i] = u32x4{0, 0, 0, 0};
    }\n"
    } else {
        ""
    };
    let pairs: Vec<String> =
        (0..4).map(|i| format!("gm_two_{precision}(all[{}], all[{}])", 2 * i, 2 * i + 1)).collect();
    let unused = if !ends { "    (void)k;\n" } else { "" };
    let at_once = at_once(plan.format);
    debug_assert!(8 % at_once == 0, "whole eights");
    format!(
        "// Weights e to e + 31 of a row with k of them as halves, eight to a piece; e is a multiple of 32.
template <class Bytes>
GM_DEVICE void {function}_round(const Bytes &bytes, u32 at, u32 e, u32 k, f32 outer, u32x4 (&pieces)[4]) {{
{unused}    GM_UNROLL for (u32 i = 0; i < 4; i++) {{
        f32 all[8];
        GM_UNROLL for (u32 j = 0; j < 8; j += AT_ONCE) {{
            f32 w[AT_ONCE];{zero}
            {inside}weights(bytes, at{block}, {element}, outer, w);
            GM_UNROLL for (u32 n = 0; n < AT_ONCE; n++) all[j + n] = w[n];
        }}
        pieces[i] = u32x4{{{pairs}}};
    }}
{forget}}}

",
        pairs = pairs.join(", "),
    )
}

/// Types of a template that takes blocks in shared memory, where they are copied there, its parameter and the argument for it.
fn of_raw(division: &Division) -> (&'static str, &'static str, &'static str) {
    match division.raw {
        Some(_) => ("class X, class R, class B", "R &blocks, ", "blocks, "),
        None => ("class X, class B", "", ""),
    }
}

/// Statements that start the copies of the blocks of which stage `stage` has the first.
fn copy_raw(raw: Raw) -> String {
    let Raw { elements, bytes, pieces, stride, places } = raw;
    let unit = unit(raw);
    let when = match elements / STAGE {
        1 => String::new(),
        of_stage => format!(" && stage % {of_stage} == 0"),
    };
    let some = if pieces % 2 == 1 { format!("if (piece < {pieces}) ") } else { String::new() };
    format!(
        "
    if (stage < stages{when}) {{
        const u32 unit = {unit}, from = unit * {bytes} / 16 * 16;
        GM_UNROLL for (u32 i = 0; i < {rounds}; i++) {{
            // No row is longer than its bytes.
            const u32 piece = i * 2 + gm_lane() / 16, byte = gm_min(from + piece * 16, (u32)a.row_bytes - 16);
            const u32 to = (unit % {places} * {ROWS} + own_row) * {stride} + piece * 16;
            GM_UNROLL for (u32 r = 0; r < 2; r++)
                {some}gm_copy(blocks, to + r * 16 * {stride}, (const u32x4 *)(rows[r] + byte));
        }}
    }}",
        rounds = pieces.div_ceil(2),
    )
}

/// An expression of what is copied at once for stage `stage`.
fn unit(raw: Raw) -> String {
    match raw.elements / STAGE {
        1 => "stage".to_string(),
        of_stage => format!("stage / {of_stage}"),
    }
}

/// `FUNCTION_copy`: what starts the copies of a stage.
fn copy(plan: &RowsProduct<'_>, division: &Division, function: &str) -> String {
    let tokens = plan.tokens;
    let (x_bytes, _) = division.stage_bytes();
    let (types, parameter, _) = of_raw(division);
    let tokens_of_thread = tokens / 8 / BRINGING;
    let copy_raw = division.raw.map_or(String::new(), copy_raw);
    format!(
        "// Starts copies of stage `stage` of the tokens to `place`, once that is empty, and of blocks that begin with the stage.
template <{types}>
GM_DEVICE void {function}_copy(
    X &xs, {parameter}B &empty, const Rows &a, const u16 *(&x)[{tokens_of_thread}], const u8 *const (&rows)[2],
    u32 own_row, u32 stage, u32 stages, u32 place, u32 phase
) {{
    (void)rows; (void)own_row;
    if (stage < stages) {{
        gm_barrier_wait(empty, place, phase);
        // Activations have room for half a stage; where that is all, weights are zeros.
        const u32 half = stage * {STAGE} + 32 < a.x_stride ? 32 : 0;
        const u32 to = place * {x_bytes} + (gm_lane() / 8 * {tokens} + (gm_warp() - {WARPS}) * 8 + gm_lane() % 8) * 16;
        GM_UNROLL for (u32 i = 0; i < {tokens_of_thread}; i++) {{
            gm_copy(xs, to + i * {BRINGING} * 128, (const u32x4 *)x[i]);
            gm_copy(xs, to + i * {BRINGING} * 128 + 4 * {tokens} * 16, (const u32x4 *)(x[i] + half));
            x[i] += {STAGE};
        }}
    }}{copy_raw}
    gm_copy_commit();
}}

"
    )
}

/// `FUNCTION_bring`: what the bringing warps do.
fn bring(plan: &RowsProduct<'_>, division: &Division, function: &str) -> String {
    let (_, w_bytes) = division.stage_bytes();
    let Division { stages, ahead, raw, .. } = *division;
    let (types, parameter, argument) = of_raw(division);
    let tokens_of_thread = plan.tokens / 8 / BRINGING;
    let source = match raw {
        Some(raw @ Raw { bytes, stride, places, .. }) => {
            let unit = unit(raw);
            format!(
                "const u32 unit = {unit}, at = (unit % {places} * {ROWS} + own_row + r * 16) * {stride} + unit * {bytes} % 16;
            {function}_round(blocks, at, stage * {STAGE} + half * 32, a.k, outer[r], pieces);"
            )
        }
        None => format!("{function}_round(rows[r], 0, stage * {STAGE} + half * 32, a.k, outer[r], pieces);"),
    };
    format!(
        "// Brings stage after stage.
template <{types}, class W>
GM_DEVICE void {function}_bring(
    X &xs, W &ws, {parameter}B &full, B &empty, const Rows &a, u32 first_row, u32 first_token, u32 stages
) {{
    // A lane has a half of a stage of two rows. Rows and tokens beyond the last are the last once more.
    const u32 own_row = (gm_warp() - {WARPS}) * 32 + gm_lane() % 16, half = gm_lane() / 16;
    const u8 *rows[2];
    f32 outer[2];
    GM_UNROLL for (u32 r = 0; r < 2; r++) {{
        const u32 row = gm_min(first_row + own_row + r * 16, a.n - 1);
        rows[r] = a.blocks + row * a.row_bytes;
        outer[r] = gm_load(a.outer + row);
    }}
    const u16 *x[{tokens_of_thread}];
    GM_UNROLL for (u32 i = 0; i < {tokens_of_thread}; i++) {{
        const u32 token = first_token + (i * {BRINGING} + gm_warp() - {WARPS}) * 8 + gm_lane() % 8;
        x[i] = (const u16 *)a.x + gm_min(token, a.m - 1) * a.x_stride + gm_lane() / 8 * 8;
    }}
    u32 place = 0, to = {ahead}, phase = 1;
    GM_UNROLL for (u32 i = 0; i < {ahead}; i++) {function}_copy(xs, {argument}empty, a, x, rows, own_row, i, stages, i, 1);
    GM_NO_UNROLL for (u32 stage = 0; stage < stages; stage++) {{
        {function}_copy(xs, {argument}empty, a, x, rows, own_row, stage + {ahead}, stages, to, phase);
        gm_copy_wait<{ahead}>();
        // The warp's other lanes have copied too.
        gm_sync_warp();
        GM_UNROLL for (u32 r = 0; r < 2; r++) {{
            u32x4 pieces[4];
            {source}
            GM_UNROLL for (u32 i = 0; i < 4; i++)
                gm_shared_put(ws, place * {w_bytes} + ((half * 4 + i) * {ROWS} + own_row + r * 16) * 16, pieces[i]);
        }}
        gm_fence_proxy();
        gm_sync_warp();
        if (gm_lane() == 0) gm_barrier_arrive(full, place);
        place = place + 1 == {stages} ? 0 : place + 1;
        to = to + 1 == {stages} ? 0 : to + 1;
        phase ^= to == 0;
    }}
}}

",
    )
}
