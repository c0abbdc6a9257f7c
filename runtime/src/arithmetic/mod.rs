//! Arithmetic of a stated order that is the same on every processor: number formats, quantizers that search, the Hadamard transform.

pub mod hadamard;
pub(crate) mod halves;
pub mod number;
pub mod search;
pub(crate) mod stored;
