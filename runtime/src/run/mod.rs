//! What runs: handles and their launches, products, layers and experts, and what takes their place where a kernel or a GPU fails.

mod choice;
pub mod experts;
pub(crate) mod guarded;
pub mod kernel;
pub(crate) mod launch;
pub(crate) mod left_out;
pub mod linear;
pub(crate) mod plain;
pub(crate) mod product;
pub mod recovery;
