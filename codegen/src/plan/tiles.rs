//! Products by a matrix unit: what of a panel waits as operands, and in which form.

use super::{FormatPlan, PackPlan, SuperBlock, lcm};

/// Bytes of operands that the buffer holds of each row, unless a super-block has more: with 32 rows a third of a first cache of 48 KiB, so
/// that activations and sums have the rest.
const BUFFER: u32 = 512;

/// Most k of a tile.
const TILE_K: u32 = 64;

/// Fewest k of a run with an f32 of its own.
const LEAST_K: u32 = 32;

/// Most k of a step whose sums are scaled in registers. With more it pays that the unit's tiles are multiplied with each other two by two.
const FEW_K: u32 = 64;

/// What the unit multiplies with activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileOperands {
    /// Operands as other strategies have them: values less the smallest one, unsigned bytes. Sums lack a zero-point correction.
    Differences,
    /// Values, signed bytes.
    Values,
    /// Values times the integer of their run, signed bytes: the unit sums up over a super-block.
    Scaled,
    /// The same in sixteen bits, as low bytes and high bytes.
    Digits,
    /// Values times the low bits of the integer of their run, so many, and values times its high bits: unsigned bytes.
    SplitIntegers(u32),
}

impl TileOperands {
    /// Bytes of an operand.
    pub fn bytes(self) -> u32 {
        match self {
            TileOperands::Differences | TileOperands::Values | TileOperands::Scaled => 1,
            TileOperands::Digits | TileOperands::SplitIntegers(_) => 2,
        }
    }

    /// Whether an operand is two bytes, which are multiplied apart.
    pub fn in_digits(self) -> bool {
        self.bytes() == 2
    }

    /// A word for the name of a loop.
    pub fn word(self) -> &'static str {
        match self {
            TileOperands::Differences => "difference_tiles",
            TileOperands::Values => "tiles",
            TileOperands::Scaled => "scaled_tiles",
            TileOperands::Digits => "digit_tiles",
            TileOperands::SplitIntegers(_) => "split_integer_tiles",
        }
    }
}

/// How the unit's sums become those of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileSums {
    /// Integer sums of a whole row.
    OfRows,
    /// Sums of steps: f32 sums wait in the buffer, and vectors scale those of some tokens between the products of the next step.
    OfSteps,
    /// Sums of steps of few k: f32 accumulators of a tile stay in registers until its part of a row ends.
    InRegisters,
}

/// The buffer of operands, and how the unit goes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Form of the operands.
    pub operands: TileOperands,
    /// What becomes of their sums.
    pub sums: TileSums,
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

    /// The tiles for `pack`; none where runs end within a tile of codes, or where vectors take as long to scale the sums of runs as for the
    /// products: with an f32 each 16 k (`nvfp4`), or each 32 k and a minimum (`q4_1`).
    pub(super) fn new(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> Option<Tiles> {
        if plan.k_group == 0 {
            // Whole tiles, but at the end of a row; about as many as fit.
            let whole = lcm(pack.tile.k.into(), TILE_K.into()) as u32;
            let steps = ((BUFFER + whole / 2) / whole).max(1) * whole / pack.tile.k;
            let sums = TileSums::OfRows;
            return Some(Tiles { operands: plain(plan), sums, step: pack.tile.k, steps, k: TILE_K });
        }
        if !plan.k_group.is_multiple_of(pack.tile.k) {
            return None;
        }
        let few_k = plan.superblock.is_none() && plan.k_group <= FEW_K;
        let (operands, step) = match &plan.superblock {
            Some(superblock) => (scaled(plan, superblock)?, plan.k_group * superblock.runs),
            None if few_k && (plan.k_group < LEAST_K || plan.offset) => return None,
            None => (plain(plan), plan.k_group),
        };
        let sums = if few_k { TileSums::InRegisters } else { TileSums::OfSteps };
        let k = (1..=TILE_K / 4).rev().map(|fours| 4 * fours).find(|&k| step.is_multiple_of(k))?;
        let bytes = step * operands.bytes();
        (bytes <= 4 * BUFFER).then_some(Tiles { operands, sums, step, steps: (BUFFER / bytes).max(1), k })
    }

    /// Fewest tokens for which it pays. A tile of a few takes the unit nearly as long as one of sixteen: on a Xeon, one thread, `q4_0` takes
    /// 0.86 of the vectors' speed at 17 tokens, 1.05 times at 33; `q8_0`, whose codes vectors multiply as they are, 0.95 times at 33.
    pub(crate) fn least_tokens(&self, pack: &PackPlan<'_>) -> u64 {
        match self.sums {
            TileSums::OfRows | TileSums::OfSteps => 0,
            TileSums::InRegisters if pack.bits() == 8 => 48,
            TileSums::InRegisters => 32,
        }
    }

    /// What is multiplied, in words.
    pub(super) fn describe(&self) -> String {
        let operands = match self.operands {
            TileOperands::Differences => "u8 x i8",
            TileOperands::Values => "values, i8 x i8",
            TileOperands::Scaled => "values times integers of runs, i8 x i8",
            TileOperands::Digits => "values times integers of runs in two bytes, u8 x i8 and i8 x i8",
            TileOperands::SplitIntegers(bits) => &format!(
                "values times the low {bits} bits of integers of runs and times the high ones, u8 x i8"
            ),
        };
        format!("{operands} products of tiles of 16 rows x 16 tokens x {} k into i32", self.k)
    }

    /// Bytes of the buffer for each row.
    pub fn bytes_of_a_row(&self) -> u32 {
        self.operands.bytes() * self.step * self.steps
    }
}

/// The form of values as they are.
fn plain(plan: &FormatPlan<'_>) -> TileOperands {
    let fits = i8::try_from(plan.min()).is_ok() && i8::try_from(plan.max()).is_ok();
    if fits { TileOperands::Values } else { TileOperands::Differences }
}

/// The form of values times integers of runs.
fn scaled(plan: &FormatPlan<'_>, superblock: &SuperBlock) -> Option<TileOperands> {
    let (least, most) = superblock.products((plan.min(), plan.max()));
    let within = |low: i64, high: i64| low <= least && most <= high;
    if within(i8::MIN.into(), i8::MAX.into()) {
        return Some(TileOperands::Scaled);
    }
    // A word of two values times a digit is two products, where nothing is carried: an instruction instead of eight for bytes of products.
    let (first, last) = superblock.scale.range;
    let unsigned = plan.min() == 0 && first >= 0;
    let fits = |digit: i32| i64::from(plan.max()) * i64::from(digit) <= i64::from(u8::MAX);
    let split = (1..8).find(|&bits| fits((1 << bits) - 1) && fits(last >> bits));
    match split.filter(|_| unsigned) {
        Some(bits) => Some(TileOperands::SplitIntegers(bits)),
        None => within(i16::MIN.into(), i16::MAX.into()).then_some(TileOperands::Digits),
    }
}
