//! How codes of a format get into a packing and out of it again: the parts of what packs that differ between kinds of codes.

use crate::plan::{FormatPlan, PackPlan};

/// The parts of a packing's functions that its kind of codes decides.
#[derive(Default)]
pub(super) struct Packer {
    /// Items in front of all others, and those in front of the functions.
    pub items: String,
    pub tables: String,
    /// Before the blocks of a row.
    pub begin: String,
    /// For a block of a row.
    pub store: String,
    /// Behind the blocks of a row.
    pub end: String,
    /// The code of element `at` of `row`, an expression: `byte` is the one at its `bit`.
    pub code: String,
}

/// The place of element `k` of a row where sums are padded to what the packing's tiles take.
pub(super) fn packed_k(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    let run = plan.k_group;
    match run.next_multiple_of(pack.multiple.max(1)) {
        padded if run == 0 || padded == run => "k".to_string(),
        padded => format!("k / {run} * {padded} + k % {run}"),
    }
}
