//! What a guarded layer is at the moment.

use super::device::Given;
use crate::error::Error;
use crate::receipt::Recording;
use crate::registry::Entry;

#[derive(Debug)]
pub(super) struct State<L> {
    /// `None`: its GPU was lost, and the policy lets nothing take over.
    pub(super) layer: Option<L>,
    /// Kernels in quarantine that it was made without.
    pub(super) known: u64,
    /// How often it was made again.
    pub(super) remade: u64,
    pub(super) recording: Option<Recording>,
    /// Why it is not on its GPU.
    pub(super) away: Option<Away>,
    pub(super) given: Given,
}

/// Why a layer is not on its GPU.
#[derive(Clone, Debug)]
pub(super) struct Away {
    /// A kernel that it ran there.
    pub(super) kernel: &'static Entry,
    pub(super) error: Error,
    /// The run before which the GPU was tried last.
    pub(super) tried: u64,
}
