//! Records of measurements that stand in `benches/record`.

use crate::bench::Measurement;
use serde::{Deserialize, Serialize};

/// The processor of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub cpu: String,
    /// Its cores.
    pub cores: u64,
    /// Its features.
    pub features: Vec<String>,
    /// Bytes of a second-level cache, where they are known.
    #[serde(default)]
    pub l2_bytes: Option<u64>,
    /// Bytes of the third-level cache, where they are known.
    #[serde(default)]
    pub l3_bytes: Option<u64>,
}

/// Every format against its ceiling: what one run of `gristmill bench --json` printed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Formats {
    /// The day.
    pub date: String,
    /// The command.
    pub command: String,
    /// Where.
    pub machine: Machine,
    /// Load averages before and after.
    pub load: [f64; 2],
    /// Of compilers and of gristmill.
    pub versions: Vec<String>,
    /// What it printed.
    pub records: Vec<Measurement>,
}
