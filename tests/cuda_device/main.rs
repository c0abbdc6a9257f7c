//! Everything that goes through the driver, on one that stands in for a GPU's.
#![cfg(target_os = "linux")]

mod batches;
mod command;
mod divided;
mod driver;
#[cfg(all(feature = "cuda", feature = "cli"))]
mod engine;
#[cfg(all(feature = "cuda", feature = "cli"))]
#[path = "../../examples/engine_stream.rs"]
mod engine_stream;
mod experts;
mod fp4;
mod graphs;
#[cfg(all(feature = "cuda", feature = "cli"))]
mod guarded;
mod handles;
#[cfg(all(feature = "cuda", feature = "cli"))]
mod hazards;
#[cfg(all(feature = "cuda", feature = "cli"))]
#[path = "../cuda/images.rs"]
mod images;
mod later;
#[cfg(all(feature = "cuda", feature = "cli"))]
mod planned;
mod precision;
mod prologue;
#[cfg(all(feature = "cuda", feature = "cli"))]
mod replicated;
#[cfg(all(feature = "nccl", feature = "cli"))]
mod row_parallel;
mod shared;
#[path = "../cuda/support/mod.rs"]
mod support;
mod watched;
