//! A build-time kernel compiler for low-bit matrix kernels.
//!
//! This package is the front door: it compiles the shipped specs with gristmill's own compiler into
//! [`REGISTRY`], re-exports the runtime that decides and runs, and holds the `gristmill` command.

// Generated code and macros name this crate by its own name, here too.
extern crate self as gristmill;

pub use gristmill_macros::{include_kernels, kernel, require, variant};
pub use gristmill_runtime as runtime;
pub use gristmill_runtime::*;

pub mod ceilings;
#[cfg(feature = "cli")]
pub mod compare;
pub mod gguf;
#[cfg(feature = "cli")]
pub mod oracle;
#[cfg(feature = "cli")]
pub mod weights_file;

/// The kernels of this build.
#[allow(
    unused,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "generated code: helpers that a format does not need stay in its module, and the formatter drops comments"
)]
pub mod kernels {
    include!(concat!(env!("OUT_DIR"), "/gristmill.rs"));
}

pub use kernels::REGISTRY;
