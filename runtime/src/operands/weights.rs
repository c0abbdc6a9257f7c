//! Weights: a format's own bytes, and the packed form that a kernel reads.

use crate::error::Error;
use crate::memory::aligned::Aligned;
use crate::memory::homes::Share;
use crate::memory::placement::{Placement, buffer};
use crate::registry::{FormatInfo, OuterType, PackInfo, Unit};
use crate::threads::Threads;

impl OuterType {
    /// Size in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            OuterType::F16 | OuterType::Bf16 => 2,
            OuterType::F32 => 4,
        }
    }

    /// Reads a little-endian number; `None` if `bytes` is too short.
    pub(crate) fn read(self, bytes: &[u8]) -> Option<f32> {
        match self {
            OuterType::F16 => bytes.first_chunk().map(|b| half::f16::from_le_bytes(*b).to_f32()),
            OuterType::Bf16 => bytes.first_chunk().map(|b| half::bf16::from_le_bytes(*b).to_f32()),
            OuterType::F32 => bytes.first_chunk().map(|b| f32::from_le_bytes(*b)),
        }
    }

    /// Writes `value`, rounded to nearest even, to the start of `bytes`. False if it does not fit:
    /// a finite value that the type can't hold, or too few bytes.
    pub(crate) fn write(self, value: f32, bytes: &mut [u8]) -> bool {
        let fits = |stored: f32| stored.is_finite() || !value.is_finite();
        match self {
            OuterType::F16 => {
                let stored = half::f16::from_f32(value);
                put(bytes, stored.to_le_bytes()) && fits(stored.to_f32())
            }
            OuterType::Bf16 => {
                let stored = half::bf16::from_f32(value);
                put(bytes, stored.to_le_bytes()) && fits(stored.to_f32())
            }
            OuterType::F32 => put(bytes, value.to_le_bytes()),
        }
    }
}

fn put<const N: usize>(bytes: &mut [u8], value: [u8; N]) -> bool {
    match bytes.first_chunk_mut() {
        Some(place) => {
            *place = value;
            true
        }
        None => false,
    }
}

impl FormatInfo {
    /// Bytes of the scalar before the blocks of a row.
    pub(crate) fn header_bytes(&self) -> usize {
        self.row_header.map_or(0, OuterType::bytes)
    }

    /// Bytes of a row of `k` elements: its header and its blocks.
    ///
    /// # Errors
    /// [`Error::KNotMultiple`] if `k` is not whole blocks; [`Error::TooLarge`].
    pub fn row_bytes(&self, k: usize) -> Result<usize, Error> {
        if self.elements == 0 || !k.is_multiple_of(self.elements) {
            return Err(Error::KNotMultiple { format: self.name, elements: self.elements, k });
        }
        (k / self.elements)
            .checked_mul(self.bytes)
            .and_then(|blocks| blocks.checked_add(self.header_bytes()))
            .ok_or(Error::TooLarge { what: "a row" })
    }

    /// Bytes of a tensor of `n` rows of `k` elements, its tail included.
    ///
    /// # Errors
    /// [`Error::KNotMultiple`] if `k` is not whole blocks; [`Error::TooLarge`].
    pub fn tensor_bytes(&self, n: usize, k: usize) -> Result<usize, Error> {
        let too_large = Error::TooLarge { what: "a tensor" };
        // Element counts must fit too: buffers of f32 are made for them.
        if n.checked_mul(k).is_none() {
            return Err(too_large);
        }
        let tail = self.tensor_tail.map_or(0, |(outer, bytes)| bytes.max(outer.bytes()));
        self.row_bytes(k)?.checked_mul(n).and_then(|rows| rows.checked_add(tail)).ok_or(too_large)
    }

    /// Whether two descriptions give bytes the same meaning, as far as sizes and names tell.
    pub fn same_as(&self, other: &FormatInfo) -> bool {
        std::ptr::eq(self, other)
            || (self.name == other.name
                && self.elements == other.elements
                && self.bytes == other.bytes
                && self.row_header == other.row_header
                && self.tensor_tail == other.tensor_tail)
    }
}

