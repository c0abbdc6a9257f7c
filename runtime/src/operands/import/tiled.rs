//! The layouts that depend on tile sizes, by name.

use super::{ImportError, Ternary, Tiles, tl1, tl2};

/// A layout whose order depends on tile sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiled {
    /// bitnet.cpp's for Arm: [`tl1`].
    Tl1,
    /// bitnet.cpp's for x86: [`tl2`].
    Tl2,
}

impl Tiled {
    /// All of them.
    pub const ALL: [Tiled; 2] = [Tiled::Tl1, Tiled::Tl2];

    /// `tl1`, `tl2`.
    pub const fn name(self) -> &'static str {
        match self {
            Tiled::Tl1 => "tl1",
            Tiled::Tl2 => "tl2",
        }
    }

    /// The layout called `name`.
    pub fn from_name(name: &str) -> Option<Tiled> {
        Tiled::ALL.into_iter().find(|layout| layout.name() == name)
    }

    /// What it is, in a line.
    pub const fn doc(self) -> &'static str {
        match self {
            Tiled::Tl1 => {
                "bitnet.cpp's for Arm: pairs of weights in 4 bits, in the order of its look-up kernel"
            }
            Tiled::Tl2 => {
                "bitnet.cpp's for x86: three weights in 4 bits and a sign, in the order of its look-up kernel"
            }
        }
    }

    /// Bytes of a tensor of `n` rows of `k` in a file, scale and padding included; these do not depend on the tile sizes. `None` where the
    /// layout has no such shape, or its size does not fit 64 bits.
    pub fn tensor_bytes(self, n: u64, k: u64) -> Option<u64> {
        match self {
            Tiled::Tl1 => tl1::tensor_bytes(n, k),
            Tiled::Tl2 => tl2::tensor_bytes(n, k),
        }
    }

    /// Whether a tensor of `n` rows of `k` can have these tile sizes: what can be known before it is read.
    ///
    /// # Errors
    /// [`ImportError::Tiles`].
    pub fn check(self, n: usize, k: usize, tiles: Tiles) -> Result<(), ImportError> {
        match self {
            Tiled::Tl1 => tl1::check(n, k, tiles),
            Tiled::Tl2 => tl2::check(n, k, tiles),
        }
    }

    /// The tensor in `bytes`.
    ///
    /// # Errors
    /// As for [`tl1::read`] and [`tl2::read`].
    pub fn read(self, bytes: &[u8], n: usize, k: usize, tiles: Tiles) -> Result<Ternary, ImportError> {
        match self {
            Tiled::Tl1 => tl1::read(bytes, n, k, tiles),
            Tiled::Tl2 => tl2::read(bytes, n, k, tiles),
        }
    }
}
