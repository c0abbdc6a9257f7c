//! Watching gristmill's kernels while they run.
//!
//! [`Monitor`] counts what launches tell it and takes the time of some of them; what it saw is a [`Snapshot`], as JSON or as text
//! for Prometheus. The runtime has the hook alone, and nothing of this is in a program that does not ask for it.

mod monitor;
mod prometheus;
mod snapshot;

pub use monitor::{Monitor, MonitorOptions};
pub use snapshot::{Bucket, FallbackCount, KernelLoad, Sampled, Snapshot};
