//! A kernel of a layer or of experts.

use crate::decide::{Prepared, broken_rule};
use crate::error::Error;
use crate::kernel::Matmul;
use crate::request::Shape;

/// A kernel and the weights packed for it.
#[derive(Debug)]
pub(in crate::run) struct Choice {
    pub(in crate::run) matmul: Matmul,
    /// Index into the packed weights of who has it.
    pub(in crate::run) packed: usize,
}

impl Choice {
    pub(in crate::run) fn takes(&self, shape: Shape) -> bool {
        broken_rule(&self.matmul.entry().shape, shape).is_none()
    }
}

/// The error that says why nothing serves `shape`.
pub(in crate::run) fn refused(prepared: &Prepared, shape: Shape) -> Error {
    match prepared.decide(shape).kernel() {
        Err(error) => error,
        // A kernel serves this shape and yet none was taken: say at least what was refused.
        Ok(_) => Error::NoKernel(Box::new(prepared.decide(shape).refusal())),
    }
}
