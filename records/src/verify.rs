//! What `gristmill verify --json` prints.

use serde::{Deserialize, Serialize};

/// A differential run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// The kernels that were asked for.
    pub kernels: Vec<Kernel>,
    /// How many of them ran.
    pub ran: u64,
    /// How many they are.
    pub of: u64,
    /// Why the others did not run.
    pub skipped: Vec<Skipped>,
    /// How many are wrong.
    pub wrong: u64,
    /// Whether every buffer was between guard pages.
    pub guard_pages: bool,
    /// A hash of the integer results.
    pub digest: String,
    /// Whether there were fewer and smaller cases.
    pub quick: bool,
}

/// What became of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name.
    pub kernel: String,
    /// Its identity.
    pub id: String,
    /// `ok`, `wrong`, `skipped`, or `not run` where no shape of the run fits it.
    pub status: String,
    /// Cases that it ran.
    pub cases: u64,
    /// Largest normalized mean square error, where sums are not integers.
    pub nmse: Option<f64>,
    /// Why it did not run.
    pub skipped: Option<String>,
    /// The first result that is wrong.
    pub problem: Option<String>,
}

/// Kernels that did not run, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Why.
    pub reason: String,
    /// How many.
    pub kernels: u64,
}