/// A tensor in a format's own bytes: `n` rows of `k` elements, borrowed (from a mapped file, say).
/// The bytes may start anywhere.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedMatrix<'a> {
    format: &'static FormatInfo,
    n: usize,
    k: usize,
    row_bytes: usize,
    data: &'a [u8],
}

impl<'a> QuantizedMatrix<'a> {
    /// Checks that `data` is as long as the shape says: for each row its header and blocks, then the
    /// tensor's tail.
    ///
    /// # Errors
    /// [`Error::KNotMultiple`], [`Error::ShapeMismatch`] (bytes), [`Error::TooLarge`].
    pub fn new(
        format: &'static FormatInfo,
        n: usize,
        k: usize,
        data: &'a [u8],
    ) -> Result<QuantizedMatrix<'a>, Error> {
        let expected = format.tensor_bytes(n, k)?;
        if data.len() != expected {
            return Err(Error::ShapeMismatch {
                what: format.name,
                unit: "bytes",
                expected,
                found: data.len(),
            });
        }
        Ok(QuantizedMatrix { format, n, k, row_bytes: format.row_bytes(k)?, data })
    }

    /// Of parts that were checked together.
    pub(crate) fn checked(
        format: &'static FormatInfo,
        n: usize,
        k: usize,
        row_bytes: usize,
        data: &'a [u8],
    ) -> QuantizedMatrix<'a> {
        QuantizedMatrix { format, n, k, row_bytes, data }
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

    /// All bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Bytes of a row, its header included.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of the tensor, its tail included.
    pub fn total_bytes(&self) -> usize {
        self.data.len()
    }

    /// The scale outside blocks that row `row` is subject to: the row's header or the tensor's tail;
    /// 1 where the format has neither.
    ///
    /// # Errors
    /// [`Error::NoSuchRow`].
    pub fn outer_scale(&self, row: usize) -> Result<f32, Error> {
        let beyond = Error::NoSuchRow { row, rows: self.n };
        if row >= self.n {
            return Err(beyond);
        }
        let (outer, at) = match (self.format.row_header, self.format.tensor_tail) {
            (Some(outer), _) => (outer, row * self.row_bytes),
            (None, Some((outer, _))) => (outer, self.n * self.row_bytes),
            (None, None) => return Ok(1.0),
        };
        self.data.get(at..).and_then(|bytes| outer.read(bytes)).ok_or(beyond)
    }

    /// The blocks of row `row`; empty if there is no such row.
    pub(crate) fn blocks(&self, row: usize) -> &'a [u8] {
        let header = self.format.header_bytes();
        let begin = row.saturating_mul(self.row_bytes).saturating_add(header);
        let end = row.saturating_add(1).saturating_mul(self.row_bytes);
        if row < self.n { self.data.get(begin..end).unwrap_or(&[]) } else { &[] }
    }
}

/// Matrices one above the other, of one format and with rows of one length: the weights of layers that share their input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack<'s, 'a> {
    matrices: &'s [QuantizedMatrix<'a>],
    first: QuantizedMatrix<'a>,
    n: usize,
}

