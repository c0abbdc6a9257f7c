//! Handles, decisions and layers, over a small registry with real kernels.

#[path = "../toy/mod.rs"]
mod toy;

mod adaptive;
mod batch;
mod decide;
mod embed;
mod experts;
mod guarded;
mod joined;
mod linear;
mod matmul;
// Weights that fill pages of several nodes take an interpreter too long; it tries `Aligned::placed` by itself.
#[cfg(not(miri))]
mod nodes;
mod numbers;
mod packings;
mod products;
mod registry;
mod shared;
mod tensors;
mod tuning;
