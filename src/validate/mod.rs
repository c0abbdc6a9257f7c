//! One answer to "may this machine serve?": whether products are right, the same on two ways of computing them, as fast as they
//! were, and whether layers give their memory back.
//!
//! [`validate`] looks at what decisions choose here, with small matrices of every format, in seconds. `gristmill verify` looks
//! at every kernel, at extremes, and between guard pages.

mod asked;
mod baseline;
mod library;
mod products;
mod rounds;
mod speed;
mod tensor;

use crate::opened::Opened;
use crate::registry::Entry;
use crate::{Registry, Threads};
pub use asked::{Options, Outcome, Problem, ValidateError};
pub use baseline::{Baseline, Time};
pub use library::{LibraryCheck, NotCompared};
pub use products::{Accuracy, CrossCheck};
pub use rounds::Memory;
use serde::Serialize;
pub use speed::Speed;
use std::time::Instant;

/// The whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    /// Products are right, and no other part failed. Parts that were not run do not count, but for accuracy.
    pub success: bool,
    /// Where products ran.
    pub device: String,
    /// The machine, as times are kept by.
    pub machine: String,
    /// Threads that products had.
    pub threads: usize,
    /// Seconds that all of it took.
    pub seconds: f64,
    /// Kernels of the registry that were in quarantine, and that nothing ran.
    pub quarantined: Vec<LeftOut>,
    /// Products against the oracle.
    pub accuracy: Accuracy,
    /// Products by another way of computing them.
    pub cross_check: CrossCheck,
    /// Products beside those of a C++ library.
    pub library: LibraryCheck,
    /// Times against those of a baseline.
    pub speed: Speed,
    /// Memory before, during and after many layers.
    pub memory: Memory,
}

/// A kernel in quarantine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The kernel.
    pub kernel: String,
    /// Its identity.
    pub id: String,
    /// What was seen of it.
    pub why: String,
}

/// Validates what decisions of `registry` choose on a device.
///
/// # Errors
/// Formats that are not there, and a device without a kernel for any of them. What is found wrong is no error, but in the answer.
pub fn validate(
    registry: &'static Registry,
    options: &Options<'_>,
    threads: &Threads,
) -> Result<Validation, ValidateError> {
    let began = Instant::now();
    let _open = Opened::of(options.device);
    let formats = tensor::formats(registry, options.formats)?;
    let (accuracy, cross_check, library) = products::check(registry, options, &formats, threads)?;
    let machine = speed::machine(options.device)?;
    let speed = speed::measure(registry, options, &machine, &formats, threads)?;
    let memory = rounds::watch(registry, options, &formats, threads)?;
    let left_out = |entry: &Entry| {
        let found = options.quarantined.iter().find(|kernel| kernel.id == entry.id)?;
        let (kernel, id, why) = (entry.name.to_owned(), entry.id.to_string(), found.why.clone());
        Some(LeftOut { kernel, id, why })
    };
    let parts = [accuracy.outcome, cross_check.outcome, library.outcome, speed.outcome, memory.outcome];
    let failed = parts.contains(&Outcome::Failed);
    Ok(Validation {
        success: accuracy.outcome == Outcome::Passed && !failed,
        device: options.device.to_string(),
        machine,
        threads: threads.count(),
        seconds: began.elapsed().as_secs_f64(),
        quarantined: registry.entries.iter().filter_map(left_out).collect(),
        accuracy,
        cross_check,
        library,
        speed,
        memory,
    })
}
