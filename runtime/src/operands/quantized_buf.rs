//! A matrix in a format's own bytes that may own them.

use crate::error::Error;
use crate::operands::sizes::check_rows;
use crate::registry::FormatInfo;
use crate::room::room;
use crate::weights::QuantizedMatrix;
use std::borrow::Cow;
use std::ops::Range;

/// A tensor in a format's own bytes, which are its own or borrowed: what [`QuantizedMatrix`] lends.
#[derive(Clone, Debug)]
pub struct QuantizedBuf<'a> {
    format: &'static FormatInfo,
    n: usize,
    k: usize,
    row_bytes: usize,
    data: Cow<'a, [u8]>,
}

impl<'a> QuantizedBuf<'a> {
    /// Checks that `data` is as long as the shape says.
    ///
    /// # Errors
    /// As for [`QuantizedMatrix::new`].
    pub fn new(
        format: &'static FormatInfo,
        n: usize,
        k: usize,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<QuantizedBuf<'a>, Error> {
        let data = data.into();
        let row_bytes = QuantizedMatrix::new(format, n, k, &data)?.row_bytes();
        Ok(QuantizedBuf { format, n, k, row_bytes, data })
    }

    /// Some rows of `matrix` as a matrix of their own. Lent where that is possible; where a scale stands behind the whole
    /// tensor, they are copied and it behind them.
    ///
    /// # Errors
    /// [`Error::RowRange`]; [`Error::OutOfMemory`].
    pub fn rows_of(matrix: &QuantizedMatrix<'a>, rows: Range<usize>) -> Result<QuantizedBuf<'a>, Error> {
        let (format, n, k, row_bytes) = (matrix.format(), matrix.n(), matrix.k(), matrix.row_bytes());
        check_rows(&rows, n)?;
        // The length of the data was compared with the shape, so these are in it.
        let data = matrix.data();
        let part = data.get(rows.start * row_bytes..rows.end * row_bytes).unwrap_or_default();
        let tail = data.get(n * row_bytes..).unwrap_or_default();
        let data = if tail.is_empty() {
            Cow::Borrowed(part)
        } else {
            let mut own = room(part.len().saturating_add(tail.len()))?;
            own.extend_from_slice(part);
            own.extend_from_slice(tail);
            Cow::Owned(own)
        };
        QuantizedBuf::new(format, rows.len(), k, data)
    }

    /// Some columns of `matrix`, whole blocks of each row, as a matrix of their own: copied, with what stands in front of each row's blocks
    /// and behind the tensor.
    ///
    /// # Errors
    /// [`Error::KNotMultiple`] where the columns begin or end within a block; [`Error::ShapeMismatch`] where they are none of its;
    /// [`Error::OutOfMemory`].
    pub fn columns_of(
        matrix: &QuantizedMatrix<'_>,
        columns: Range<usize>,
    ) -> Result<QuantizedBuf<'static>, Error> {
        let (format, n, k) = (matrix.format(), matrix.n(), matrix.k());
        if columns.end > k || columns.start > columns.end {
            let (what, unit, found) = ("columns of a matrix", "values", columns.end.max(columns.start));
            return Err(Error::ShapeMismatch { what, unit, expected: k, found });
        }
        let header = format.header_bytes();
        // Also refuses what is no whole blocks.
        let before = format.row_bytes(columns.start)? - header;
        let row = format.row_bytes(columns.len())?;
        let mut own = room(format.tensor_bytes(n, columns.len())?)?;
        // The length of the data was compared with the shape, so all of these are in it.
        let data = matrix.data();
        let whole = matrix.row_bytes();
        // Rows that take no bytes may be any number of them.
        let rows = if row == 0 { 0 } else { n };
        for start in (0..rows).map(|at| at * whole) {
            own.extend_from_slice(&data[start..][..header]);
            own.extend_from_slice(&data[start + header + before..][..row - header]);
        }
        own.extend_from_slice(&data[n * whole..]);
        QuantizedBuf::new(format, n, columns.len(), own)
    }

    /// The same with bytes of its own: copied where they are lent.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn into_owned(self) -> Result<QuantizedBuf<'static>, Error> {
        let QuantizedBuf { format, n, k, row_bytes, data } = self;
        let data = match data {
            Cow::Owned(own) => own,
            Cow::Borrowed(lent) => {
                let mut own = room(lent.len())?;
                own.extend_from_slice(lent);
                own
            }
        };
        Ok(QuantizedBuf { format, n, k, row_bytes, data: Cow::Owned(data) })
    }

    /// The matrix, as kernels take it.
    pub fn matrix(&self) -> QuantizedMatrix<'_> {
        QuantizedMatrix::checked(self.format, self.n, self.k, self.row_bytes, &self.data)
    }

    /// The format.
    pub fn format(&self) -> &'static FormatInfo {
        self.format
    }

    /// Rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// All bytes, with the tensor's tail.
    pub fn data(&self) -> &[u8] {
        &self.data
    }
}