impl<'s, 'a> Stack<'s, 'a> {
    pub(crate) fn new(matrices: &'s [QuantizedMatrix<'a>]) -> Result<Stack<'s, 'a>, Error> {
        let what = "stacked weights";
        let Some(&first) = matrices.first() else {
            return Err(Error::NothingStacked);
        };
        let mut n = 0usize;
        for matrix in matrices {
            if !matrix.format.same_as(first.format) {
                return Err(Error::MixedFormats { first: first.format.name, other: matrix.format.name });
            }
            if matrix.k != first.k {
                let (expected, found) = (first.k, matrix.k);
                let what = "one of the stacked matrices";
                return Err(Error::ShapeMismatch { what, unit: "elements a row", expected, found });
            }
            n = n.checked_add(matrix.n).ok_or(Error::TooLarge { what })?;
        }
        Ok(Stack { matrices, first, n })
    }

    pub(crate) fn matrices(&self) -> &'s [QuantizedMatrix<'a>] {
        self.matrices
    }

    pub(crate) fn format(&self) -> &'static FormatInfo {
        self.first.format
    }

    pub(crate) fn n(&self) -> usize {
        self.n
    }

    pub(crate) fn k(&self) -> usize {
        self.first.k
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.first.row_bytes
    }

    pub(crate) fn total_bytes(&self) -> usize {
        self.matrices.iter().map(QuantizedMatrix::total_bytes).sum()
    }

    /// The matrix that has row `row`, and which of its rows that is.
    fn find(&self, mut row: usize) -> Option<(&'s QuantizedMatrix<'a>, usize)> {
        for matrix in self.matrices {
            if row < matrix.n {
                return Some((matrix, row));
            }
            row -= matrix.n;
        }
        None
    }

    pub(crate) fn outer_scale(&self, row: usize) -> Result<f32, Error> {
        let (matrix, row) = self.find(row).ok_or(Error::NoSuchRow { row, rows: self.n })?;
        matrix.outer_scale(row)
    }

    /// The blocks of row `row`; empty if there is no such row.
    pub(crate) fn blocks(&self, row: usize) -> &'a [u8] {
        self.find(row).map_or(&[], |(matrix, row)| matrix.blocks(row))
    }

    /// The blocks of `count` rows from `row` on, and the bytes from one row's to the next's. Where they lie in several
    /// matrices, they are brought together in `gathered`.
    pub(crate) fn rows<'g>(&self, row: usize, count: usize, gathered: &'g mut Vec<u8>) -> (&'g [u8], usize)
    where
        'a: 'g,
    {
        let header = self.first.format.header_bytes();
        if let Some((matrix, row)) = self.find(row)
            && row.saturating_add(count) <= matrix.n
        {
            let rows = row * matrix.row_bytes..(row + count) * matrix.row_bytes;
            return (
                matrix.data.get(rows).and_then(|rows| rows.get(header..)).unwrap_or(&[]),
                matrix.row_bytes,
            );
        }
        gathered.clear();
        for row in row..row.saturating_add(count) {
            gathered.extend_from_slice(self.blocks(row));
        }
        (gathered, self.first.row_bytes - header)
    }
}

/// How a kernel wants its weights: what must agree for packed weights to be read by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightLayout {
    pub(crate) format: &'static FormatInfo,
    pub(crate) packing: Option<&'static PackInfo>,
    pub(crate) unit: Unit,
}

impl WeightLayout {
    pub(crate) fn name(&self) -> &'static str {
        self.packing.map_or("rows", |packing| packing.name)
    }

    /// Rows of a panel; 1 where rows are not packed.
    pub(crate) fn panel_rows(&self) -> usize {
        self.packing.map_or(1, |packing| packing.rows)
    }

    /// Whether a kernel that wants `self` reads what was packed for `other`.
    pub(crate) fn reads(&self, other: &WeightLayout) -> bool {
        let same_packing = match (self.packing, other.packing) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                std::ptr::eq(a, b)
                    || (a.name == b.name
                        && a.rows == b.rows
                        && a.tile_k == b.tile_k
                        && a.tile_bytes == b.tile_bytes
                        && a.scale_bytes == b.scale_bytes
                        && a.min_bytes == b.min_bytes
                        && a.runs == b.runs
                        && a.span == b.span
                        && a.scale_integer_bits == b.scale_integer_bits
                        && a.min_integer_bits == b.min_integer_bits
                        && a.flag_bits == b.flag_bits
                        && a.meaning == b.meaning
                        && a.min == b.min
                        && a.table == b.table)
            }
            (Some(_), None) | (None, Some(_)) => false,
        };
        same_packing && self.unit == other.unit && self.format.same_as(other.format)
    }
}

