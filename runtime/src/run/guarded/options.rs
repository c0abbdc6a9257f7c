//! How layers and experts are guarded.

use crate::quarantine::Quarantine;
use std::num::NonZeroU64;

/// How a layer is guarded.
#[derive(Clone, Debug, Default)]
pub struct GuardOptions {
    /// One run of so many is compared with the portable kernel, in one output; `None`: none is. Such a run packs one row of the
    /// weights (of experts one row of each expert of a token) and multiplies one token with it besides, and allocates. Products of floats, which
    /// have bits of their own, are not compared, nor is a run whose comparison has an error of its own, such as no memory for it.
    pub check_every: Option<NonZeroU64>,
    /// What is not to be used any more: one for all layers of a program.
    pub quarantine: Quarantine,
    /// A layer that was moved from its GPU to the processor tries the GPU again before one run of so many; `None`: it stays.
    pub return_every: Option<NonZeroU64>,
}
