//! What gristmill's compiler makes of the shipped specs: a module for each format, and [`REGISTRY`].
//!
//! A package of its own, so that a change elsewhere does not compile the kernels again, and so that builds for development
//! can optimize them alone. Depend on `gristmill`, which re-exports it as `gristmill::kernels`.

#![allow(
    clippy::manual_clamp,
    clippy::manual_memcpy,
    clippy::needless_range_loop,
    reason = "generated: `max` and `min` leave no NaN where `clamp` does; loops over lanes, runs and tokens keep one form"
)]

/// Compiler, target, optimization and flags that the kernels of [`REGISTRY`] were compiled with.
pub const COMPILER: &str = env!("GRISTMILL_COMPILER");

include!(concat!(env!("OUT_DIR"), "/", env!("GRISTMILL_WRITTEN")));
