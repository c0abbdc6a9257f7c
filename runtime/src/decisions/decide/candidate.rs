//! What decisions choose among.

use crate::registry::Entry;
use gristmill_spec::vocab::Precision;

/// An entry and its index in the registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) index: usize,
    pub(crate) entry: &'static Entry,
}

impl Candidate {
    /// Whether activations get to int8 in front of it.
    pub(super) fn takes_int8(&self) -> bool {
        matches!(self.entry.precision(), Some(Precision::Int8)) && !self.entry.quantizes_activations()
    }

    /// Name of the packing that it reads.
    pub(super) fn packing(&self) -> Option<&'static str> {
        self.entry.code.packing().map(|packing| packing.name)
    }
}
