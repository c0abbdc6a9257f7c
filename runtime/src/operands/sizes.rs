//! Sizes of buffers, compared with those that a shape gives.

use crate::error::Error;
use std::ops::Range;

pub(crate) fn check_len(
    what: &'static str,
    unit: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::ShapeMismatch { what, unit, expected, found }) }
}

pub(crate) fn product_of(what: &'static str, a: usize, b: usize) -> Result<usize, Error> {
    a.checked_mul(b).ok_or(Error::TooLarge { what })
}

/// Whether `rows` are rows of a matrix of `n`.
pub(crate) fn check_rows(rows: &Range<usize>, n: usize) -> Result<(), Error> {
    match rows.start <= rows.end && rows.end <= n {
        true => Ok(()),
        false => Err(Error::RowRange { begin: rows.start, end: rows.end, rows: n }),
    }
}

/// Compares the values that there are with `m` rows of `width`: exactly that many without a stride. With one the last row
/// need not be padded, and there may be more.
pub(crate) fn check_span(
    what: &'static str,
    [m, width]: [usize; 2],
    stride: Option<usize>,
    found: usize,
) -> Result<(), Error> {
    let Some(stride) = stride else { return check_len(what, "values", product_of(what, m, width)?, found) };
    if stride < width {
        return Err(Error::StrideTooSmall { what, stride, row: width });
    }
    let Some(before) = m.checked_sub(1) else { return Ok(()) };
    let expected = product_of(what, before, stride)?.checked_add(width).ok_or(Error::TooLarge { what })?;
    if found < expected {
        return Err(Error::ShapeMismatch { what, unit: "values", expected, found });
    }
    Ok(())
}
