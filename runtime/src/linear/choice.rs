//! A kernel of a layer.

use crate::decide::broken_rule;
use crate::kernel::Matmul;
use crate::request::Shape;
use gristmill_spec::vocab::DType;

/// A kernel of a layer and the weights packed for it.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) matmul: Matmul,
    /// Index into the layer's packed weights.
    pub(super) packed: usize,
}

impl Choice {
    /// Whether it takes this shape, and activations that are int8 already if they are.
    pub(super) fn takes(&self, shape: Shape, input: DType) -> bool {
        broken_rule(&self.matmul.entry().shape, shape).is_none()
            && (input != DType::I8 || !self.matmul.entry().quantizes_activations())
    }
}
