//! A kernel of a layer.

use crate::decide::broken_rule;
use crate::kernel::Matmul;
use crate::request::Shape;

/// A kernel of a layer and the weights packed for it.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) matmul: Matmul,
    /// Index into the layer's packed weights.
    pub(super) packed: usize,
}

impl Choice {
    pub(super) fn takes(&self, shape: Shape) -> bool {
        broken_rule(&self.matmul.entry().shape, shape).is_none()
    }
}
