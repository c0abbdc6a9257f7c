//! Tensors as other programs write them: [`Importer`] for layouts that interleave the rows of a format, which are
//! described by specs, and readers for tensors whose order depends on numbers that are not in the file: bitnet.cpp's TL1 and TL2.
//!
//! Their value is their kernel, not their storage, so they are no formats here: a reader turns one into
//! ternary rows, and any format's quantizer packs those (`i2_s` by `sign`, or `tq2_0`, lose nothing but the
//! width of the scale). Nothing is guessed: the caller gives the tile sizes, from the `kernel_config.ini` that
//! the file was converted with ([`Tiles::from_config`]), and what does not fit them is refused.

mod rows;
mod tile_sizes;
mod tiled;
pub mod tl1;
pub mod tl2;

use crate::error::ErrorClass;
use crate::room::{self, room};
pub use rows::Importer;
use thiserror::Error;
pub use tile_sizes::TileSizes;
pub use tiled::Tiled;

/// A tensor of -1, 0 and 1 with one scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Ternary {
    /// Rows (outputs).
    pub n: usize,
    /// Columns (inputs).
    pub k: usize,
    /// `n * k` values from -1 to 1, row after row.
    pub values: Vec<i8>,
    /// What they are multiplied by.
    pub scale: f32,
}

impl Ternary {
    /// The weights in f32, as every quantizer takes them.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn weights(&self) -> Result<Vec<f32>, crate::Error> {
        let mut weights = room(self.values.len())?;
        weights.extend(self.values.iter().map(|&value| f32::from(value) * self.scale));
        Ok(weights)
    }
}

/// The tile sizes that a converter was run with, by their names in `kernel_config.ini`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Rows of an outer tile.
    pub bm: usize,
    /// Columns of an outer tile.
    pub bk: usize,
    /// Rows of an inner tile.
    pub bmm: usize,
}

/// Why a tensor can't be imported.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ImportError {
    /// Tiles and tensor do not go into each other.
    #[error(
        "{format}: {what} = {found} does not fit ({rule}); give the tile sizes that this file was converted with"
    )]
    Tiles {
        /// `TL1` or `TL2`.
        format: &'static str,
        /// The number that is wrong.
        what: &'static str,
        /// Its value.
        found: usize,
        /// What it must be.
        rule: String,
    },
    /// The data are not as long as shape and format make them.
    #[error("{format}: {n} x {k} weights take {expected} bytes, but there are {found}")]
    Size {
        /// `TL1` or `TL2`.
        format: &'static str,
        /// Rows.
        n: usize,
        /// Columns.
        k: usize,
        /// Bytes by the format's size rule.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A code that stands for nothing.
    #[error(
        "{format}: byte {byte} holds the code {code} for row {row}, column {column}, which stands for nothing; \
         the data are damaged, or the tile sizes are not those of this file"
    )]
    Code {
        /// `TL1` or `TL2`.
        format: &'static str,
        /// Byte of the data.
        byte: usize,
        /// The code.
        code: u8,
        /// Row of the weights that it would be.
        row: usize,
        /// First of their columns.
        column: usize,
    },
    /// There is no memory for the weights.
    #[error("{format}: no memory for {n} x {k} weights of a byte each")]
    Memory {
        /// `TL1` or `TL2`.
        format: &'static str,
        /// Rows.
        n: usize,
        /// Columns.
        k: usize,
    },
    /// The tensor's scale is NaN or infinite.
    #[error("{format}: the scale at byte {byte} is {value}; the data are damaged")]
    Scale {
        /// `TL1` or `TL2`.
        format: &'static str,
        /// Byte of the data.
        byte: usize,
        /// The scale.
        value: f32,
    },
    /// Nobody said which tile sizes a tensor has.
    #[error(
        "the tile sizes of {n} x {k} weights are not known, and files do not hold them\n  help: give the `kernel_config.ini` that the file \
         was converted with, or the three numbers"
    )]
    NoTileSizes {
        /// Rows.
        n: usize,
        /// Columns.
        k: usize,
    },
    /// No ternary format of the registry takes rows of this length.
    #[error(
        "{format}: no format of this build takes ternary rows of {k}\n  help: `i2_s` (multiples of 128) and `iq2_bn` (of 64) do, with the \
         cargo feature `bitnet`"
    )]
    NoFormat {
        /// `tl1` or `tl2`.
        format: &'static str,
        /// Columns.
        k: usize,
    },
    /// A line of `kernel_config.ini` that can't be read.
    #[error("kernel_config.ini, line {line}: {why}")]
    Config {
        /// 1-based.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// No section of `kernel_config.ini` is for this shape.
    #[error("kernel_config.ini has no section with m = {n} and k = {k}; it has {known}")]
    NoTiles {
        /// Rows.
        n: usize,
        /// Columns.
        k: usize,
        /// The shapes that it has.
        known: String,
    },
}

