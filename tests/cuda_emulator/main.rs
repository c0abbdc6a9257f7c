//! The emulator that CUDA kernels are tested with finds the mistakes of kernels.
#![cfg(target_os = "linux")]

mod emulator;
mod fp4;
mod hopper;
#[path = "../cuda/support/mod.rs"]
mod support;
