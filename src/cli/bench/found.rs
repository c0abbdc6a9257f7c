//! What a run has found.

use super::super::table::counted;
use super::compare::Verdict;
use super::plan::Plan;
use super::record::Record;
use gristmill::registry::FormatInfo;

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
    /// Notes that a format has no kernel of the ISA that is measured, once for all shapes.
    pub(super) fn none_of(&mut self, plan: &Plan, format: &FormatInfo) {
        let Some(isa) = plan.isa else { return };
        let line = format!("{}: no kernel of {} that can run here", format.name, isa.name());
        if !self.left.contains(&line) {
            self.left.push(line);
        }
    }

    pub(super) fn out_of_time(&self) -> String {
        format!(
            "{} left out: --quick ends within 30 seconds; select less, or leave --quick away",
            counted(self.skipped, "measurement")
        )
    }
}
