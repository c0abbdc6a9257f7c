//! CUDA: C++ from the plans.

mod emit;

pub(crate) use emit::packings;
pub use emit::{CHUNK, CudaListed, CudaMatmul, DEVICE_HEADER, Emitted, Unit, emit};
