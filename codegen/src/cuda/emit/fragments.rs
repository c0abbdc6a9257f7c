//! Packed codes in fragment order: from loads of sixteen bytes a lane to operands of `mma` and `wgmma`, and `mma`'s products of them.

use super::operands::{WORDS, fields};
use super::product::CudaMatmul;
use std::fmt::Write;

/// Loads of sixteen bytes a lane that a tile takes.
pub(super) fn loads(plan: &CudaMatmul<'_>) -> u32 {
    plan.pack.tile.bytes / 512
}

/// Expressions of the sixteen bytes of a lane in each load of tile `tile` of `ws`, in shared memory.
pub(super) fn staged(plan: &CudaMatmul<'_>, tile: &str) -> Vec<String> {
    let bytes = plan.pack.tile.bytes;
    let load =
        |part: u32| format!("gm_shared_get<u32x4>(ws, ({tile}) * {bytes} + {} + gm_lane() * 16)", part * 512);
    (0..loads(plan)).map(load).collect()
}

/// A statement that binds `weights[2][4]`, operands of both halves of 32 rows, from a tile's `w`.
pub(super) fn fragments(plan: &CudaMatmul<'_>, step: u32) -> String {
    let mut out = String::from("        const u32 weights[2][4] = {");
    for half in 0..2usize {
        out.push_str(if half == 0 { "{" } else { "}, {" });
        let operands: Vec<String> = match plan.pack.bits() {
            2 => {
                let low = fields(plan, &format!("w[0].{}", WORDS[2 * step as usize]));
                let high = fields(plan, &format!("w[0].{}", WORDS[2 * step as usize + 1]));
                vec![
                    low[2 * half].clone(),
                    low[2 * half + 1].clone(),
                    high[2 * half].clone(),
                    high[2 * half + 1].clone(),
                ]
            }
            4 => {
                let low = fields(plan, &format!("w[0].{}", WORDS[2 * half]));
                let high = fields(plan, &format!("w[0].{}", WORDS[2 * half + 1]));
                vec![low[0].clone(), low[1].clone(), high[0].clone(), high[1].clone()]
            }
            _ => [0, 2, 1, 3].map(|word| format!("w[{half}].{}", WORDS[word])).to_vec(),
        };
        out.push_str(&operands.join(", "));
    }
    out.push_str("}};\n");
    out
}

/// Statements that multiply a tile's weights `w` with `columns` columns of eight tokens into `sums`. `x` is an expression of the eight
/// bytes of a lane's token of column `c`, by the number of 32 k in the tile.
pub(super) fn products(plan: &CudaMatmul<'_>, columns: u32, x: impl Fn(u32) -> String) -> String {
    let mut out = String::new();
    for step in 0..plan.pack.tile.k / 32 {
        let _ = write!(
            out,
            "        {{
{weights}        GM_UNROLL for (u32 c = 0; c < {columns}; c++) {{
            const u32x2 x = {x};
            const u32 b[2] = {{x.x, x.y}};
            gm_mma_16832_us(sums[0][c], weights[0], b);
            gm_mma_16832_us(sums[1][c], weights[1], b);
        }}
        }}
",
            weights = fragments(plan, step),
            x = x(step),
        );
    }
    out
}
