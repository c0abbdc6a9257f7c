//! What gristmill's compiler makes of the shipped specs: a module for each format, and [`REGISTRY`].
//!
//! A package of its own, so that a change elsewhere does not compile the kernels again, and so that builds for development
//! can optimize them alone. Depend on `gristmill`, which re-exports it as `gristmill::kernels`.

#![allow(
    unused,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "generated code: helpers that a format does not need stay in its module, and the formatter drops comments"
)]

include!(concat!(env!("OUT_DIR"), "/gristmill.rs"));
