//! How much memory packed weights take: what packing allocates, and what an engine can know before it.

use crate::activations::RowLayout;
use crate::error::Error;
use crate::registry::{Code, CudaCode, CudaLaunch, Entry, FormatInfo, PackInfo, Registry, Unit};
use crate::weights::WeightLayout;
use gristmill_spec::vocab::{DeviceKind, Op};

const WHAT: &str = "packed weights";

/// What kernels of GPUs load of rows at a time, in bytes.
const GPU_LOAD: usize = 16;

/// How the weights of a product's kernel lie in memory.
///
/// # Errors
/// [`Error::WrongOp`] for what is no product.
pub(crate) fn layout_of(registry: &'static Registry, entry: &Entry) -> Result<WeightLayout, Error> {
    let wrong = Error::WrongOp { kernel: entry.name, expected: Op::Matmul, found: entry.op };
    let unit = match &entry.code {
        Code::Matmul { unit, .. } => *unit,
        Code::Cuda(CudaCode { launch: CudaLaunch::Matmul { unit, .. }, .. }) => *unit,
        // Products of floats quantize nothing: rows are whole.
        Code::Cuda(CudaCode { launch: CudaLaunch::Rows { .. }, .. }) => Unit::ROW,
        _ => return Err(wrong),
    };
    let packing = entry.code.packing();
    Ok(WeightLayout { format: &registry.formats[entry.format], packing, unit })
}

/// Bytes that `n` rows of `k` elements take packed for a product's kernel.
///
/// # Errors
/// As for [`layout_of`]; [`Error::KNotMultiple`], [`Error::TooLarge`].
pub(crate) fn packed_bytes(
    registry: &'static Registry,
    entry: &Entry,
    n: usize,
    k: usize,
) -> Result<usize, Error> {
    let WeightLayout { format, packing, unit } = layout_of(registry, entry)?;
    PackedSize::of(format, packing, unit, n, k, entry.device == DeviceKind::Cuda)?.bytes()
}

/// Sizes of the buffers of packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedSize {
    /// Panels; rows where nothing packs them.
    pub(crate) panels: usize,
    /// Bytes of codes from one panel to the next.
    pub(crate) stride: usize,
    /// Words of a panel's scales.
    pub(crate) scales: usize,
    /// Words of a panel's minimum terms.
    pub(crate) mins: usize,
    /// Outer scales: one for each row of each panel.
    pub(crate) outer: usize,
}

impl PackedSize {
    /// Of `n` rows of `k` elements of `format`, in panels of `packing` or, without one, as rows of the format.
    pub(crate) fn of(
        format: &FormatInfo,
        packing: Option<&PackInfo>,
        unit: Unit,
        n: usize,
        k: usize,
        on_gpu: bool,
    ) -> Result<PackedSize, Error> {
        let too_large = || Error::TooLarge { what: WHAT };
        let Some(packing) = packing else {
            let bytes = format.row_bytes(k)? - format.header_bytes();
            let align = if on_gpu { GPU_LOAD } else { 1 };
            let stride = bytes.checked_next_multiple_of(align).ok_or_else(too_large)?;
            return Ok(PackedSize { panels: n, stride, scales: 0, mins: 0, outer: n });
        };
        let row = RowLayout::new(unit, k, None)?;
        let tiles = row.bytes().div_ceil(packing.tile_k);
        let bytes = tiles.checked_mul(packing.tile_bytes).ok_or_else(too_large)?;
        Ok(PackedSize {
            panels: n.div_ceil(packing.rows),
            stride: bytes.checked_next_multiple_of(64).ok_or_else(too_large)?,
            scales: packing.scale_words(row.units).ok_or_else(too_large)?,
            mins: packing.min_words(row.units).ok_or_else(too_large)?,
            outer: n.checked_next_multiple_of(packing.rows).ok_or_else(too_large)?,
        })
    }

    /// So many of each panel, all panels together.
    pub(crate) fn all(&self, of_a_panel: usize) -> Result<usize, Error> {
        self.panels.checked_mul(of_a_panel).ok_or(Error::TooLarge { what: WHAT })
    }

    /// Bytes of all buffers.
    pub(crate) fn bytes(&self) -> Result<usize, Error> {
        let words = [self.all(self.scales)?, self.all(self.mins)?, self.outer];
        let words = words.iter().try_fold(0usize, |sum, words| sum.checked_add(words.checked_mul(4)?));
        words
            .and_then(|words| words.checked_add(self.panels.checked_mul(self.stride)?))
            .ok_or(Error::TooLarge { what: WHAT })
    }
}
