//! What a run has found.

use super::super::table::counted;
use super::compare::Verdict;
use super::record::Record;

/// What a run has found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) records: Vec<Record>,
    /// What was not measured, and why.
    pub(super) left: Vec<String>,
    pub(super) verdicts: Vec<Verdict>,
    /// Measurements that a quick run had no time for.
    pub(super) skipped: usize,
}

impl Found {
    pub(super) fn out_of_time(&self) -> String {
        format!(
            "{} left out: --quick ends within 30 seconds; select less, or leave --quick away",
            counted(self.skipped, "measurement")
        )
    }
}
