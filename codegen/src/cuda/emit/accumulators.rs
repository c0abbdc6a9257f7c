//! The accumulators of a `wgmma` instruction, as its assembler text names them.

use crate::text::joined;

/// Those of an instruction, from operand 0 on.
pub(super) struct Accumulators {
    /// As operands of the instruction.
    pub(super) operands: String,
    /// As outputs of the statement: elements of `d`.
    pub(super) outputs: String,
}

impl Accumulators {
    /// `count` of them, in registers of the kind `constraint`.
    pub(super) fn new(count: u32, constraint: char) -> Accumulators {
        Accumulators {
            operands: joined((0..count).map(|i| format!("%{i}")), ", "),
            outputs: joined((0..count).map(|i| format!("\"+{constraint}\"(d[{i}])")), ", "),
        }
    }
}
