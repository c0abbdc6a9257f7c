//! Model files: real ones, round trips, every kind of bad file.

mod gguf;
mod weights_file;
