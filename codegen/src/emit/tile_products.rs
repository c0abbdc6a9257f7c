//! Products of one tile of k by a matrix unit, and where their sums are.

use super::sums::needs_sum;
use crate::plan::{MatmulPlan, TileOperands, TileSums, Tiles};

/// The call that adds the products of one tile of k to the sums: activations from `x` on (an expression), operands from element `from` on, for so
/// many `vectors` of rows and tiles of `tokens`.
pub(super) fn add(tiles: &Tiles, x: &str, from: &str, vectors: &str, tokens: &str) -> String {
    let operands = format!(
        "amx::Operands {{
             x: {x},
             x_stride: a.x_stride,
             w: operands.add({from} * ROWS),
             w_stride: 4 * ROWS,
         }}"
    );
    match tiles.operands {
        TileOperands::Differences => format!("amx::unsigned::<{vectors}, {tokens}>({operands});"),
        TileOperands::Values | TileOperands::Scaled => {
            format!("amx::signed::<{vectors}, {tokens}>({operands});")
        }
        TileOperands::Digits => format!("amx::digits::<{vectors}>({operands}, HIGH);"),
        TileOperands::SplitIntegers(_) => format!("amx::unsigned_digits::<{vectors}>({operands}, HIGH);"),
    }
}

/// The integer sum of a token (an expression) and vector `i` in `sums`.
pub(super) fn sum_of(token: &str) -> String {
    format!("simd::load(sums.add(({token} * V + i) * LANES).cast())")
}

/// Whether integer sums lack the zero-point correction.
pub(super) fn uncorrected(plan: &MatmulPlan<'_>, tiles: &Tiles) -> bool {
    tiles.operands == TileOperands::Differences && needs_sum(plan)
}

/// The most tokens that are multiplied at once.
pub(super) fn tokens_at_once(tiles: &Tiles) -> &'static str {
    if tiles.operands.in_digits() || tiles.sums == TileSums::InRegisters {
        "amx::TOKENS"
    } else {
        "(2 * amx::TOKENS)"
    }
}
