//! What is said of a kernel in quarantine.

use crate::registry::KernelId;

/// A kernel that is not to be used any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Which.
    pub id: KernelId,
    /// Its name, where whoever added it said it: for people, who find no id in a program that lacks the kernel.
    pub kernel: Option<String>,
    /// Why.
    pub why: String,
}
