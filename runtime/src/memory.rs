//! What a product takes of memory, known before weights are loaded.

use crate::activations::RowLayout;
use crate::decide::Decision;
use crate::error::Error;
use crate::packed_size::PackedSize;
use crate::registry::{Code, CudaCode, CudaLaunch, Unit};
use crate::threads::Threads;
use crate::workspace::WorkspaceSize;
use gristmill_spec::vocab::{DeviceKind, Op};

/// What the product of a [`Decision`] takes of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductMemory {
    /// Name of the packing of the weights; `None` for a format's own rows.
    pub packing: Option<&'static str>,
    /// Bytes of the packed weights, scales included: what [`PackedMatrix::bytes`](crate::PackedMatrix::bytes) will say.
    pub weight_bytes: usize,
    /// The same for each weight, in bits; 0 for no weights.
    pub bits_per_weight: f64,
    /// What the workspace must hold for the tokens of the decision's shape.
    pub workspace: WorkspaceSize,
}

impl Decision<'_> {
    /// What the chosen product takes of memory for the decision's shape, with `threads`. Nothing is loaded or allocated, and
    /// no GPU asked.
    ///
    /// # Errors
    /// Why nothing was chosen; [`Error::WrongOp`] for what is no product; [`Error::KNotMultiple`], [`Error::TooLarge`].
    pub fn memory(&self, threads: &Threads) -> Result<ProductMemory, Error> {
        let entry = self.kernel()?;
        let registry = self.prepared().registry();
        let shape = self.shape();
        let wrong = Error::WrongOp { kernel: entry.name, expected: Op::Matmul, found: entry.op };
        let broken = |what| Error::BrokenRegistry { package: registry.package, at: entry.name, what };
        let unit = match &entry.code {
            Code::Matmul { unit, .. } => *unit,
            Code::Cuda(CudaCode { launch: CudaLaunch::Matmul { unit, .. }, .. }) => *unit,
            // Products of floats quantize nothing: rows are whole.
            Code::Cuda(CudaCode { launch: CudaLaunch::Rows { .. }, .. }) => Unit::ROW,
            _ => return Err(wrong),
        };
        let packing = entry.code.packing();
        if unit.multiple == 0 || packing.is_some_and(|packing| packing.rows == 0 || packing.tile_k == 0) {
            return Err(broken("a unit, a panel or a tile is empty"));
        }
        let format = registry.formats.get(entry.format).ok_or_else(|| broken("it names no format"))?;
        let block = registry.activations.get(format.activations).and_then(|activations| activations.block);
        let on_gpu = entry.device == DeviceKind::Cuda;
        let weight_bytes = PackedSize::of(format, packing, unit, shape.n, shape.k, on_gpu)?.bytes()?;
        let weights = shape.n as f64 * shape.k as f64;
        Ok(ProductMemory {
            packing: packing.map(|packing| packing.name),
            weight_bytes,
            bits_per_weight: if weights > 0.0 { 8.0 * weight_bytes as f64 / weights } else { 0.0 },
            workspace: RowLayout::new(unit, shape.k, block)?.workspace(shape.m, threads.most_parts())?,
        })
    }
}
