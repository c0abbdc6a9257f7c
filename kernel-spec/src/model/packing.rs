//! Activation formats, packings, and layouts that are imported.

use super::{Origin, Rounding, ScaleRule};
use crate::vocab::PrologueStep;

/// How activations are kept for a matmul: int8 with scales.
#[derive(Clone, Debug)]
pub struct Activations {
    /// File stem.
    pub name: String,
    /// One line for people.
    pub doc: String,
    /// Where it is described.
    pub origin: Origin,
    /// Elements that share a scale; `None`: the whole row.
    pub block: Option<u32>,
    /// Step size.
    pub scale: ScaleRule,
    /// The scale kept is the multiplier (values are `q / s`) and not the step (values are `q * d`).
    pub keeps_multiplier: bool,
    /// The kept step is rounded to f16.
    pub stored_f16: bool,
    /// Rounding.
    pub round: Rounding,
    /// Inclusive bounds of q.
    pub clamp: (i32, i32),
    /// What may be done to a row before, in this order.
    pub prologue: Vec<PrologueStep>,
}

/// A packing: the same codes in the order a kernel wants them.
#[derive(Clone, Debug)]
pub struct Packing {
    /// File stem.
    pub name: String,
    /// One line for people.
    pub doc: String,
    /// Where it is described.
    pub origin: Origin,
    /// Rows of a tile (the same for all tiles of a packing).
    pub rows: u32,
    /// One layout for each kind of code, that for the fewest values first.
    pub tiles: Vec<Tile>,
}

/// One tile layout of a packing.
#[derive(Clone, Debug)]
pub struct Tile {
    /// What a code is.
    pub code: TileCode,
    /// Elements along k.
    pub k: u32,
    /// Bytes of a tile: rows * k codes, eight bits or five trits to a byte.
    pub bytes: u32,
    /// Bit of the tile at which the digits begin.
    pub offset: u32,
    /// Digits, outermost first, each along one axis; within an axis outermost first too. Where there is an upper plane, of
    /// the bits below it.
    pub digits: Vec<TileDigit>,
    /// The topmost bits of the codes, where they have a place of their own.
    pub upper: Option<Plane>,
}

impl Tile {
    /// Bits of a code that lie where [`digits`](Tile::digits) say.
    pub fn lower_bits(&self) -> u32 {
        self.code.bits() - self.upper.as_ref().map_or(0, |plane| plane.bits)
    }
}

/// Some bits of every code of a tile, apart from its other ones.
#[derive(Clone, Debug)]
pub struct Plane {
    /// Bits of a code.
    pub bits: u32,
    /// Bit of the tile at which the plane begins.
    pub offset: u32,
    /// As those of the tile, from `offset` on.
    pub digits: Vec<TileDigit>,
}

/// What the codes of a tile are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileCode {
    /// Numbers of so many bits.
    Bits(u32),
    /// Digits of base 3, five to a byte. Which byte stands for which five is the compiler's choice.
    Trit,
}

impl TileCode {
    /// Trits of a byte: 3^5 = 243 values.
    pub const TRITS: u32 = 5;

    /// Values that a code can take.
    pub const fn levels(self) -> u32 {
        match self {
            TileCode::Bits(bits) => 1 << bits,
            TileCode::Trit => 3,
        }
    }

    /// Bits of a code as a kernel handles it.
    pub const fn bits(self) -> u32 {
        match self {
            TileCode::Bits(bits) => bits,
            TileCode::Trit => 2,
        }
    }

    /// Bytes that so many codes fill; `None` if they don't fill whole ones.
    pub const fn bytes(self, codes: u64) -> Option<u64> {
        let (codes, to_a_byte) = match self {
            TileCode::Bits(bits) => (codes * bits as u64, 8),
            TileCode::Trit => (codes, TileCode::TRITS as u64),
        };
        if codes.is_multiple_of(to_a_byte) { Some(codes / to_a_byte) } else { None }
    }
}

impl std::fmt::Display for TileCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TileCode::Bits(1) => f.write_str("one bit"),
            TileCode::Bits(bits) => write!(f, "{bits} bits"),
            TileCode::Trit => f.write_str("trits"),
        }
    }
}

/// Axis of a tile's digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Output row n.
    Row,
    /// Input column k.
    K,
}

/// One digit of a tile's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileDigit {
    /// The axis it counts along.
    pub axis: Axis,
    /// How many values it takes.
    pub extent: u32,
    /// Bits that one step adds to the address.
    pub stride: u32,
    /// What one step adds to the number of the trit in its byte; 0 for codes of bits.
    pub trit: u32,
}

/// How another program interleaves the rows of a format: a bijection between the bits of some rows by one block and those
/// of a tile. Tiles follow one another along k, and such panels of rows along n; where rows have headers, those of a panel
/// stand before its tiles, one after the other. What stands behind the last row stays where it is.
#[derive(Clone, Debug)]
pub struct Import {
    /// The file's stem.
    pub name: String,
    /// One line for people.
    pub doc: String,
    /// Cargo feature family that compiles it; empty: always compiled.
    pub family: String,
    /// Where it was described.
    pub origin: Origin,
    /// Index into [`SpecSet::formats`](super::SpecSet::formats): what the tensor is once its rows are apart.
    pub format: usize,
    /// Rows of a panel.
    pub rows: u32,
    /// Where each bit of a tile goes.
    pub moves: Vec<Move>,
}

/// Some neighbouring bits of a tile that are neighbours in a block of the format, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// First bit in the tile.
    pub from: u32,
    /// Row whose block they belong to.
    pub row: u32,
    /// First bit in that block.
    pub to: u32,
    /// How many, 1 to 32.
    pub bits: u32,
}
