//! CUDA at build time: which compiler there is, and images made with it. No GPU is needed, and none is asked
//! for anything except by `GRISTMILL_CUDA_ARCHS=native`.

pub mod arch;
pub mod compile;
pub mod settings;
pub mod toolchain;

pub use settings::{Settings, Use};
pub use toolchain::{Discovery, Env, Toolchain, discover};
