//! Model files: real ones, round trips, every kind of bad file.

mod gguf;
#[path = "../vectors/mod.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod vectors;
mod weights_file;
