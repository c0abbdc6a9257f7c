//! `mma_f16` and `mma_bf16`: many tokens. The threads of a CUDA block round a stage of its rows' weights to halves in shared
//! memory while tensor cores multiply the stage before; activations are copied there two stages ahead.
//!
//! A row of a stage is 64 bytes, of which a lane takes the sixteen that start at 16 t: what `mma.m16n8k16` calls k 2t, 2t+1,
//! 2t+8 and 2t+9 of two steps are then eight neighbours, in weights and activations alike, so that each is one load for
//! two steps and no bank is asked twice.

use super::rows_product::{RowsProduct, at_once};

/// k of a stage: two steps of `mma.m16n8k16`.
pub const STAGE: u32 = 32;
/// Rows of a warp: two tiles of `mma`.
const WARP_ROWS: u32 = 32;
/// Tokens of a warp, at most.
const WARP_TOKENS: u32 = 64;
/// What stands in front of the kernels.
pub const TILE: &str = include_str!("../../../cuda/mma_tile.h");
/// Stages of activations in shared memory: one in use, two on their way.
const X_STAGES: u32 = 3;

/// Warps that share a row.
fn warps_across(tokens: u32) -> u32 {
    tokens.div_ceil(WARP_TOKENS).max(1)
}

/// Rows that a CUDA block does.
pub fn rows(threads: u32, tokens: u32) -> u32 {
    threads / 32 / warps_across(tokens) * WARP_ROWS
}

/// Shared memory of a CUDA block: two stages of weights, three of activations.
pub fn shared_bytes(rows: u32, tokens: u32) -> u32 {
    (2 * rows + X_STAGES * tokens) * STAGE * 2
}

/// The kernel.
pub fn emit(plan: &RowsProduct<'_>, function: &str) -> String {
    format!("{}{}", stages(plan, function), kernel(plan, function))
}

/// Statements that make `halves` of eight neighbours of a row.
fn eight_halves(plan: &RowsProduct<'_>) -> String {
    let precision = plan.precision;
    // Weights behind the end of a row are zeros; whole runs of AT_ONCE are.
    let run = "GM_UNROLL for (u32 i = 0; i < AT_ONCE; i++) w[i] = 0.0f;
            if (e + j < a.k) weights(bytes, (e + j) / ELEMENTS * BYTES, (e + j) % ELEMENTS, outer, w);";
    if at_once(plan.format) == 8 {
        format!(
            "f32 w[AT_ONCE];
            const u32 j = 0;
            {run}
            halves = u32x4{{gm_two_{precision}(w[0], w[1]), gm_two_{precision}(w[2], w[3]), gm_two_{precision}(w[4], w[5]), gm_two_{precision}(w[6], w[7])}};"
        )
    } else {
        format!(
            "f32 all[8];
        GM_UNROLL for (u32 j = 0; j < 8; j += AT_ONCE) {{
            f32 w[AT_ONCE];
            {run}
            GM_UNROLL for (u32 i = 0; i < AT_ONCE; i++) all[j + i] = w[i];
        }}
            halves = u32x4{{gm_two_{precision}(all[0], all[1]), gm_two_{precision}(all[2], all[3]), gm_two_{precision}(all[4], all[5]), gm_two_{precision}(all[6], all[7])}};"
        )
    }
}

