//! Products by a matrix unit: what of a panel waits as operands, and in which form.

use super::{FormatPlan, PackPlan, SuperBlock, lcm};

/// Elements of k that the buffer holds of each row, unless a super-block has more.
const BUFFER_K: u32 = 512;

/// Most k of a tile.
const TILE_K: u32 = 64;

/// What the unit multiplies with activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileOperands {
    /// Operands as other strategies have them: values less the smallest one, unsigned bytes.
    Unsigned,
    /// Values times the integer of their run, signed bytes: the unit sums up over a super-block.
    Signed,
    /// The same in sixteen bits, as low bytes and high bytes.
    Digits,
}

impl TileOperands {
    /// Bytes of an operand.
    pub fn bytes(self) -> u32 {
        match self {
            TileOperands::Unsigned | TileOperands::Signed => 1,
            TileOperands::Digits => 2,
        }
    }

    /// A word for the name of a loop.
    pub fn word(self) -> &'static str {
        match self {
            TileOperands::Unsigned => "tiles",
            TileOperands::Signed => "scaled_tiles",
            TileOperands::Digits => "digit_tiles",
        }
    }
}

/// The buffer of operands, and how the unit goes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Form of the operands.
    pub operands: TileOperands,
    /// Elements of k that are never apart: a super-block, a run, or a tile of codes where a row is one run.
    pub step: u32,
    /// Steps that the buffer holds.
    pub steps: u32,
    /// k of a tile. Where a row is one run its end may have fewer.
    pub k: u32,
}

impl Tiles {
    /// Rows of the largest tile of the plan, and tokens.
    pub const ROWS: u32 = 32;
    /// Most tokens that are computed at once.
    pub const TOKENS: u32 = 32;

    /// The tiles for `pack`; none where runs end within a tile of codes, or where there would be more than three operations on sums
    /// for each multiply of the unit.
    pub(super) fn new(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> Option<Tiles> {
        if plan.unit == 0 {
            // Whole tiles, but at the end of a row.
            let whole = lcm(pack.tile.k.into(), TILE_K.into()) as u32;
            let steps = (BUFFER_K / whole).max(1) * whole / pack.tile.k;
            return Some(Tiles { operands: TileOperands::Unsigned, step: pack.tile.k, steps, k: TILE_K });
        }
        if !plan.unit.is_multiple_of(pack.tile.k) {
            return None;
        }
        let (operands, step) = match &plan.superblock {
            Some(superblock) => (scaled(plan, superblock)?, plan.unit * superblock.runs),
            None if pack.shifted.is_none() => (TileOperands::Unsigned, plan.unit),
            None => return None,
        };
        let k = (1..=TILE_K / 4).rev().map(|fours| 4 * fours).find(|&k| step.is_multiple_of(k))?;
        (step <= 2 * BUFFER_K).then_some(Tiles { operands, step, steps: (BUFFER_K / step).max(1), k })
    }

    /// What is multiplied, in words.
    pub(super) fn describe(&self) -> String {
        let operands = match self.operands {
            TileOperands::Unsigned => "u8 x i8",
            TileOperands::Signed => "values times integers of runs, i8 x i8",
            TileOperands::Digits => "values times integers of runs in two bytes, u8 x i8 and i8 x i8",
        };
        format!("{operands} products of tiles of 16 rows x 16 tokens x {} k into i32", self.k)
    }

    /// Bytes of the buffer for each row.
    pub fn bytes_of_a_row(&self) -> u32 {
        self.operands.bytes() * self.step * self.steps
    }
}

/// The form of values times integers of runs.
fn scaled(plan: &FormatPlan<'_>, superblock: &SuperBlock) -> Option<TileOperands> {
    let (low, high) = (i64::from(plan.min()), i64::from(plan.max()));
    let (least, most) = superblock.scale.range;
    let products = [low, high].map(|value| [value * i64::from(least), value * i64::from(most)]);
    let within = |least: i64, most: i64| products.as_flattened().iter().all(|p| (least..=most).contains(p));
    if within(i8::MIN.into(), i8::MAX.into()) {
        Some(TileOperands::Signed)
    } else {
        within(i16::MIN.into(), i16::MAX.into()).then_some(TileOperands::Digits)
    }
}
