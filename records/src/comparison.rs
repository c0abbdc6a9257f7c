//! What `gristmill compare-backend --json` prints.

use serde::{Deserialize, Serialize};

/// Kernels beside those of a C++ library.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparisons {
    /// The library's file.
    pub library: String,
    /// Features of processors that it was built for, as far as it says.
    pub library_features: Vec<String>,
    /// Largest error at which results agree.
    pub tolerance: f64,
    /// One for each format and number of tokens.
    pub comparisons: Vec<Comparison>,
    /// Formats that were not compared.
    pub not_compared: Vec<NotCompared>,
}

/// Ours and theirs on the same data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The weight format.
    pub format: String,
    /// Tokens.
    pub m: u64,
    /// Rows of the weights.
    pub n: u64,
    /// Elements of a row.
    pub k: u64,
    /// Our kernel.
    pub kernel: String,
    /// Their function.
    pub function: String,
    /// Median microseconds of ours.
    pub ours_us: f64,
    /// Median microseconds of theirs.
    pub theirs_us: f64,
    /// How many times as fast ours is.
    pub ratio: f64,
    /// Largest difference of the results, as a part of the largest value of theirs; null where it is no finite number.
    pub max_error: Option<f64>,
    /// Whether every result has the same bits.
    pub same_bits: bool,
    /// Whether results agree.
    pub agree: bool,
    /// What it came to, in words.
    pub verdict: String,
}

/// A format that was not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCompared {
    /// The format.
    pub format: String,
    /// Why.
    pub reason: String,
}