/// `FUNCTION_copy` and `FUNCTION_round`: what brings a stage to shared memory.
fn stages(plan: &RowsProduct<'_>, function: &str) -> String {
    let RowsProduct { threads, rows, tokens, .. } = *plan;
    format!(
        "enum : u32 {{ {function}_ROWS = {rows}, {function}_TOKENS = {tokens}, {function}_TILES = {tiles} }};

// Starts copies of stage `stage` of the tokens' activations, which have room for whole stages. Out-of-range tokens
// are clamped; their results are discarded.
GM_DEVICE void {function}_copy(const Rows &a, GM_SHARED_ARRAY(u16) x, u32 stage, u32 first_token) {{
    if (stage * {STAGE} < a.k) {{
        GM_UNROLL for (u32 i = gm_thread(); i < {function}_TOKENS * 4; i += {threads}) {{
            const u32 token = gm_min(first_token + i / 4, a.m - 1);
            const u16 *from = (const u16 *)a.x + token * a.x_stride + stage * {STAGE} + i % 4 * 8;
            gm_copy(x, (stage % {X_STAGES} * {function}_TOKENS * 4 + i) * 8, (const u32x4 *)from);
        }}
    }}
    gm_copy_commit();
}}

// Rounds stage `stage` of the rows' weights into shared memory, eight neighbours of a row at a time.
GM_DEVICE void {function}_round(const Rows &a, GM_SHARED_ARRAY(u16) rows, u32 stage, u32 first_row) {{
    GM_UNROLL for (u32 i = gm_thread(); i < {function}_ROWS * 4; i += {threads}) {{
        const u32 row = gm_min(first_row + i / 4, a.n - 1), e = stage * {STAGE} + i % 4 * 8;
        const u8 *bytes = a.blocks + row * a.row_bytes;
        const f32 outer = gm_load(a.outer + row);
        u32x4 halves;
        {{
            {eight_halves}
        }}
        gm_shared_put(rows, (stage % 2 * {function}_ROWS * 4 + i) * 8, halves);
    }}
}}

",
        tiles = tokens / warps_across(tokens) / 8,
        eight_halves = eight_halves(plan),
    )
}

fn kernel(plan: &RowsProduct<'_>, function: &str) -> String {
    let RowsProduct { precision, threads, tokens, .. } = *plan;
    format!(
        "GM_KERNEL_WIDE({threads}) {function}(Rows a) {{
    GM_SHARED(u16, rows, 2 * {function}_ROWS * {STAGE});
    GM_SHARED(u16, x, {X_STAGES} * {function}_TOKENS * {STAGE});
    const u32 first_row = gm_block() * {function}_ROWS, first_token = gm_block_y() * {function}_TOKENS;
    const u32 stages = (a.k + {below}) / {STAGE};
    const u32 row = gm_warp() / {across} * {WARP_ROWS}, token = gm_warp() % {across} * ({function}_TILES * 8);
    const u32 g = gm_lane() / 4, t = gm_lane() % 4;
    f32 sums[2][{function}_TILES][4];
    GM_UNROLL for (u32 i = 0; i < 2; i++)
        GM_UNROLL for (u32 j = 0; j < {function}_TILES; j++)
            GM_UNROLL for (u32 c = 0; c < 4; c++) sums[i][j][c] = 0.0f;
    {function}_copy(a, x, 0, first_token);
    {function}_copy(a, x, 1, first_token);
    // Weights of a stage are rounded before the stage in front of it is multiplied.
    GM_NO_UNROLL for (u32 next = 0; next <= stages; next++) {{
        if (next > 0) {{
            gm_copy_wait<1>();
            // All see the stage, and all are through the one before, whose places are filled now.
            gm_sync();
            {function}_copy(a, x, next + 1, first_token);
        }}
        if (next < stages) {function}_round(a, rows, next, first_row);
        if (next == 0) continue;
        const u32 stage = next - 1;
        u32x4 w[4];
        GM_UNROLL for (u32 i = 0; i < 4; i++)
            w[i] = gm_shared_get<u32x4>(rows, ((stage % 2 * {function}_ROWS + row + 8 * i + g) * 4 + t) * 8);
        GM_UNROLL for (u32 j = 0; j < {function}_TILES; j++) {{
            const u32x4 v = gm_shared_get<u32x4>(x, ((stage % {X_STAGES} * {function}_TOKENS + token + 8 * j + g) * 4 + t) * 8);
            GM_UNROLL for (u32 i = 0; i < 2; i++) {{
                const u32 a0[4] = {{w[2 * i].x, w[2 * i + 1].x, w[2 * i].y, w[2 * i + 1].y}}, b0[2] = {{v.x, v.y}};
                const u32 a1[4] = {{w[2 * i].z, w[2 * i + 1].z, w[2 * i].w, w[2 * i + 1].w}}, b1[2] = {{v.z, v.w}};
                gm_mma_16816_{precision}(sums[i][j], a0, b0);
                gm_mma_16816_{precision}(sums[i][j], a1, b1);
            }}
        }}
    }}
    store_tile(a, sums, first_row + row, first_token + token);
}}
GM_EXPORT({function})

",
        across = warps_across(tokens),
        below = STAGE - 1,
    )
}
