//! What a validation is asked, and how a part of it ends.

use super::baseline::Baseline;
use crate::compare::{CompareError, CppKernels};
use crate::oracle::OracleError;
use crate::{Device, Error, Quarantined, Restrict};
use serde::{Deserialize, Serialize};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Options<'o> {
    /// Where products run.
    pub device: Device,
    /// Names of formats; none means all of the registry.
    pub formats: &'o [&'o str],
    /// Kernels that decisions are made without ([`Quarantine::kernels`](crate::Quarantine::kernels)).
    pub quarantined: &'o [Quarantined],
    /// A C++ library whose products ours are compared with; its code runs in this process.
    pub library: Option<&'o CppKernels>,
    /// How often a layer is made, run and dropped while memory is watched.
    pub rounds: usize,
    /// Times that this machine has had before.
    pub baseline: Option<&'o Baseline>,
    /// How much slower than the baseline a product may be: 0.25 is a quarter.
    pub tolerance: f64,
}

impl Default for Options<'_> {
    /// All formats on the processor, a thousand rounds, no baseline.
    fn default() -> Self {
        Options {
            device: Device::CPU,
            formats: &[],
            quarantined: &[],
            library: None,
            rounds: 1000,
            baseline: None,
            tolerance: 0.25,
        }
    }
}

impl Options<'_> {
    /// What decisions are made under.
    pub(super) fn restrict(&self) -> Restrict {
        Restrict { quarantined: self.quarantined.to_vec(), ..Restrict::default() }
    }
}

/// How a part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As it must be.
    Passed,
    /// Not as it must be; the part says what.
    Failed,
    /// Nothing was compared; the part says why.
    NotRun,
}

impl Outcome {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Failed => "FAILED",
            Outcome::NotRun => "not run",
        }
    }
}

/// A product that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The format of its weights.
    pub format: String,
    /// The kernel.
    pub kernel: String,
    /// Tokens.
    pub m: usize,
    /// The first output that differs, and how.
    pub what: String,
}

/// Why nothing can be validated.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    /// A name or a device that is not there.
    #[error(transparent)]
    Runtime(#[from] Error),
    /// The oracle does not know a format.
    #[error(transparent)]
    Oracle(#[from] OracleError),
    /// The C++ library can't compute what it has a function for.
    #[error(transparent)]
    Library(#[from] CompareError),
}
