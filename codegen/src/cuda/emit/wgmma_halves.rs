//! `wgmma_f16` and `wgmma_bf16`: many tokens on Hopper. The kernel stands in `wgmma_halves.h`; here is what it takes of a format and a
//! tile.

use super::accumulators::Accumulators;
use super::division::{BARRIERS, Division, ROWS, Raw, STAGE};
use super::parameters::exported;
use super::rows_product::{RowsProduct, at_once};
use crate::text::joined;

/// Threads of a CUDA block: three warpgroups.
const THREADS: u32 = 384;
/// What stands in front of the unit's kernels.
pub const VOCABULARY: &str =
    concat!(include_str!("../../../cuda/hopper.h"), include_str!("../../../cuda/wgmma_halves.h"));

/// The kernel, and the instruction for as many columns as it has tokens.
pub fn emit(plan: &RowsProduct<'_>, division: &Division, function: &str) -> String {
    let (x_bytes, w_bytes) = division.stage_bytes();
    let Division { stages, raw, .. } = *division;
    let (raw_array, blocks) = match raw {
        Some(raw) => (
            format!(
                "\n    GM_SHARED_FROM(u8, blocks, {}, {});",
                raw.places * ROWS * raw.stride,
                division.blocks()
            ),
            "blocks",
        ),
        None => (String::new(), "NoBlocks{}"),
    };
    let body = format!(
        "    GM_SHARED_FROM(u8, xs, {stages} * {x_bytes}, 0);
    GM_SHARED_FROM(u8, ws, {stages} * {w_bytes}, {stages} * {x_bytes});{raw_array}
    GM_SHARED_FROM(u64, full, {stages}, {barriers});
    GM_SHARED_FROM(u64, empty, {stages}, {barriers} + {BARRIERS});
    products_of_halves<{function}_tile>(xs, ws, {blocks}, full, empty, a);
",
        barriers = division.barriers(),
    );
    let kernel = exported(&format!("GM_KERNEL({THREADS})"), function, "const Rows a", &body);
    format!("{}{}{kernel}\n", instruction(plan), tile(plan, division, function))
}

/// What the kernel says of itself.
fn tile(plan: &RowsProduct<'_>, division: &Division, function: &str) -> String {
    let RowsProduct { precision, tokens, .. } = *plan;
    let (x_bytes, w_bytes) = division.stage_bytes();
    let Division { stages, ahead, raw, registers, .. } = *division;
    let (more, fewer) = registers.unwrap_or_default();
    let raw = match raw {
        Some(Raw { elements, bytes, pieces, stride, places }) => format!(
            "
    static constexpr u32 RAW_ELEMENTS = {elements}, RAW_BYTES = {bytes}, RAW_PIECES = {pieces}, RAW_STRIDE = {stride}, RAW_PLACES = {places};"
        ),
        None => "\n    static constexpr u32 RAW_ELEMENTS = 0;".to_string(),
    };
    format!(
        "struct {function}_tile {{
    static constexpr u32 ROWS = {ROWS}, TOKENS = {tokens}, STAGE = {STAGE}, X_BYTES = {x_bytes}, W_BYTES = {w_bytes};
    static constexpr u32 STAGES = {stages}, AHEAD = {ahead}, MORE = {more}, FEWER = {fewer};{raw}
    static constexpr bool ENDS_WITHIN = {ends_within};
    GM_DEVICE void multiply(f32 (&sums)[{count}], u64 w, u64 x) {{ gm_wgmma_{precision}(sums, w, x); }}
{round}}};

",
        count = tokens / 2,
        ends_within = ends_within(plan, division),
        round = round(plan, division),
    )
}

/// `gm_wgmma_f16` or `gm_wgmma_bf16` for the tile's columns.
fn instruction(plan: &RowsProduct<'_>) -> String {
    let RowsProduct { precision, tokens, .. } = *plan;
    let count = tokens / 2;
    let Accumulators { operands: sums, outputs } = Accumulators::new(count, 'f');
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

/// Whether rows may end within a stage, where `round` may look at what is behind their end: that is in shared memory.
fn ends_within(plan: &RowsProduct<'_>, division: &Division) -> bool {
    let elements = plan.format.format.elements;
    !elements.is_multiple_of(STAGE) && elements.is_multiple_of(8) && division.raw.is_some()
}

/// `round`: 32 neighbours of a row as halves.
fn round(plan: &RowsProduct<'_>, division: &Division) -> String {
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
    let [inside, zero, unused] = match format.elements.is_multiple_of(STAGE) || ends_within(plan, division) {
        true => ["", "", "    (void)k;\n"],
        false => {
            let zero = "\n            GM_UNROLL for (u32 n = 0; n < AT_ONCE; n++) w[n] = 0.0f;";
            ["if (e + i * 8 + j < k) ", zero, ""]
        }
    };
    let pairs =
        joined((0..4).map(|i| format!("gm_two_{precision}(all[{}], all[{}])", 2 * i, 2 * i + 1)), ", ");
    let at_once = at_once(plan.format);
    debug_assert!(8 % at_once == 0, "whole eights");
    format!(
        "// Weights e to e + 31 of a row with k of them as halves, eight to a piece; e is a multiple of 32.
template <class Bytes>
GM_DEVICE void round(const Bytes &bytes, u32 at, u32 e, u32 k, f32 outer, u32x4 (&pieces)[4]) {{
{unused}    GM_UNROLL for (u32 i = 0; i < 4; i++) {{
        f32 all[8];
        GM_UNROLL for (u32 j = 0; j < 8; j += AT_ONCE) {{
            f32 w[AT_ONCE];{zero}
            {inside}weights(bytes, at{block}, {element}, outer, w);
            GM_UNROLL for (u32 n = 0; n < AT_ONCE; n++) all[j + n] = w[n];
        }}
        pieces[i] = u32x4{{{pairs}}};
    }}
}}
",
    )
}
