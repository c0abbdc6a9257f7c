//! In which packing weights are held on a GPU, where one token and many prefer different ones.

use super::prepared::Prepared;
use super::rules::fits;
use crate::decisions::why_packed::HeldOnce;
use crate::request::{Packings, Shape};
use gristmill_spec::vocab::{DeviceKind, FeatureSet, Op};

impl Prepared {
    /// The packing of the kernel that comes first for the most tokens, where another one comes first for one token, if its kernels
    /// take every number of tokens. None where a packing, or the fastest of each, was asked for, and where nothing can quantize
    /// the activations that these kernels read.
    pub(super) fn in_one_packing(&self) -> Option<HeldOnce> {
        let asked = self.allowed.packing.is_some() || self.allowed.packings == Packings::Fastest;
        if self.device.kind != DeviceKind::Cuda || self.op != Op::Matmul || asked {
            return None;
        }
        let first = |m| {
            let shape = Shape { m, ..self.shape };
            self.usable.iter().find(|candidate| fits(&candidate.entry.shape, shape))
        };
        let instead_of = first(1)?.packing()?;
        let packing = first(usize::MAX)?.packing()?;
        let serves = packing != instead_of
            && self.activations().is_none_or(|activations| !activations.usable().is_empty())
            && self.takes_every_m(packing, FeatureSet::EMPTY);
        serves.then_some(HeldOnce { packing, instead_of })
    }

    /// Why weights are held once; `None` where they are not for that reason.
    pub(crate) fn once_reason(&self) -> Option<&HeldOnce> {
        self.held_once.as_ref()
    }
}
