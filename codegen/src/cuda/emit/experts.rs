//! What experts need around their products: activations brought together by expert, and results on their way back.

use super::parameters::parameters;
use gristmill_spec::vocab::CudaAbi;

/// Name of the translation unit.
pub const EXPERTS: &str = "experts";
/// The kernel that brings rows of activations together.
pub const GATHER: &str = "gather";
/// The kernel that brings results to their places, or adds them up.
pub const COMBINE: &str = "combine";
/// Threads of a CUDA block of both.
pub const THREADS: u32 = 256;

/// The text. Sums are taken in the order of a token's list, each step rounded to f32, as the processor does.
pub fn emit() -> String {
    let (gather, combine) = (parameters(&CudaAbi::GATHER), parameters(&CudaAbi::COMBINE));
    format!(
        "// Row i of the result is row rows[i]: int8 values by words of four, scales of blocks, sums of units. A CUDA block has a row at a time.
GM_KERNEL({THREADS}) {GATHER}({gather}) {{
    for (u32 i = gm_block(); i < count; i += gm_blocks()) {{
        const u64 from = gm_load(rows + i);
        for (u32 word = gm_thread(); word < words; word += {THREADS})
            gm_store(q_to + (u64)i * words + word, gm_load(q + from * words + word));
        for (u32 block = gm_thread(); block < blocks; block += {THREADS})
            gm_store(scales_to + (u64)i * blocks + block, gm_load(scales + from * blocks + block));
        for (u32 unit = gm_thread(); unit < units; unit += {THREADS})
            gm_store(sums_to + (u64)i * units + unit, gm_load(sums + from * units + unit));
    }}
}}
GM_EXPORT({GATHER})

// Row i of y is that of the product places[i]; with weights, the sum of those of pairs ends[i - 1] to ends[i].
GM_KERNEL({THREADS}) {COMBINE}({combine}) {{
    const u64 all = (u64)count * n;
    for (u64 at = (u64)gm_block() * {THREADS} + gm_thread(); at < all; at += (u64)gm_blocks() * {THREADS}) {{
        const u32 row = (u32)(at / n), column = (u32)(at % n);
        f32 sum = 0.0f;
        if (weights == nullptr) {{
            sum = gm_load(products + (u64)gm_load(places + row) * n + column);
        }} else {{
            const u32 end = gm_load(ends + row);
            for (u32 pair = row == 0 ? 0 : gm_load(ends + row - 1); pair < end; pair++)
                sum = sum + gm_load(weights + pair) * gm_load(products + (u64)gm_load(places + pair) * n + column);
        }}
        gm_store(y + at, sum);
    }}
}}
GM_EXPORT({COMBINE})
"
    )
}
