//! Handles, decisions and layers, over a small registry with real kernels.

#[path = "../toy/mod.rs"]
mod toy;

mod batch;
mod decide;
mod embed;
mod experts;
mod guarded;
mod joined;
mod linear;
mod matmul;
mod nodes;
mod numbers;
mod packings;
mod products;
mod registry;
mod shared;
mod tensors;
mod tuning;
