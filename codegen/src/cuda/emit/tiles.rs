//! How a CUDA block's tile of a product of integers is divided: among warps, among warpgroups, along k.

/// Bytes of shared memory that a multiprocessor of sm_90 gives its CUDA blocks, of each of which it keeps `RESERVED`.
const OF_MULTIPROCESSOR: u32 = 228 * 1024;
const RESERVED: u32 = 1024;

/// Bytes of shared memory that a launch may give each CUDA block on sm_90 where a multiprocessor is to hold `blocks` of them.
pub const fn most_shared(blocks: u32) -> u32 {
    OF_MULTIPROCESSOR / blocks - RESERVED
}

/// Tiles of a run whose loop is unrolled; one over more is left to the compiler.
const UNROLLED: u32 = 4;

/// `unroll` in front of a loop over so few tiles of a run that it is unrolled.
pub(super) fn unrolled(tiles: u32, unroll: &'static str) -> &'static str {
    if tiles <= UNROLLED { unroll } else { "" }
}

/// Registers that a thread of each of three warpgroups has, together.
const OF_THREE: u32 = 504;

/// Registers of a thread of two warpgroups, and of one of the third.
pub(super) fn shared_out(more: u32) -> (u32, u32) {
    (more, OF_THREE - 2 * more)
}

/// In words, where they are not shared out evenly.
pub(super) fn registers_in_words(registers: Option<(u32, u32)>) -> String {
    registers.map_or(String::new(), |(more, fewer)| format!(", with {more} and {fewer} registers a thread"))
}

/// How a CUDA block's warps divide its tile, and what a stage holds.
#[derive(Clone, Copy, Debug)]
pub struct Tiling {
    /// Tokens of a warp.
    pub(super) warp_tokens: u32,
    /// Panels of 32 rows of the CUDA block.
    pub panels: u32,
    /// Tiles of k in a stage.
    pub(super) tiles: u32,
    /// Tiles of k in a run; 0 where a row is one integer sum.
    pub(super) run: u32,
    /// Runs that a stage has scales for.
    pub(super) runs: u32,
    /// Stages in shared memory.
    pub(super) stages: u32,
}

/// How a CUDA block is divided.
#[derive(Clone, Copy, Debug)]
pub struct Warpgroups {
    /// Warpgroups that multiply.
    pub(super) groups: u32,
    /// Panels of 32 rows of the CUDA block: one for each multiplying warp.
    pub panels: u32,
    /// Stages in shared memory, each a tile of k.
    pub(super) stages: u32,
    /// Bytes of 32 k of all tokens, with a gap that lets stores of neighbouring k go to different banks.
    pub(super) step_bytes: u32,
    /// Registers of a thread that multiplies and of one of the producer, where they are not shared out evenly.
    pub(super) registers: Option<(u32, u32)>,
    /// How terms of runs are brought, where runs have scales.
    pub(super) terms: Option<RunTerms>,
}

/// How a CUDA block of warpgroups brings terms of runs: of several at a time, each time to another place.
#[derive(Clone, Copy, Debug)]
pub struct RunTerms {
    /// Stages of a run.
    pub(super) run: u32,
    /// Runs whose terms come together: those of a super-block, or a few.
    pub(super) together: u32,
    /// Bytes of the scales of so many runs in a panel, and of their minima.
    pub(super) bytes: u32,
    /// Places in shared memory.
    pub(super) places: u32,
}

/// What dividing k needs to know of a kernel: how the runtime weighs it is in `docs/cuda.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Elements of k that a CUDA block takes at a time.
    pub stage: u32,
    /// Cycles that a multiprocessor takes for them, as an estimate.
    pub cycles: u32,
    /// CUDA blocks of a multiprocessor that take a stage in the time of one, since they wait for memory.
    pub blocks_per_sm: u32,
}

/// What a CUDA block has room for in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Fused {
    /// The longest row.
    pub k: u32,
    /// Bytes of a token.
    pub(super) values: u32,
    /// Scales of a token.
    pub(super) scales: u32,
    /// Sums of a token.
    pub(super) sums: u32,
    /// CUDA blocks that a multiprocessor is to hold: each of them quantizes, so the runtime launches no more.
    pub blocks_per_sm: u32,
}
