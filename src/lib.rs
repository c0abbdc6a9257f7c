//! A build-time kernel compiler for low-bit matrix kernels.
//!
//! This package is the front door: it re-exports the shipped kernels ([`REGISTRY`]) and the runtime that decides and
//! runs, reads files of weights, and holds the `gristmill` command.

// Generated code and macros name this crate by its own name, here too.
extern crate self as gristmill;

// In the library, so that it is compiled beside the code of kernels and not after it.
#[cfg(feature = "cli")]
mod cli;
#[cfg(feature = "cli")]
pub mod compare;
pub mod gguf;
pub mod replace;
pub mod text;
#[cfg(feature = "cli")]
pub mod weights_file;

#[cfg(feature = "cli")]
#[doc(hidden)]
pub use cli::main as command;
pub use gristmill_kernels as kernels;
pub use gristmill_kernels::REGISTRY;
pub use gristmill_macros::{include_kernels, kernel, require, variant};
#[cfg(feature = "cli")]
pub use gristmill_oracle as oracle;
pub use gristmill_runtime as runtime;
pub use gristmill_runtime::*;
