//! In which packing weights are held that are read from memory at each step.

use super::candidate::Candidate;
use super::prepared::Prepared;
use super::rules::{fits, keeps, without};
use crate::decisions::why_packed::FromMemory;
use crate::device::{Caches, Device};
use crate::operands::packed_size::packed_bytes;
use crate::request::{Request, Shape};
use gristmill_spec::vocab::FeatureSet;

impl Prepared {
    /// The packing with the fewest bytes, if more weights take turns than the last-level cache holds. None where one was asked
    /// for, where sizes are not known, or where the packing that comes first anyway has the fewest.
    ///
    /// In question are packings whose kernels take every number of tokens, so that weights are held once, and use at least
    /// the processor features of the kernel that comes first: reading less does not help who computes with older
    /// instructions.
    pub(super) fn fewest_bytes(&self, request: &Request<'_>, caches: &Caches) -> Option<FromMemory> {
        let working_set = request.working_set?;
        let cache = caches.last_level()? as u64;
        if working_set <= cache || self.device != Device::CPU || self.allowed.packing.is_some() {
            return None;
        }
        let decode = Shape { m: 1, ..self.shape };
        let first = self.usable.iter().find(|candidate| fits(&candidate.entry.shape, decode))?;
        let instead_of = first.packing()?;
        let mut best = (self.bytes_of(first, decode)?, instead_of);
        for candidate in self.usable.iter() {
            let Some(packing) = candidate.packing() else { continue };
            match self.bytes_of(candidate, decode) {
                Some(bytes) if bytes < best.0 && self.takes_every_m(packing, first.entry.features) => {
                    best = (bytes, packing);
                }
                Some(_) | None => {}
            }
        }
        let packing = best.1;
        (packing != instead_of).then_some(FromMemory { packing, instead_of, working_set, cache })
    }

    /// Bytes that a product of a shape reads of weights: what they take packed. None for what is no product, and where they
    /// do not fit the address space.
    fn bytes_of(&self, candidate: &Candidate, shape: Shape) -> Option<u64> {
        let bytes = packed_bytes(self.registry, candidate.entry, shape.n, shape.k).ok()?;
        Some(bytes as u64)
    }

    /// Whether kernels that read a packing and use at least `features` serve all numbers of tokens for this `n` and `k`.
    pub(super) fn takes_every_m(&self, packing: &str, features: FeatureSet) -> bool {
        let mut open = vec![(1, u64::MAX)];
        let reads = |candidate: &&Candidate| {
            let rules = &candidate.entry.shape;
            candidate.packing() == Some(packing)
                && candidate.entry.features.contains(features)
                && keeps(&rules.n, self.shape.n)
                && keeps(&rules.k, self.shape.k)
                && rules.m.multiple_of <= 1
        };
        for candidate in self.usable.iter().filter(reads) {
            let m = &candidate.entry.shape.m;
            open = open.into_iter().flat_map(|range| without(range, m.min, m.max)).collect();
        }
        open.is_empty()
    }

    /// Why weights of `n` rows of `k` are held in the packing with the fewest bytes; `None` where they are not, or where a
    /// tuning decides.
    pub(crate) fn packing_reason(&self, n: usize, k: usize) -> Option<&FromMemory> {
        match self.tuned_for(Shape { m: 1, n, k }) {
            Some(_) => None,
            None => self.from_memory.as_ref(),
        }
    }
}
