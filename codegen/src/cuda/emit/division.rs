//! How a CUDA block of `wgmma_f16` and `wgmma_bf16` uses shared memory.

use super::tiles::{most_shared, registers_in_words, shared_out};
use crate::plan::FormatPlan;

/// Rows of a CUDA block, 64 for each multiplying warpgroup.
pub const ROWS: u32 = 128;

/// k of a stage: four steps of `wgmma`.
pub const STAGE: u32 = 64;

/// Registers of a thread that multiplies and has 128 sums, of three warpgroups; one that rounds has the rest.
const MORE: u32 = 176;

/// Bytes of the barriers of one kind, of four stages at most.
pub(super) const BARRIERS: u32 = 32;

/// A format's own blocks in shared memory, by row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw {
    /// Elements that are copied at a time: whole blocks and whole stages.
    pub(super) elements: u32,
    /// Their bytes.
    pub(super) bytes: u32,
    /// Copies of sixteen bytes that they take, wherever they start.
    pub(super) pieces: u32,
    /// Bytes from one row to the next: an odd number of sixteens, so that rows are in different banks.
    pub(super) stride: u32,
    /// How many such runs of elements stand there.
    pub(super) places: u32,
}

/// How a CUDA block uses its shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Division {
    /// Stages in shared memory.
    pub(super) stages: u32,
    /// Stages that are copied ahead of the one that is rounded.
    pub(super) ahead: u32,
    /// Where blocks don't fit stages, or shared memory, they are read from global memory.
    pub(super) raw: Option<Raw>,
    /// Registers of a thread that multiplies and of one that rounds, where they are not shared out evenly.
    pub(super) registers: Option<(u32, u32)>,
    tokens: u32,
}

impl Division {
    /// The division for a tile of so many tokens.
    pub fn new(plan: &FormatPlan<'_>, tokens: u32) -> Division {
        let all = [(4, 2), (3, 1)].into_iter();
        // Sums of 256 tokens are more registers than a thread's even share.
        let registers = (tokens > 128).then_some(shared_out(MORE));
        let with = |(stages, ahead)| {
            let raw = Raw::new(plan, ahead);
            Division { stages, ahead, raw, registers, tokens }
        };
        let fitting = all.map(with).find(|all| all.raw.is_some() && all.shared_bytes() <= most_shared(1));
        fitting.unwrap_or(Division { stages: 4, ahead: 2, raw: None, registers, tokens })
    }

    /// Shared memory of a CUDA block.
    pub fn shared_bytes(&self) -> u32 {
        self.barriers() + 2 * BARRIERS
    }

    /// In words.
    pub fn describe(&self) -> String {
        let blocks = if self.raw.is_some() { "blocks copied there" } else { "blocks read in place" };
        let registers = registers_in_words(self.registers);
        format!(
            "two warpgroups of 64 rows each and one that rounds weights{registers}; {} stages of {STAGE} k in shared memory, {blocks}",
            self.stages
        )
    }

    /// Bytes of a stage's tokens, of its rows.
    pub(super) fn stage_bytes(&self) -> (u32, u32) {
        (self.tokens * STAGE * 2, ROWS * STAGE * 2)
    }

    /// Where the blocks begin, and where the barriers do.
    pub(super) fn blocks(&self) -> u32 {
        let (x, w) = self.stage_bytes();
        self.stages * (x + w)
    }

    pub(super) fn barriers(&self) -> u32 {
        self.blocks() + self.raw.map_or(0, |raw| raw.places * ROWS * raw.stride)
    }
}

impl Raw {
    fn new(plan: &FormatPlan<'_>, ahead: u32) -> Option<Raw> {
        let (elements, bytes) = (plan.format.elements, plan.format.bytes);
        let at_a_time = elements.max(STAGE);
        if !at_a_time.is_multiple_of(STAGE) || !at_a_time.is_multiple_of(elements) {
            return None;
        }
        let bytes = at_a_time / elements * bytes;
        let pieces = if bytes.is_multiple_of(16) { bytes / 16 } else { (bytes + 30) / 16 };
        let places = if at_a_time == STAGE { ahead + 1 } else { 2 };
        Some(Raw { elements: at_a_time, bytes, pieces, stride: (pieces | 1) * 16, places })
    }
}
