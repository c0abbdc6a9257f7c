//! Every generated CUDA kernel in the emulator, against the golden vectors, the oracle and the CPU's kernels, bit by
//! bit; and generated text with one mistake in it, which must show.
#![cfg(all(feature = "cli", target_os = "linux"))]

mod activations;
mod blocks;
#[path = "../choice/mod.rs"]
mod choice;
mod convert;
mod floats;
mod fp4;
mod fused;
mod generated;
mod golden;
mod grouped;
mod hand_written;
mod matmul;
mod mutations;
mod prologue;
mod split;
#[path = "../cuda/support/mod.rs"]
mod support;
mod tiles;
#[path = "../vectors/mod.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod vectors;
mod verify;
mod wgmma;
mod wgmma_halves;
