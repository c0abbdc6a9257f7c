//! What an engine can know of a kernel before it loads weights for it.

use super::{Code, CudaCode, Entry, Registry};
use crate::operands::packed_size::{layout_of, packed_bytes};
use crate::weights::WeightLayout;
use gristmill_spec::vocab::{CudaAlgorithm, Feature, Isa, Op};

/// How far a kernel goes for its device, by the instructions that it is written with; not a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Portable code: what the compiler makes of it.
    Optimized,
    /// Vector instructions of a processor, or the threads of a GPU.
    HighlyOptimized,
    /// Instructions that are made for products of small numbers: `vpdpbusd` (AVX-VNNI, AVX-512 VNNI), the tiles of AMX, `sdot` and `smmla` (Arm
    /// dotprod, i8mm), `dp4a` and the tensor cores of GPUs.
    ExtremelyOptimized,
}

impl Tier {
    /// As JSON and lists spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Tier::Optimized => "optimized",
            Tier::HighlyOptimized => "highly optimized",
            Tier::ExtremelyOptimized => "extremely optimized",
        }
    }
}

impl Entry {
    /// How far it goes for its device.
    pub fn tier(&self) -> Tier {
        const DOT_PRODUCTS: [Feature; 5] =
            [Feature::AvxVnni, Feature::Avx512vnni, Feature::AmxInt8, Feature::Dotprod, Feature::I8mm];
        match (self.code, self.isa) {
            (Code::Cuda(CudaCode { algorithm, .. }), _) => match algorithm {
                CudaAlgorithm::Dp4a => Tier::ExtremelyOptimized,
                _ if algorithm.tensor_cores() => Tier::ExtremelyOptimized,
                _ => Tier::HighlyOptimized,
            },
            _ if self.op == Op::Matmul && DOT_PRODUCTS.iter().any(|feature| self.features.has(*feature)) => {
                Tier::ExtremelyOptimized
            }
            (_, None | Some(Isa::Scalar)) => Tier::Optimized,
            _ => Tier::HighlyOptimized,
        }
    }
}

impl Registry {
    /// Bits that a weight takes in memory for a product's kernel, scales included, in long rows: without what each row has once, and
    /// without padding. `None` for what is no product. [`Linear::memory`](crate::Linear::memory) has the bytes of a layer.
    pub fn bits_per_weight(&'static self, entry: &Entry) -> Option<f64> {
        let WeightLayout { format, packing, unit } = layout_of(self, entry).ok()?;
        let long = |multiple: usize| format.elements.checked_mul(multiple.max(1))?.checked_mul(LONG);
        let (n, k) = (packing.map_or(1, |packing| packing.rows), long(unit.multiple)?);
        let bytes = packed_bytes(self, entry, n, k).ok()?;
        let outer = packed_bytes(self, entry, n, 0).unwrap_or(0);
        Some(8.0 * bytes.saturating_sub(outer) as f64 / (n as f64 * k as f64))
    }
}

/// Blocks of a long row, so many that rounding to whole tiles counts for nothing.
const LONG: usize = 1 << 12;
