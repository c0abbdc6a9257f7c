//! CUDA C++ from the same plans as the CPU's code, and images of it.
//!
//! [`emit`] writes units; [`toolchain`] finds what compiles them on this machine, [`compile`] makes images, [`build`]
//! does all three for a build script. No GPU is needed, and none is asked for anything except by
//! `GRISTMILL_CUDA_ARCHS=native`.

pub mod arch;
pub mod build;
pub mod compile;
mod emit;
pub mod settings;
pub mod toolchain;

pub(crate) use emit::packings;
pub use emit::{CHUNK, CudaListed, CudaMatmul, DEVICE_HEADER, Emitted, Unit, emit};
pub use settings::{Settings, Use};
pub use toolchain::{Discovery, Env, Toolchain, discover};
