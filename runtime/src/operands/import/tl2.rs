//! TL2, bitnet.cpp's format for x86: three weights to a 4-bit index and a sign bit, what is left over in pairs.

use super::{ImportError, Ternary, Tiles, divides, put_pairs, scale, zeros};

const FORMAT: &str = "TL2";

/// Rows of an inner tile; the only number that the converter works with.
const ROWS: usize = 32;

/// Bytes behind the padded codes: the f32 scale and padding.
const TAIL: usize = 32;

/// Eight rows of an inner tile stand in this order.
const ORDER: [usize; 4] = [0, 2, 1, 3];

/// Least columns: below, the size rule is not defined.
const LEAST: u64 = 256;

/// Byte of the scale in a tensor of `n` rows of `k` weights, whatever its tiles are: the converter's bound of the codes, in its
/// order of operations, and padding. `None` where it is not defined, rows are no whole tiles, or it does not fit 64 bits.
fn scale_at(n: u64, k: u64) -> Option<u64> {
    if !n.is_multiple_of(ROWS as u64) {
        return None;
    }
    let threes = k.checked_sub(LEAST)?.checked_mul(n)? / 3;
    let pairs = LEAST.checked_mul(n)? / 2;
    (threes.checked_mul(5)? / 8).checked_add(pairs.checked_mul(4)? / 8)?.checked_next_multiple_of(32)
}

/// Bytes of such a tensor.
pub(super) fn tensor_bytes(n: u64, k: u64) -> Option<u64> {
    scale_at(n, k)?.checked_add(TAIL as u64)
}

/// Columns that are coded in threes, and those that are left over and coded in pairs.
fn split(k: usize, bk: usize) -> (usize, usize) {
    let threes = k / bk * bk;
    (threes, k - threes)
}

/// Whether a tensor of `n` rows of `k` weights can have these tiles.
///
/// # Errors
/// [`ImportError::Tiles`].
pub(super) fn check(n: usize, k: usize, Tiles { bm, bk, bmm }: Tiles) -> Result<(), ImportError> {
    let wrong = |what, found, rule: &str| {
        Err(ImportError::Tiles { format: FORMAT, what, found, rule: rule.to_owned() })
    };
    if bmm != ROWS {
        return wrong("bmm", bmm, "it must be 32; one published configuration says 64 and means 32");
    }
    if bk == 0 || !bk.is_multiple_of(24) {
        return wrong("bk", bk, "it must be a multiple of 24");
    }
    if (k as u64) < LEAST {
        return wrong("k", k, "the size rule is not defined below 256 columns");
    }
    divides(FORMAT, "bm", bm, n, "the rows")?;
    divides(FORMAT, "bmm", ROWS, bm, "bm")?;
    let (threes, pairs) = split(k, bk);
    if !pairs.is_multiple_of(32) {
        return wrong("bk", bk, "the columns that it leaves over must be a multiple of 32");
    }
    // Five bits for three weights and four for two; what follows the codes is unused.
    let used = n as u128 * (threes as u128 * 5 / 24 + pairs as u128 / 4);
    match scale_at(n as u64, k as u64) {
        Some(at) if used > u128::from(at) => {
            wrong("bk", bk, "the codes would be longer than the file's size rule gives")
        }
        _ => Ok(()),
    }
}

/// The tensor of `n` rows of `k` weights in `bytes` (codes, padding, scale, as they stand in the file).
///
/// # Errors
/// Tiles that do not go into the shape, data of another size, indices and codes that stand for nothing, a
/// scale that is not finite; no memory.
pub fn read(bytes: &[u8], n: usize, k: usize, tiles: Tiles) -> Result<Ternary, ImportError> {
    check(n, k, tiles)?;
    let Tiles { bm, bk, .. } = tiles;
    let (threes, pairs) = split(k, bk);
    let too_large = || ImportError::Size { format: FORMAT, n, k, expected: usize::MAX, found: bytes.len() };
    let count = n.checked_mul(k).filter(|count| *count <= usize::MAX / 8).ok_or_else(too_large)?;
    let at_scale =
        scale_at(n as u64, k as u64).and_then(|at| usize::try_from(at).ok()).ok_or_else(too_large)?;
    let (signs_at, pairs_at) = (n * threes / 6, n * threes / 6 + n * threes / 24);
    let expected = at_scale + TAIL;
    if bytes.len() != expected {
        return Err(ImportError::Size { format: FORMAT, n, k, expected, found: bytes.len() });
    }
    let mut values = zeros(FORMAT, n, k, count)?;
    let mut at = 0;
    for first_row in (0..n).step_by(bm) {
        for first_column in (0..threes).step_by(bk) {
            for rows in (first_row..first_row + bm).step_by(ROWS) {
                for column in (first_column..first_column + bk).step_by(6) {
                    for position in 0..ROWS {
                        let row = rows + row_of(position);
                        for (half, index) in [bytes[at] >> 4, bytes[at] & 15].into_iter().enumerate() {
                            let column = column + 3 * half;
                            if index > 13 {
                                let code = index;
                                return Err(ImportError::Code {
                                    format: FORMAT,
                                    byte: at,
                                    code,
                                    row,
                                    column,
                                });
                            }
                            // 9 a + 3 b + c, counted from -13.
                            let number = index as i8 + 13;
                            let weights = [number / 9 - 1, number / 3 % 3 - 1, number % 3 - 1];
                            values[row * k + column..][..3].copy_from_slice(&weights);
                        }
                        at += 1;
                    }
                }
            }
        }
    }
    debug_assert_eq!(at, signs_at);
    for first_row in (0..n).step_by(bm) {
        for first_column in (0..threes).step_by(bk) {
            for rows in (first_row..first_row + bm).step_by(ROWS) {
                for columns in (first_column..first_column + bk).step_by(24) {
                    for row in rows..rows + 16 {
                        // Eight triples of this row and of the sixteenth behind it, from the top bit down.
                        let word = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
                        for bit in 0..16 {
                            if word >> (15 - bit) & 1 != 0 {
                                let (row, column) = (row + bit % 2 * 16, columns + bit / 2 * 3);
                                for value in &mut values[row * k + column..][..3] {
                                    *value = -*value;
                                }
                            }
                        }
                        at += 2;
                    }
                }
            }
        }
    }
    debug_assert_eq!(at, pairs_at);
    for first_row in (0..n).step_by(bm) {
        for first_column in (threes..k).step_by(32) {
            for rows in (first_row..first_row + bm).step_by(ROWS) {
                for column in (first_column..first_column + 32).step_by(4) {
                    for position in 0..ROWS {
                        let row = rows + row_of(position);
                        put_pairs(FORMAT, bytes, at, &mut values, [row, column, k])?;
                        at += 1;
                    }
                }
            }
        }
    }
    debug_assert_eq!(at, pairs_at + n * pairs / 4);
    Ok(Ternary { n, k, values, scale: scale(FORMAT, bytes, at_scale)? })
}

/// Row of an inner tile at a position of its bytes.
fn row_of(position: usize) -> usize {
    8 * ORDER[position / 8 % 4] + position % 8
}
