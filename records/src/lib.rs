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
//! | [`registry::Format`], [`registry::Kernel`] | `gristmill list --json`, `gristmill::json` |
//! | [`decision::Decision`], [`decision::TensorPlan`] | `gristmill explain --json`, `gristmill::json` |
//! | [`inspect::File`] | `gristmill inspect --json` |
//! | [`quantize::Quantized`] | `gristmill quantize --json` |
//! | [`verify::Verification`] | `gristmill verify --json` |
//! | [`comparison::Comparisons`] | `gristmill compare-backend --json` |
//! | [`library::Library`] | `gristmill analyze-library --json` |
//!
//! What a field means stands beside it. A field that may be missing is an [`Option`]: older versions did not write it, or there is
//! nothing to say. Fields that a reader does not know are passed over.

pub mod bench;
pub mod committed;
pub mod comparison;
pub mod daily;
pub mod decision;
pub mod doctor;
pub mod inspect;
pub mod library;
pub mod peers;
pub mod quantize;
pub mod receipt;
pub mod registry;
pub mod run;
pub mod verify;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Bytes of the largest file of records that is read.
pub const MOST_BYTES: u64 = 256 << 20;

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
