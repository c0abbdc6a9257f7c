//! Times of a machine, as they are kept.

use serde::{Deserialize, Serialize};

/// The time of a product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Time {
    /// The kernel that was chosen.
    pub kernel: String,
    /// Its identity: another build's kernel of the same name is another kernel.
    pub id: String,
    /// Tokens.
    pub m: usize,
    /// Rows of the weights.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// Threads.
    pub threads: usize,
    /// Median seconds, weights in the caches where they fit.
    pub seconds: f64,
    /// Seconds over those of the baseline, where it has this product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

impl Time {
    /// Whether both are of the same product by the same kernel.
    pub(super) fn is_of(&self, other: &Time) -> bool {
        let key = |time: &Time| (time.id.clone(), time.m, time.n, time.k, time.threads);
        key(self) == key(other)
    }
}

/// Times of a machine, kept to be compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// `gristmill baseline 1`.
    pub schema: String,
    /// The machine that they are of.
    pub machine: String,
    /// One for each product.
    pub times: Vec<Time>,
}

impl Baseline {
    /// What `schema` must be.
    pub const SCHEMA: &'static str = "gristmill baseline 1";
}
