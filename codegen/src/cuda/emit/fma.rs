//! `fma`: few tokens, weights and products in f32. The threads of a CUDA block share the k of four rows, so that an
//! activation is read once for them; integers are multiplied as they are, and the run's scale comes in once for all that a
//! thread takes.

use super::rows_product::{RowsProduct, at_once};
use crate::plan::FormatPlan;

/// Rows that a CUDA block does.
pub const ROWS: u32 = 4;

/// Shared memory of a CUDA block: a sum of each warp for each output.
pub fn shared_bytes(threads: u32, tokens: u32) -> u32 {
    threads / 32 * ROWS * tokens * 4
}

/// Statements that load `AT_ONCE` activations at `from`: four at a time where they come in fours.
fn loads(fours: bool, four: &str, one: &str) -> String {
    if fours {
        format!("GM_UNROLL for (u32 j = 0; j < AT_ONCE; j += 4) {{\n            {four}\n        }}")
    } else {
        format!("GM_UNROLL for (u32 j = 0; j < AT_ONCE; j++) {{\n            {one}\n        }}")
    }
}

/// `activations`: from each of the types.
fn activations(fours: bool) -> String {
    let of_f32 = loads(
        fours,
        "const f32x4 v = gm_load((const f32x4 *)(from + j));
            x[j] = v.x; x[j + 1] = v.y; x[j + 2] = v.z; x[j + 3] = v.w;",
        "x[j] = gm_load(from + j);",
    );
    let of_halves = loads(
        fours,
        "const u32x2 v = gm_load((const u32x2 *)(from + j));
            const u32 two[2] = {v.x, v.y};
            GM_UNROLL for (u32 h = 0; h < 4; h++) {
                const u16 bits = (u16)(two[h / 2] >> (16 * (h % 2)));
                x[j + h] = f16 ? gm_f16_to_f32(bits) : gm_bf16_to_f32(bits);
            }",
        "const u16 bits = gm_load(from + j);
            x[j] = f16 ? gm_f16_to_f32(bits) : gm_bf16_to_f32(bits);",
    );
    format!(
        "// AT_ONCE activations from element i on.
GM_DEVICE void activations(const Rows &a, u64 i, f32 (&x)[AT_ONCE]) {{
    if (a.x_type == 0) {{
        const f32 *from = (const f32 *)a.x + i;
        {of_f32}
    }} else {{
        const u16 *from = (const u16 *)a.x + i;
        const bool f16 = a.x_type == 1;
        {of_halves}
    }}
}}

"
    )
}

/// What stands before the kernels of a unit.
pub fn prelude(plan: &FormatPlan<'_>) -> String {
    activations(at_once(plan).is_multiple_of(4))
}

/// The kernel.
pub fn emit(plan: &RowsProduct<'_>, function: &str) -> String {
    let format = plan.format;
    // With an offset, the f32 that the format says is the difference; a factor for all would say another number.
    let (read, scaled) = if format.offset {
        ("weights(bytes, at, in_block, gm_load(a.outer + row), q[r]);", "y[r][t] += part;")
    } else {
        (
            "integers(bytes, at, in_block, q[r]);
            s[r] = factor(bytes, at, in_block, gm_load(a.outer + row));",
            "y[r][t] = gm_fma(s[r], part, y[r][t]);",
        )
    };
    let scales = if format.offset { "" } else { "\n        f32 s[4];" };
    format!(
        "enum : u32 {{ {function}_TOKENS = {tokens} }};

GM_KERNEL_WIDE({threads}) {function}(Rows a) {{
    GM_SHARED(f32, sums, {warps} * {ROWS} * {function}_TOKENS);
    const u32 first_row = gm_block() * {ROWS}, first_token = gm_block_y() * {function}_TOKENS;
    f32 y[{ROWS}][{function}_TOKENS];
    GM_UNROLL for (u32 r = 0; r < {ROWS}; r++) GM_UNROLL for (u32 t = 0; t < {function}_TOKENS; t++) y[r][t] = 0.0f;
    GM_NO_UNROLL for (u32 e = gm_thread() * AT_ONCE; e < a.k; e += gm_threads() * AT_ONCE) {{
        const u32 at = e / ELEMENTS * BYTES, in_block = e % ELEMENTS;
        f32 q[{ROWS}][AT_ONCE];{scales}
        GM_UNROLL for (u32 r = 0; r < {ROWS}; r++) {{
            // Out-of-range rows are clamped; their results are discarded.
            const u32 row = gm_min(first_row + r, a.n - 1);
            const u8 *bytes = a.blocks + row * a.row_bytes;
            {read}
        }}
        GM_UNROLL for (u32 t = 0; t < {function}_TOKENS; t++) {{
            if (first_token + t >= a.m) continue;
            f32 x[AT_ONCE];
            const u64 i = (first_token + t) * a.x_stride + e;
            activations(a, i, x);
            if (gm_block() == 0) {{
                GM_UNROLL for (u32 j = 0; j < AT_ONCE; j++)
                    if (!gm_is_finite(x[j])) gm_atomic_min(a.fault, (a.x_first + (first_token + t) * (u64)a.k + e + j) * 4);
            }}
            GM_UNROLL for (u32 r = 0; r < {ROWS}; r++) {{
                f32 part = 0.0f;
                GM_UNROLL for (u32 j = 0; j < AT_ONCE; j++) part = gm_fma(q[r][j], x[j], part);
                {scaled}
            }}
        }}
    }}
    GM_UNROLL for (u32 r = 0; r < {ROWS}; r++) {{
        GM_UNROLL for (u32 t = 0; t < {function}_TOKENS; t++) {{
            f32 v = y[r][t];
            GM_UNROLL for (u32 mask = 16; mask > 0; mask /= 2) v += gm_shfl_xor(v, mask);
            if (gm_lane() == 0) sums[(gm_warp() * {ROWS} + r) * {function}_TOKENS + t] = v;
        }}
    }}
    gm_sync();
    const u32 row = first_row + gm_thread() / {function}_TOKENS, token = first_token + gm_thread() % {function}_TOKENS;
    if (gm_thread() < {ROWS} * {function}_TOKENS && row < a.n && token < a.m) {{
        f32 v = 0.0f;
        for (u32 w = 0; w < gm_threads() / 32; w++) v += sums[w * {ROWS} * {function}_TOKENS + gm_thread()];
        gm_store(a.y + (u64)token * a.n + row, a.bias == nullptr ? v : v + gm_load(a.bias + row));
    }}
}}
GM_EXPORT({function})

",
        tokens = plan.tokens,
        threads = plan.threads,
        warps = plan.threads / 32,
    )
}
