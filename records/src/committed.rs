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
    /// Load averages before and after, where the system tells.
    pub load: [Option<f64>; 2],
    /// Of compilers and of gristmill.
    pub versions: Vec<String>,
    /// What it printed.
    pub records: Vec<Measurement>,
}

/// The layers of `bindings/candle` beside candle's own, as `bindings/candle/examples/ratio.rs` measured them on one day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candle {
    /// The day.
    pub date: String,
    /// Where.
    pub machine: Machine,
    /// One for each way to build candle and number of threads.
    pub candle: Vec<CandleRun>,
}

/// One run against candle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandleRun {
    /// candle's package and version.
    pub peer: String,
    /// The command.
    pub command: String,
    /// Of the compiler and of gristmill.
    pub versions: Vec<String>,
    /// Features of the processor that the compiler could rely on: for some types candle has code for those alone, while gristmill's
    /// kernels are in every build.
    pub target_features: Vec<String>,
    /// Threads of each side.
    pub threads: u64,
    /// Load averages of the last minute, before and after, where the system tells.
    pub load: [Option<f64>; 2],
    /// What was measured.
    pub cells: Vec<CandleCell>,
}

/// One format, matrix and number of tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandleCell {
    /// Our format.
    pub format: String,
    /// candle's type of the same bytes; `None` where it has none, and its layer has the weights as f32.
    pub theirs: Option<String>,
    /// Tokens.
    pub m: u64,
    /// Rows of the weights.
    pub n: u64,
    /// Elements of a row.
    pub k: u64,
    /// 1e9 multiply-accumulates a second, quantizing the activations included.
    pub our_gmac_s: f64,
    /// The same of candle's layer.
    pub their_gmac_s: f64,
    /// Median over the turns of their time over ours.
    pub ratio: f64,
    /// Normalized mean square difference of the results, where both layers have the same weights.
    pub nmse: Option<f64>,
}
