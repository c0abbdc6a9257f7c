//! What an operator forbids, by entries of a registry.

use super::candidate::Candidate;
use crate::error::Error;
use crate::reason::Disabled;
use crate::registry::Registry;
use crate::request::{Packings, Restrict};
use gristmill_spec::vocab::{Isa, Op};

/// A [`Restrict`] with its names looked up.
#[derive(Clone, Debug, Default)]
pub(super) struct Allowed {
    pub(super) isa: Option<Isa>,
    pub(super) only: Option<usize>,
    pub(super) disabled: Vec<usize>,
    /// Name of the packing whose kernels come first.
    pub(super) packing: Option<&'static str>,
    pub(super) packings: Packings,
}

impl Allowed {
    pub(super) fn resolve(
        registry: &'static Registry,
        restrict: &Restrict,
        op: Op,
    ) -> Result<Allowed, Error> {
        let only = match &restrict.kernel {
            Some(name) => Some(registry.entry(name)?).filter(|only| only.entry.op == op),
            None => None,
        };
        let mut disabled = Vec::new();
        for name in &restrict.disabled {
            disabled.push(registry.entry(name)?.index);
        }
        let packing = match &restrict.packing {
            Some(name) => Some(registry.packing(name)?),
            None => None,
        };
        let (isa, packings) = (restrict.isa, restrict.packings);
        Ok(Allowed { isa, only: only.map(|only| only.index), disabled, packing, packings })
    }

    pub(super) fn refuses(&self, registry: &Registry, candidate: &Candidate) -> Option<Disabled> {
        if let Some(only) = self.only.and_then(|only| registry.entries.get(only).map(|entry| (only, entry)))
            && only.0 != candidate.index
            && only.1.format == candidate.entry.format
            && only.1.quantizer == candidate.entry.quantizer
        {
            return Some(Disabled::Only(only.1.name));
        }
        if self.disabled.contains(&candidate.index) {
            return Some(Disabled::Listed);
        }
        match self.isa {
            Some(isa) if !Restrict::isa_allows(Some(isa), candidate.entry) => Some(Disabled::Isa(isa)),
            Some(_) | None => None,
        }
    }
}
