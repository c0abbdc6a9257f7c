//! What an operator forbids, by entries of a registry.

use super::candidate::Candidate;
use crate::error::Error;
use crate::quarantine::Quarantined;
use crate::reason::{Disabled, Reason};
use crate::registry::Registry;
use crate::request::{Packings, Restrict};
use gristmill_spec::vocab::{Isa, Op};

/// A [`Restrict`] with its names looked up.
#[derive(Clone, Debug, Default)]
pub(super) struct Allowed {
    pub(super) isa: Option<Isa>,
    pub(super) only: Option<usize>,
    /// The kernel that is asked for by name, of whatever op.
    pub(super) kernel: Option<String>,
    pub(super) disabled: Vec<usize>,
    /// Those in quarantine, each with why.
    pub(super) quarantined: Vec<(usize, Quarantined)>,
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
            disabled.extend(registry.entries_like(name)?);
        }
        // One of another build, or of another package, is no mistake: a quarantine is for all of a machine.
        let place = |id| registry.entries.iter().position(|entry| entry.id == id);
        let quarantined = restrict.quarantined.iter();
        let quarantined =
            quarantined.filter_map(|kernel| Some((place(kernel.id)?, kernel.clone()))).collect();
        let packing = match &restrict.packing {
            Some(name) => Some(registry.packing(name)?),
            None => None,
        };
        let (isa, packings) = (restrict.isa, restrict.packings);
        let (only, kernel) = (only.map(|only| only.index), restrict.kernel.clone());
        Ok(Allowed { isa, only, kernel, disabled, quarantined, packing, packings })
    }

    /// Why a candidate is in quarantine, if it is.
    pub(super) fn quarantined(&self, candidate: &Candidate) -> Option<&Quarantined> {
        let (_, kernel) = self.quarantined.iter().find(|(index, _)| *index == candidate.index)?;
        Some(kernel)
    }

    pub(super) fn refuses(&self, registry: &Registry, candidate: &Candidate) -> Option<Reason> {
        if let Some(kernel) = self.quarantined(candidate) {
            return Some(Reason::Quarantined { why: kernel.why.clone() });
        }
        self.disables(registry, candidate).map(Reason::Disabled)
    }

    fn disables(&self, registry: &Registry, candidate: &Candidate) -> Option<Disabled> {
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
