//! Which kernel runs a request, or why none does: rules, reasons, orders that were measured, kernels in quarantine.

pub mod decide;
pub(crate) mod memory;
pub mod quarantine;
pub mod reason;
pub mod require;
pub(crate) mod split;
pub(crate) mod thread_limits;
pub mod tuning;
pub(crate) mod why_packed;
pub(crate) mod wording;
