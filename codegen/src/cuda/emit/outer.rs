//! What stands outside of blocks: a row's header, a tensor's tail.

use super::parameters::enumerators;
use crate::lower::ir::u32;
use crate::lower::stored;
use crate::plan::FormatPlan;
use crate::print::cuda;
use crate::text::joined;
use gristmill_spec::model::{Format, Scalar};

/// Bytes before the blocks of a row.
pub fn header_bytes(format: &Format) -> u32 {
    format.row_header.map_or(0, |scalar| scalar.bits() / 8)
}

/// An expression of the scalar of type `scalar` at byte pointer `at`.
fn load_scalar(scalar: Scalar, at: &str) -> String {
    let bytes =
        joined((0..scalar.bits() / 8).map(|b| format!("(u32)gm_load({at} + {b}) << {}", 8 * b)), " | ");
    cuda::expr(&stored::widened(scalar, u32(bytes)))
}

/// `HEADER`, and `outer_of`: the factor that a row's or the tensor's number is.
pub fn emit(plan: &FormatPlan<'_>) -> String {
    let format = plan.format;
    let outer = match (plan.uses_outer(), format.row_header, format.tensor_tail) {
        (true, Some(scalar), _) => load_scalar(scalar, "row"),
        (true, None, Some((scalar, _))) => load_scalar(scalar, "tail"),
        (true, None, None) | (false, _, _) => "1.0f".to_string(),
    };
    format!(
        "// Bytes in front of a row's blocks.
{}
// The factor outside of the blocks of the row at `row`, of a tensor whose rows end at `tail`.
GM_DEVICE f32 outer_of([[maybe_unused]] const u8 *row, [[maybe_unused]] const u8 *tail) {{ return {outer}; }}

",
        enumerators(&[("HEADER", header_bytes(format))]),
    )
}