/// Weights in the order that a kernel reads them, in memory of their own. Made by
/// [`Matmul::pack`](crate::kernel::Matmul::pack); any kernel with the same packing on the same device
/// reads them.
#[derive(Debug)]
pub struct PackedMatrix {
    pub(crate) layout: WeightLayout,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Units of a row.
    pub(crate) units: usize,
    /// Panel after panel, `stride` bytes each; blocks of rows where nothing packs them.
    pub(crate) codes: Aligned<u8>,
    pub(crate) stride: usize,
    /// Panel after panel as [`PackInfo::terms`] says; empty where blocks have none.
    pub(crate) scales: Aligned<f32>,
    /// Like `scales`.
    pub(crate) mins: Aligned<f32>,
    /// One for each row of each panel; 0 for rows beyond `n`.
    pub(crate) outer: Aligned<f32>,
    /// Whose panels are whose, on several NUMA nodes; empty on one.
    pub(crate) shares: Vec<Share>,
    /// The same on a GPU; the buffers above are empty then.
    pub(crate) device: Option<std::sync::Arc<crate::cuda::Weights>>,
}

impl PackedMatrix {
    /// The format.
    pub fn format(&self) -> &'static FormatInfo {
        self.layout.format
    }

    /// Name of the packing; `None` for a format's own rows.
    pub fn packing(&self) -> Option<&'static str> {
        self.layout.packing.map(|packing| packing.name)
    }

    /// Rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The same weights in memory of their own (to be read from memory in turn, say), on the same NUMA nodes. Weights on
    /// a GPU are shared.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn try_clone(&self) -> Result<PackedMatrix, Error> {
        let alone = Threads::single();
        let words = |all: &Aligned<f32>| -> Result<Aligned<f32>, Error> {
            let mut copy = buffer(all.len(), all.len() / self.panels(), &self.shares, &alone)?;
            copy.copy_from_slice(all);
            Ok(copy)
        };
        let mut codes = buffer(self.codes.len(), self.stride, &self.shares, &alone)?;
        codes.copy_from_slice(&self.codes);
        Ok(PackedMatrix {
            codes,
            scales: words(&self.scales)?,
            mins: words(&self.mins)?,
            shares: self.shares.clone(),
            outer: self.outer.try_clone()?,
            device: self.device.clone(),
            layout: self.layout,
            n: self.n,
            k: self.k,
            units: self.units,
            stride: self.stride,
        })
    }

    /// On which NUMA nodes these weights lie, and how much of them is read from others: `None` on a machine with one node, for threads that are
    /// all on one, and on a GPU. Asks the system about each page, so it is for looking, not for every run.
    pub fn placement(&self) -> Option<Placement> {
        let buffers: [&[u8]; 3] = [&self.codes, self.scales.as_bytes(), self.mins.as_bytes()];
        (!self.shares.is_empty())
            .then(|| Placement::of(&self.shares, self.panels(), &buffers, self.outer.bytes()))
    }

    /// How many panels there are, one at least.
    fn panels(&self) -> usize {
        self.n.div_ceil(self.layout.panel_rows().max(1)).max(1)
    }

    /// Bytes held: codes, scales, minimum terms and outer scales.
    pub fn bytes(&self) -> usize {
        let device = self.device.as_ref().map_or(0, |weights| weights.bytes());
        device + self.codes.bytes() + self.scales.bytes() + self.mins.bytes() + self.outer.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Fault;
    use crate::registry::{FormatFacts, PackFacts};

    unsafe fn pack(
        _: *const u8,
        _: usize,
        _: usize,
        _: usize,
        _: *mut u8,
        _: *mut f32,
        _: *mut f32,
    ) -> Result<(), Fault> {
        Ok(())
    }

    unsafe fn unpack(_: *const u8, _: *const f32, _: *const f32, _: f32, _: usize, _: usize, _: *mut f32) {}

    const FORMAT: FormatFacts = FormatFacts {
        name: "a",
        doc: "",
        source: "",
        gguf: None,
        elements: 32,
        bytes: 18,
        row_header: Some(OuterType::F16),
        tensor_tail: None,
        quantizers: &[],
        activations: 0,
    };

    const PACKING: PackFacts = PackFacts {
        name: "p",
        rows: 4,
        tile_k: 4,
        tile_bytes: 8,
        scale_bytes: 4,
        min_bytes: 0,
        runs: 1,
        span: 1,
        scale_integer_bits: 8,
        min_integer_bits: 8,
        flag_bits: 0,
        meaning: "",
        min: -1,
        table: None,
        pack,
        unpack,
    };

    const UNIT: Unit = Unit { elements: 32, multiple: 64 };

    fn format(facts: FormatFacts) -> &'static FormatInfo {
        // SAFETY: nothing of this format is run.
        Box::leak(Box::new(unsafe { FormatInfo::new(facts) }))
    }

    fn layout(facts: FormatFacts, packing: Option<PackFacts>, unit: Unit) -> WeightLayout {
        // SAFETY: the functions touch no memory.
        let packing = packing.map(|facts| &*Box::leak(Box::new(unsafe { PackInfo::new(facts) })));
        WeightLayout { format: format(facts), packing, unit }
    }

    #[test]
    fn formats_are_the_same_by_every_fact_that_gives_bytes_a_meaning() {
        let a = format(FORMAT);
        assert!(a.same_as(a) && a.same_as(format(FORMAT)));
        // Where it is described and what quantizes to it changes no byte.
        assert!(a.same_as(format(FormatFacts { source: "elsewhere", quantizers: &["q"], ..FORMAT })));
        for other in [
            FormatFacts { name: "b", ..FORMAT },
            FormatFacts { elements: 16, ..FORMAT },
            FormatFacts { bytes: 20, ..FORMAT },
            FormatFacts { row_header: Some(OuterType::Bf16), ..FORMAT },
            FormatFacts { row_header: None, ..FORMAT },
        ] {
            assert!(!a.same_as(format(other)) && !format(other).same_as(a), "{other:?}");
        }
        let [none, tail] = [None, Some((OuterType::F32, 32))]
            .map(|tensor_tail| format(FormatFacts { row_header: None, tensor_tail, ..FORMAT }));
        assert!(!none.same_as(tail) && !tail.same_as(none));
    }

    #[test]
    fn packed_weights_are_read_by_what_agrees_in_every_fact() {
        let a = layout(FORMAT, Some(PACKING), UNIT);
        assert!(a.reads(&a) && a.reads(&layout(FORMAT, Some(PACKING), UNIT)));
        for other in [
            PackFacts { name: "q", ..PACKING },
            PackFacts { rows: 8, ..PACKING },
            PackFacts { tile_k: 8, ..PACKING },
            PackFacts { tile_bytes: 16, ..PACKING },
            PackFacts { scale_bytes: 0, ..PACKING },
            PackFacts { scale_bytes: 2, ..PACKING },
            PackFacts { min_bytes: 4, ..PACKING },
            PackFacts { runs: 2, ..PACKING },
            PackFacts { span: 2, ..PACKING },
            PackFacts { scale_integer_bits: 4, runs: 2, ..PACKING },
            PackFacts { min_integer_bits: 4, runs: 2, ..PACKING },
            PackFacts { flag_bits: 8, runs: 2, ..PACKING },
            PackFacts { meaning: "_unit3f000000", ..PACKING },
            PackFacts { min: 0, ..PACKING },
            PackFacts { table: Some(&[1; 16]), ..PACKING },
        ] {
            let b = layout(FORMAT, Some(other), UNIT);
            assert!(!a.reads(&b) && !b.reads(&a), "{other:?}");
        }
        let rows = layout(FORMAT, None, UNIT);
        assert!(rows.reads(&layout(FORMAT, None, UNIT)));
        for b in [
            rows,
            layout(FormatFacts { name: "b", ..FORMAT }, Some(PACKING), UNIT),
            layout(FORMAT, Some(PACKING), Unit { elements: 16, ..UNIT }),
            layout(FORMAT, Some(PACKING), Unit { multiple: 32, ..UNIT }),
        ] {
            assert!(!a.reads(&b) && !b.reads(&a), "{b:?}");
        }
    }
}