impl ImportError {
    /// What kind of error it is: of what was asked for, of the data, or of what this build has.
    pub fn class(&self) -> ErrorClass {
        match self {
            ImportError::NoFormat { .. } => ErrorClass::NoKernel,
            ImportError::Tiles { .. }
            | ImportError::NoTileSizes { .. }
            | ImportError::NoTiles { .. }
            | ImportError::Config { .. } => ErrorClass::Request,
            ImportError::Size { .. } => ErrorClass::Shape,
            ImportError::Memory { .. } => ErrorClass::Memory,
            ImportError::Code { .. } | ImportError::Scale { .. } => ErrorClass::Data,
        }
    }
}

impl Tiles {
    /// The tiles that the text of a `kernel_config.ini` has for `n` rows of `k` columns.
    ///
    /// # Errors
    /// [`ImportError::Config`] where a line can't be read or a section lacks a number,
    /// [`ImportError::NoTiles`] where no section is for this shape.
    pub fn from_config(text: &str, n: usize, k: usize) -> Result<Tiles, ImportError> {
        const KEYS: [&str; 5] = ["m", "k", "bm", "bk", "bmm"];
        let mut sections: Vec<(usize, [Option<usize>; 5])> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let (number, line) = (index + 1, line.trim());
            let config = |why: String| ImportError::Config { line: number, why };
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if line.starts_with('[') && line.ends_with(']') {
                sections.push((number, [None; 5]));
                continue;
            }
            let (key, value) =
                line.split_once('=').ok_or_else(|| config("expected `key = number`".to_owned()))?;
            let Some(slot) = KEYS.iter().position(|known| *known == key.trim()) else { continue };
            let value = value.trim().parse().ok().filter(|value| *value > 0);
            let value: usize =
                value.ok_or_else(|| config(format!("`{}` needs a positive number", KEYS[slot])))?;
            let (_, section) = sections
                .last_mut()
                .ok_or_else(|| config("a number before the first `[section]`".to_owned()))?;
            if section[slot].replace(value).is_some() {
                return Err(config(format!("`{}` for the second time in its section", KEYS[slot])));
            }
        }
        let mut known: Vec<((usize, usize), Tiles)> = Vec::new();
        for (line, numbers) in sections {
            let missing = numbers.iter().position(Option::is_none);
            let [Some(rows), Some(columns), Some(bm), Some(bk), Some(bmm)] = numbers else {
                let why = format!("this section has no `{}`", KEYS[missing.unwrap_or(0)]);
                return Err(ImportError::Config { line, why });
            };
            let (shape, tiles) = ((rows, columns), Tiles { bm, bk, bmm });
            match known.iter().find(|(known, _)| *known == shape) {
                Some((_, other)) if *other != tiles => {
                    let why = format!("a second section for {rows} x {columns}, with other tile sizes");
                    return Err(ImportError::Config { line, why });
                }
                Some(_) => {}
                None => known.push((shape, tiles)),
            }
        }
        if let Some((_, tiles)) = known.iter().find(|(known, _)| *known == (n, k)) {
            return Ok(*tiles);
        }
        let known: Vec<String> =
            known.iter().map(|((rows, columns), _)| format!("{rows} x {columns}")).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(ImportError::NoTiles { n, k, known })
    }
}

