//! From a GGUF file to text: a decoder that is complete and small, on gristmill's public API.
//!
//! [`config`] reads what a file is, [`weights`] loads it, [`decoder`] runs it. The `decoder` command is
//! [`commands`].

pub mod attention;
mod buffers;
pub mod cache;
pub mod commands;
pub mod config;
pub mod declared;
pub mod decoder;
pub mod embedding;
pub mod error;
pub mod floats;
pub mod head;
pub mod joint;
pub mod make_model;
pub mod mixture;
pub mod norms;
pub mod numerics;
mod pass;
pub mod restrict;
pub mod sample;
pub mod template;
pub mod tokens;
pub mod weights;

pub use cache::CacheFormat;
pub use config::Config;
pub use decoder::{DEFAULT_BATCH, Decoder, Options, Wanted};
pub use error::Error;
