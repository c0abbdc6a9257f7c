//! Rows of the tables about memory.

use serde::Serialize;

/// What was copied on a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moved {
    /// The machine.
    pub machine: String,
    /// Which way, with the devices.
    pub name: String,
    /// How many copies.
    pub copies: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Seconds of all, were they as long for each byte as those that were timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Gigabytes in a second of timed copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gb_s: Option<f64>,
}

/// What was seen on a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct On<T> {
    /// The machine.
    pub machine: String,
    /// What.
    #[serde(flatten)]
    pub seen: T,
}
