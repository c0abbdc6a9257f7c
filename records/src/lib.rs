//! The JSON that gristmill writes and reads, as types: one schema each, for who writes and who reads.
//!
//! | type | written by |
//! |---|---|
//! | [`bench::Measurement`], [`bench::Line`] | `gristmill bench --json` |
//! | [`committed::Formats`] | `benches/peers formats`, into `benches/record` |
//! | [`committed::Candle`] | `bindings/candle/examples/ratio.rs`, into `benches/record` |
//! | [`peers::Products`], [`peers::Models`] | `benches/peers measure` and `model`, into `benches/record` |
//! | [`run::Run`] | `gristmill run --json` |
//! | [`receipt::Receipt`] | `Receipt::to_json` of the runtime, `gristmill run --receipt` |
//! | [`doctor::Doctor`] | `gristmill doctor --json` |
//!
//! What a field means stands beside it. A field that may be missing is an [`Option`]: older versions did not write it, or there is
//! nothing to say. Fields that a reader does not know are passed over.

pub mod bench;
pub mod committed;
pub mod daily;
pub mod doctor;
pub mod peers;
pub mod receipt;
pub mod run;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads a value as one of these types.
///
/// # Errors
/// Which field is missing or senseless, and what was expected.
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| match error.path().to_string().as_str() {
        "." => error.inner().to_string(),
        path => format!("`{path}`: {}", error.inner()),
    })
}
