//! What kernels read and write: weights and activations in their layouts, how tensors are brought into these, outputs, workspaces.

pub mod activations;
pub mod import;
pub(crate) mod output;
pub(crate) mod packed_size;
pub mod prologue;
pub(crate) mod quantized_buf;
pub(crate) mod sizes;
pub mod weights;
pub mod workspace;
