//! Weights of a product: packed for its kernel, and read back.

use super::Matmul;
use crate::activations::RowLayout;
use crate::error::Error;
use crate::kernel::{Dequantizer, check_format};
use crate::memory::aligned::Aligned;
use crate::memory::homes::Share;
use crate::memory::placement::buffer;
use crate::operands::packed_size::PackedSize;
use crate::operands::sizes::check_len;
use crate::registry::PackInfo;
use crate::run::launch::{self, On, PanelSize, Panels};
use crate::threads::Threads;
use crate::weights::{PackedMatrix, QuantizedMatrix, Stack, WeightLayout};

impl Matmul {
    /// Whether weights packed by `other` can be run by this kernel.
    pub fn shares_packing_with(&self, other: &Matmul) -> bool {
        let same_device = match (&self.on, &other.on) {
            (On::Cpu(_), On::Cpu(_)) => true,
            (On::Cuda(one), On::Cuda(other)) => one.shares_device_with(other),
            (On::Cpu(_), On::Cuda(_)) | (On::Cuda(_), On::Cpu(_)) => false,
        };
        same_device && self.layout.reads(&other.layout)
    }

    /// Packs weights on the calling thread.
    ///
    /// # Errors
    /// As for [`Matmul::pack_on`].
    pub fn pack(&self, matrix: &QuantizedMatrix<'_>) -> Result<PackedMatrix, Error> {
        self.pack_on(matrix, &Threads::single())
    }

    /// Packs weights: rows into panels, with scales and minimum terms apart. A kernel without a packing
    /// gets a copy of the blocks, read through once.
    ///
    /// # Errors
    /// [`Error::WrongFormat`]; [`Error::InvalidCode`] with the position; [`Error::OutOfMemory`],
    /// [`Error::TooLarge`].
    pub fn pack_on(&self, matrix: &QuantizedMatrix<'_>, threads: &Threads) -> Result<PackedMatrix, Error> {
        self.pack_stacked(std::slice::from_ref(matrix), threads)
    }

