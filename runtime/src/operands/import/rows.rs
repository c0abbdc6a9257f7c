//! Rows that another program interleaves, taken apart: bytes in, bytes out, by the bit addresses of a spec.

use crate::error::Error;
use crate::kernel::Dequantizer;
use crate::registry::{FormatInfo, ImportInfo, Move, Registry};
use crate::request::Request;
use crate::room::zeros;
use crate::weights::QuantizedMatrix;

/// Reads tensors of one import layout. Which layout a tensor has is for the caller to know: files don't say it.
///
/// A tensor is panels of [`ImportInfo::rows`] rows. A panel holds the headers of its rows, where the format has such, and
/// then a tile for each block along k. What the format has behind its last row stands there here, too.
///
/// ```
/// # fn main() -> Result<(), gristmill_runtime::Error> {
/// # use gristmill_runtime::{Registry, import::Importer, weights::QuantizedMatrix};
/// fn matrix(registry: &'static Registry, tensor: &[u8]) -> Result<Vec<u8>, gristmill_runtime::Error> {
///     let importer = Importer::new(registry, "i2_s_rows4")?;
///     let bytes = importer.convert(2560, 6912, tensor)?;
///     let weights = QuantizedMatrix::new(importer.format(), 2560, 6912, &bytes)?;
///     assert_eq!(weights.format().name, "i2_s");
///     Ok(bytes)
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Importer {
    layout: &'static ImportInfo,
    format: &'static FormatInfo,
    reader: Dequantizer,
}

impl Importer {
    /// The importer for the layout called `name`.
    ///
    /// # Errors
    /// [`Error::NotCompiled`], [`Error::UnknownImport`]; what stands against a dequantize kernel of its format, which
    /// checks the codes of what is imported.
    pub fn new(registry: &'static Registry, name: &str) -> Result<Importer, Error> {
        let layout = registry.import(name)?;
        let Some(format) = registry.formats.get(layout.format) else {
            let what = "an import layout is of no format";
            return Err(Error::BrokenRegistry { package: registry.package, at: layout.name, what });
        };
        let request = Request::dequantize(format.name, layout.rows, format.elements);
        let reader = Dequantizer::new(&registry.prepare(&request)?.decide_as_asked())?;
        Ok(Importer { layout, format, reader })
    }

    /// The layout.
    pub fn layout(&self) -> &'static ImportInfo {
        self.layout
    }

    /// The format of what [`convert`](Importer::convert) returns.
    pub fn format(&self) -> &'static FormatInfo {
        self.format
    }

    /// Bytes of a tensor of `n` rows of `k` elements, its tail included: as many as the format takes.
    ///
    /// # Errors
    /// [`Error::RowsNotMultiple`], [`Error::KNotMultiple`], [`Error::TooLarge`].
    pub fn tensor_bytes(&self, n: usize, k: usize) -> Result<usize, Error> {
        let rows = self.layout.rows;
        if rows == 0 || !n.is_multiple_of(rows) {
            return Err(Error::RowsNotMultiple { layout: self.layout.name, rows, n });
        }
        self.format.tensor_bytes(n, k)
    }

    /// The same tensor in its format's own order: every bit of `data` that means something, and no other.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] (bytes) and those of [`tensor_bytes`](Importer::tensor_bytes); [`Error::InvalidCode`] with
    /// the row and column of a code that means nothing; [`Error::OutOfMemory`].
    pub fn convert(&self, n: usize, k: usize, data: &[u8]) -> Result<Vec<u8>, Error> {
        let expected = self.tensor_bytes(n, k)?;
        if data.len() != expected {
            let what = self.layout.name;
            return Err(Error::ShapeMismatch { what, unit: "bytes", expected, found: data.len() });
        }
        let mut out = zeros(expected)?;
        let (rows, block, header) = (self.layout.rows, self.format.bytes, self.format.header_bytes());
        let row_bytes = self.format.row_bytes(k)?;
        let (from, tail) = data.split_at(n * row_bytes);
        let (to, tail_to) = out.split_at_mut(n * row_bytes);
        tail_to.copy_from_slice(tail);
        // A tensor without rows may have rows of any length.
        let panel = rows.saturating_mul(row_bytes).max(1);
        for (from, to) in from.chunks_exact(panel).zip(to.chunks_exact_mut(panel)) {
            let (headers, tiles) = from.split_at(rows * header);
            for (row, to) in to.chunks_exact_mut(row_bytes).enumerate() {
                to[..header].copy_from_slice(&headers[row * header..][..header]);
            }
            for (index, tile) in tiles.chunks_exact(rows * block).enumerate() {
                for part in self.layout.moves {
                    let at = part.row as usize * row_bytes + header + index * block;
                    put(&mut to[at..at + block], part, get(tile, part));
                }
            }
        }
        self.reader.validate(&QuantizedMatrix::new(self.format, n, k, &out)?)?;
        Ok(out)
    }
}

/// The bits of a move, from a tile.
fn get(tile: &[u8], part: &Move) -> u64 {
    let (first, bits) = (part.from as usize, part.bits as usize);
    let bytes = &tile[first / 8..(first + bits).div_ceil(8)];
    let value = bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    value >> (first % 8) & ((1 << bits) - 1)
}

/// Sets the bits of a move in a block that has zeros there.
fn put(block: &mut [u8], part: &Move, value: u64) {
    let (first, bits) = (part.to as usize, part.bits as usize);
    let value = value << (first % 8);
    for (i, byte) in block[first / 8..(first + bits).div_ceil(8)].iter_mut().enumerate() {
        *byte |= (value >> (8 * i)) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_across_bytes_keep_their_order() {
        let tile: [u8; 6] = [0xa5, 0x3c, 0x96, 0x0f, 0x81, 0x7e];
        let whole = tile.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        for (from, to, bits) in [(0, 0, 8), (3, 5, 9), (7, 0, 32), (15, 7, 32), (2, 14, 1), (16, 39, 1)] {
            let part = Move { from, row: 0, to, bits };
            let expected = whole >> from & ((1 << bits) - 1);
            assert_eq!(get(&tile, &part), expected, "{part:?}");
            let mut block = [0u8; 5];
            put(&mut block, &part, expected);
            let found = block.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
            assert_eq!(found, expected << to, "{part:?}");
        }
    }
}
