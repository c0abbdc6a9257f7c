//! What a format means for one element, said once: scalar expressions, lowered from plans, that [`print`](crate::print) turns into
//! Rust and CUDA C++.
//!
//! Loops, loads and stores are those of the emitters, as they differ from one kind of code to the other; so an expression takes the
//! variables of a loop by name. Here stand the steps of quantizers, rounding and clamps, conversions of stored numbers, and
//! how codes and scales become weights.

pub(crate) mod decode;
pub(crate) mod digits;
pub(crate) mod ir;
pub(crate) mod product;
pub(crate) mod quantize;
pub(crate) mod stored;