/// A tile size that must divide another number.
fn divides(
    format: &'static str,
    what: &'static str,
    found: usize,
    whole: usize,
    of: &str,
) -> Result<(), ImportError> {
    if found > 0 && whole.is_multiple_of(found) {
        return Ok(());
    }
    Err(ImportError::Tiles { format, what, found, rule: format!("it must divide {of}, {whole}") })
}

/// `n` rows of `k` zeros, of which there are `count`.
fn zeros(format: &'static str, n: usize, k: usize, count: usize) -> Result<Vec<i8>, ImportError> {
    room::zeros(count).map_err(|_| ImportError::Memory { format, n, k })
}

/// The finite f32 at `byte`.
fn scale(format: &'static str, bytes: &[u8], byte: usize) -> Result<f32, ImportError> {
    let value = bytes.get(byte..).and_then(|rest| rest.first_chunk()).map(|four| f32::from_le_bytes(*four));
    let value = value.unwrap_or(f32::NAN);
    if value.is_finite() { Ok(value) } else { Err(ImportError::Scale { format, byte, value }) }
}

/// The two weights of a pair code, 3 a + b + 4.
fn pair(code: u8) -> Option<[i8; 2]> {
    let code = i8::try_from(code).ok().filter(|code| *code < 9)?;
    Some([code / 3 - 1, code % 3 - 1])
}

/// Puts the four weights of byte `byte`, two pairs, in `values`: those of row `row` from column `column` on, in rows of `k`.
fn put_pairs(
    format: &'static str,
    bytes: &[u8],
    byte: usize,
    values: &mut [i8],
    [row, column, k]: [usize; 3],
) -> Result<(), ImportError> {
    for (half, code) in [bytes[byte] >> 4, bytes[byte] & 15].into_iter().enumerate() {
        let column = column + 2 * half;
        let Some(weights) = pair(code) else {
            return Err(ImportError::Code { format, byte, code, row, column });
        };
        values[row * k + column..][..2].copy_from_slice(&weights);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[Kernels_0]\nm = 1536\nk = 4096\nbm = 256\nbk = 128\nbmm = 32\n\n\
                          ; a comment\n[Kernels_1]\nm = 1536\nk = 1536\nbm = 128\nbk = 64\nbmm = 64\n";

    #[test]
    fn tiles_are_found_by_shape() {
        assert_eq!(Tiles::from_config(CONFIG, 1536, 1536), Ok(Tiles { bm: 128, bk: 64, bmm: 64 }));
        assert_eq!(Tiles::from_config(CONFIG, 1536, 4096), Ok(Tiles { bm: 256, bk: 128, bmm: 32 }));
    }

    #[test]
    fn a_config_that_does_not_fit_is_refused() {
        let known = "1536 x 4096, 1536 x 1536".to_owned();
        assert_eq!(
            Tiles::from_config(CONFIG, 4096, 1536),
            Err(ImportError::NoTiles { n: 4096, k: 1536, known })
        );
        for (text, line) in [
            ("m = 1", 1),
            ("[a]\nm = 1\nm = 2", 3),
            ("[a]\nm = -1", 2),
            ("[a]\nwhat", 2),
            ("[a]\nm = 1\nk = 1\nbm = 1\nbk = 1\nbmm = 1\n[b]\nm = 1\nk = 1\nbm = 2\nbk = 1\nbmm = 1", 7),
            ("\n[a]\nm = 1\nk = 1\nbm = 1\nbk = 1", 2),
        ] {
            match Tiles::from_config(text, 1, 1) {
                Err(ImportError::Config { line: found, .. }) => assert_eq!(found, line, "{text:?}"),
                other => panic!("{text:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn pairs_count_from_minus_one() {
        let all: Vec<_> = (0..16).map_while(pair).collect();
        assert_eq!(all, [[-1, -1], [-1, 0], [-1, 1], [0, -1], [0, 0], [0, 1], [1, -1], [1, 0], [1, 1]]);
    }
}
