//! TL1, bitnet.cpp's format for Arm: pairs of weights in 4-bit codes, in the order of its look-up kernel.

use super::{ImportError, Ternary, Tiles, divides, put_pairs, scale, zeros};

const FORMAT: &str = "TL1";

/// Bytes behind the codes: the f32 scale and padding.
const TAIL: usize = 32;

/// Bytes of a tensor of `n` rows of `k` weights, whatever its tiles are. `None` where no tiles fit, which have 32 rows and 4 columns at
/// least, or the bytes do not fit 64 bits.
pub(super) fn tensor_bytes(n: u64, k: u64) -> Option<u64> {
    if !n.is_multiple_of(32) || !k.is_multiple_of(4) {
        return None;
    }
    (n.checked_mul(k)? / 4).checked_add(TAIL as u64)
}

/// Whether a tensor of `n` rows of `k` weights can have these tiles.
///
/// # Errors
/// [`ImportError::Tiles`].
pub(super) fn check(n: usize, k: usize, tiles: Tiles) -> Result<(), ImportError> {
    let Tiles { bm, bk, bmm } = tiles;
    if bmm != 32 && bmm != 64 {
        let rule = "it must be 32 or 64".to_owned();
        return Err(ImportError::Tiles { format: FORMAT, what: "bmm", found: bmm, rule });
    }
    divides(FORMAT, "bm", bm, n, "the rows")?;
    divides(FORMAT, "bk", bk, k, "the columns")?;
    divides(FORMAT, "bmm", bmm, bm, "bm")?;
    divides(FORMAT, "256 / bmm", 256 / bmm, bk, "bk")
}

/// The tensor of `n` rows of `k` weights in `bytes` (codes, scale and padding, as they stand in the file).
///
/// # Errors
/// Tiles that do not go into the shape, data of another size, codes from 9 to 15, a scale that is not finite; no memory.
pub fn read(bytes: &[u8], n: usize, k: usize, tiles: Tiles) -> Result<Ternary, ImportError> {
    check(n, k, tiles)?;
    let Tiles { bm, bk, bmm } = tiles;
    let by = 256 / bmm;
    let too_large = || ImportError::Size { format: FORMAT, n, k, expected: usize::MAX, found: bytes.len() };
    let count = n.checked_mul(k).ok_or_else(too_large)?;
    let expected = tensor_bytes(n as u64, k as u64).and_then(|bytes| usize::try_from(bytes).ok());
    let expected = expected.ok_or_else(too_large)?;
    if bytes.len() != expected {
        return Err(ImportError::Size { format: FORMAT, n, k, expected, found: bytes.len() });
    }
    let mut values = zeros(FORMAT, n, k, count)?;
    let mut at = 0;
    // Rows without columns take no bytes, so a few bytes say any number of them.
    let rows = if k == 0 { 0 } else { n };
    for first_row in (0..rows).step_by(bm) {
        for first_column in (0..k).step_by(bk) {
            for rows in (first_row..first_row + bm).step_by(bmm) {
                for columns in (first_column..first_column + bk).step_by(by) {
                    for rows in (rows..rows + bmm).step_by(16) {
                        for column in (columns..columns + by).step_by(4) {
                            // Sixteen rows for the same four columns.
                            for row in rows..rows + 16 {
                                put_pairs(FORMAT, bytes, at, &mut values, [row, column, k])?;
                                at += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(Ternary { n, k, values, scale: scale(FORMAT, bytes, count / 4)? })
}