    /// Packs matrices of one format and `k` one above the other, for layers that share their input (query, key and
    /// value; gate and up): one launch then does the work of all, and activations are quantized once. A row of the
    /// output holds the outputs of the first matrix, then those of the second, and so on; each keeps its own scale.
    ///
    /// # Errors
    /// As for [`Matmul::pack_on`], rows counted over all matrices; [`Error::NothingStacked`] for none, [`Error::ShapeMismatch`] for rows of
    /// different length, [`Error::MixedFormats`].
    pub fn pack_stacked(
        &self,
        matrices: &[QuantizedMatrix<'_>],
        threads: &Threads,
    ) -> Result<PackedMatrix, Error> {
        let matrix = &Stack::new(matrices)?;
        let shares = match &self.on {
            On::Cpu(_) => threads.shares(matrix.n(), self.layout.panel_rows(), matrix.k()),
            On::Cuda(_) => Vec::new(),
        };
        self.pack_in(matrix, shares, threads)
    }

    /// As [`pack_stacked`](Matmul::pack_stacked), wherever the system puts the weights.
    pub(crate) fn pack_together(
        &self,
        matrices: &[QuantizedMatrix<'_>],
        threads: &Threads,
    ) -> Result<PackedMatrix, Error> {
        self.pack_in(&Stack::new(matrices)?, Vec::new(), threads)
    }

    fn pack_in(
        &self,
        matrix: &Stack<'_, '_>,
        shares: Vec<Share>,
        threads: &Threads,
    ) -> Result<PackedMatrix, Error> {
        let layout = self.layout;
        check_format(self.on.entry(), layout.format, matrix.format())?;
        let (n, k) = (matrix.n(), matrix.k());
        let row = RowLayout::new(layout.unit, k, self.activation_format.block)?;
        let size = self.packed_size(n, k)?;
        let mut outer = Aligned::zeroed(size.outer)?;
        for (row, outer) in outer.iter_mut().enumerate().take(n) {
            *outer = matrix.outer_scale(row)?;
        }
        let mut packed = PackedMatrix {
            layout,
            n,
            k,
            units: row.units,
            codes: Aligned::empty(),
            stride: size.stride,
            scales: Aligned::empty(),
            mins: Aligned::empty(),
            outer,
            shares,
            device: None,
        };
        match (layout.packing, &self.dequantizer) {
            (Some(packing), _) => pack_panels(packing, matrix, size, &mut packed, threads)?,
            (None, Some(dequantizer)) => {
                for matrix in matrix.matrices() {
                    dequantizer.validate(matrix)?;
                }
                let bytes = matrix.row_bytes() - layout.format.header_bytes();
                packed.codes = buffer(size.all(size.stride)?, size.stride, &packed.shares, threads)?;
                if packed.stride > 0 {
                    for (row, codes) in packed.codes.chunks_exact_mut(packed.stride).enumerate() {
                        codes[..bytes].copy_from_slice(matrix.blocks(row));
                    }
                }
            }
            (None, None) => return Err(self.on.broken("it has neither a packing nor a dequantizer")),
        }
        if let On::Cuda(launcher) = &self.on {
            launcher.upload(&mut packed)?;
        }
        Ok(packed)
    }

    fn packed_size(&self, n: usize, k: usize) -> Result<PackedSize, Error> {
        let WeightLayout { format, packing, unit } = self.layout;
        PackedSize::of(format, packing, unit, n, k, matches!(self.on, On::Cuda(_)))
    }

    /// Bytes that `n` rows of `k` elements will take packed for this kernel: what [`PackedMatrix::bytes`] then says. Divided
    /// by `n * k` and times 8 these are the bits per weight.
    ///
    /// # Errors
    /// [`Error::KNotMultiple`] where the kernel reads the format's own rows; [`Error::TooLarge`].
    pub fn packed_bytes(&self, n: usize, k: usize) -> Result<usize, Error> {
        self.packed_size(n, k)?.bytes()
    }

    /// Row `row` of packed weights as `k` values of f32, for checks and tests.
    ///
    /// # Errors
    /// [`Error::WrongPacking`], [`Error::NoSuchRow`], [`Error::ShapeMismatch`].
    pub fn unpack_row(&self, weights: &PackedMatrix, row: usize, dst: &mut [f32]) -> Result<(), Error> {
        self.accepts(weights)?;
        if row >= weights.n {
            return Err(Error::NoSuchRow { row, rows: weights.n });
        }
        check_len("the destination", "values", weights.k, dst.len())?;
        if dst.is_empty() {
            return Ok(());
        }
        match (&self.on, self.layout.packing, &self.dequantizer) {
            (On::Cpu(launcher), Some(packing), _) => {
                launcher.unpack(packing, weights, row, dst);
                Ok(())
            }
            (On::Cuda(launcher), Some(packing), _) => launcher.unpack(packing, weights, row, dst),
            (_, None, Some(Dequantizer { on: On::Cpu(launcher), format, .. })) => {
                let blocks = &weights.codes[row * weights.stride..][..weights.stride];
                launcher.one(format, blocks, weights.outer[row], dst)
            }
            (On::Cuda(launcher), None, Some(dequantizer)) => {
                let format = self.layout.format;
                let mut tensor = vec![0; format.tensor_bytes(1, weights.k)?];
                let (row_bytes, header) = (format.row_bytes(weights.k)?, format.header_bytes());
                let outer = launcher.read_row(weights, row, &mut tensor[header..row_bytes])?;
                match (format.row_header, format.tensor_tail) {
                    (Some(scalar), _) => scalar.write(outer, &mut tensor),
                    (None, Some((scalar, _))) => scalar.write(outer, &mut tensor[row_bytes..]),
                    (None, None) => true,
                };
                dequantizer.run(&QuantizedMatrix::new(format, 1, weights.k, &tensor)?, dst)
            }
            (_, None, Some(_) | None) => Err(self.on.broken("it has neither a packing nor a dequantizer")),
        }
    }

    pub(super) fn accepts(&self, weights: &PackedMatrix) -> Result<(), Error> {
        let kernel = self.on.entry().name;
        check_format(self.on.entry(), self.layout.format, weights.layout.format)?;
        if !self.layout.reads(&weights.layout) {
            let (expected, found) = (self.layout.name(), weights.layout.name());
            return Err(Error::WrongPacking { kernel, expected, found });
        }
        if let (On::Cpu(_), true) = (&self.on, weights.device.is_some()) {
            let (expected, found) = ("weights of the processor", "weights on a GPU");
            return Err(Error::WrongPacking { kernel, expected, found });
        }
        Ok(())
    }
}

fn pack_panels(
    packing: &'static PackInfo,
    matrix: &Stack<'_, '_>,
    size: PackedSize,
    packed: &mut PackedMatrix,
    threads: &Threads,
) -> Result<(), Error> {
    packed.codes = buffer(size.all(size.stride)?, size.stride, &packed.shares, threads)?;
    packed.scales = buffer(size.all(size.scales)?, size.scales, &packed.shares, threads)?;
    packed.mins = buffer(size.all(size.mins)?, size.mins, &packed.shares, threads)?;
    if packed.k == 0 {
        return Ok(());
    }
    let PackedSize { panels, stride, scales, mins, .. } = size;
    let size = PanelSize { rows: packing.rows, stride, scales, mins };
    let job =
        Panels { first: 0, codes: &mut packed.codes, scales: &mut packed.scales, mins: &mut packed.mins };
    let work = (matrix.total_bytes() as u64).saturating_mul(4);
    let split = |job, left, all| Panels::split(job, &size, left, all);
    let run = |job| launch::pack(packing, matrix, job, &size);
    threads.divide(threads.parts(work, panels), job, &split, &run)
}
