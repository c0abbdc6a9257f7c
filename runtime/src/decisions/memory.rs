//! What a product takes of memory, known before weights are loaded.

use crate::activations::RowLayout;
use crate::decide::{Decision, Prepared};
use crate::error::Error;
use crate::operands::packed_size::{layout_of, packed_bytes};
use crate::threads::Threads;
use crate::weights::WeightLayout;
use crate::workspace::WorkspaceSize;
use gristmill_spec::vocab::DeviceKind;

/// What the product of a [`Decision`] takes of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductMemory {
    /// Name of the packing of the weights; `None` for a format's own rows.
    pub packing: Option<&'static str>,
    /// Bytes of the packed weights, scales included: what [`PackedMatrix::bytes`](crate::PackedMatrix::bytes) will say.
    pub weight_bytes: usize,
    /// The same for each weight, in bits; 0 for no weights.
    pub bits_per_weight: f64,
    /// What the workspace must hold for the tokens of the decision's shape; nothing for a kernel of a GPU.
    pub workspace: WorkspaceSize,
}

impl Prepared {
    /// The packings that a layer of `n` rows of `k` holds its weights in, each with its bytes, scales included; `None` for the
    /// format's own rows. Usually one; on a GPU with [`Packings::Fastest`](crate::Packings::Fastest) that of one token first, then
    /// that of several. Nothing is loaded, and no GPU asked.
    ///
    /// # Errors
    /// [`Error::WrongOp`] for what is no product; [`Error::KNotMultiple`], [`Error::TooLarge`].
    pub fn packings(&self, n: usize, k: usize) -> Result<Vec<(Option<&'static str>, usize)>, Error> {
        let mut layouts: Vec<WeightLayout> = Vec::new();
        let mut packings = Vec::new();
        for candidate in self.covering(n, k).needed {
            let layout = layout_of(self.registry(), candidate.entry)?;
            if layouts.iter().all(|known| !known.reads(&layout)) {
                let bytes = packed_bytes(self.registry(), candidate.entry, n, k)?;
                packings.push((layout.packing.map(|packing| packing.name), bytes));
                layouts.push(layout);
            }
        }
        Ok(packings)
    }
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
        let WeightLayout { format, packing, unit } = layout_of(registry, entry)?;
        let block = registry.activations.get(format.activations).and_then(|activations| activations.block);
        let weight_bytes = packed_bytes(registry, entry, shape.n, shape.k)?;
        let weights = shape.n as f64 * shape.k as f64;
        Ok(ProductMemory {
            packing: packing.map(|packing| packing.name),
            weight_bytes,
            bits_per_weight: if weights > 0.0 { 8.0 * weight_bytes as f64 / weights } else { 0.0 },
            workspace: match entry.device {
                DeviceKind::Cpu => {
                    RowLayout::new(unit, shape.k, block)?.workspace(shape.m, threads.most_parts())?
                }
                DeviceKind::Cuda | DeviceKind::Rocm | DeviceKind::Metal => WorkspaceSize::default(),
            },
        })
    }
}
