//! CUDA C++ from the same plans as the CPU's code, and images of it.
//!
//! [`emit`] writes units; [`toolchain`] finds what compiles them on this machine, [`compile`] makes images, [`build`]
//! does all three for a build script. No GPU is needed, and none is asked for anything except by
//! `GRISTMILL_CUDA_ARCHS=native`.

pub mod arch;
pub mod build;
pub mod compile;
mod emit;
mod packed;
mod parallel;
pub mod settings;
pub mod toolchain;
mod variables;

pub use emit::{
    CHUNK, CONVERT, CudaListed, CudaPlan, DEVICE_HEADER, EXPERTS, Emitted, Launch, Part, RowsQuantizer,
    Split, Step, Unit, emit,
};
pub(crate) use emit::{convert_launch, experts_launch, packings, refusals};
pub use packed::needed_driver;
pub use parallel::jobs;
pub use settings::{Settings, Use};
pub use toolchain::{Discovery, Env, Toolchain, discover};
