//! Fuzz targets: for each of some kinds of input from outside a function that takes any bytes, and files to begin with.
//!
//! A target may refuse its input, and must not panic, abort, overflow its stack, or take more time and memory than the
//! driver gives it (`src/main.rs`). Built without `--cfg fuzzing` this library is empty, and so is what it depends on.

#[cfg(all(fuzzing, feature = "command"))]
mod command;
#[cfg(fuzzing)]
#[path = "../../probe/tests/foreign/mod.rs"]
mod foreign;
#[cfg(all(fuzzing, feature = "command"))]
pub mod gguf;
#[cfg(all(fuzzing, feature = "command"))]
pub mod importance;
#[cfg(all(fuzzing, feature = "command"))]
pub mod imports;
#[cfg(all(fuzzing, feature = "command"))]
pub mod monitors;
#[cfg(fuzzing)]
pub mod objects;
#[cfg(all(fuzzing, feature = "command"))]
pub mod receipts;
#[cfg(all(fuzzing, feature = "command"))]
pub mod records;
#[cfg(all(fuzzing, feature = "command"))]
pub mod safetensors;
#[cfg(fuzzing)]
mod seeds;
#[cfg(fuzzing)]
pub mod specs;
#[cfg(all(fuzzing, feature = "command"))]
pub mod tuning;

#[cfg(fuzzing)]
pub use libfuzzer_sys;
#[cfg(fuzzing)]
pub use seeds::{Seed, begin};

/// The program of a target: libFuzzer around the module of this name.
#[cfg(fuzzing)]
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        $crate::libfuzzer_sys::fuzz_target!(init: $crate::begin($crate::$name::seeds), |data: &[u8]| {
            $crate::$name::run(data)
        });
    };
}

/// The program of a target, without the target.
#[cfg(not(fuzzing))]
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        fn main() {
            eprintln!(
                "built without `--cfg fuzzing`; `cargo run --release -- {}` builds and runs it",
                stringify!($name)
            );
            std::process::exit(1);
        }
    };
}
