//! Watching gristmill's kernels while they run.
//!
//! [`Monitor`] counts what launches tell it and takes the time of some of them; what it saw is a [`Snapshot`], as JSON or as text
//! for Prometheus. The runtime has the hook alone, and nothing of this is in a program that does not ask for it.
//!
//! With the cargo feature `tracing` launches whose time is taken are spans of `tracing` too. [`SnapshotFile`] keeps a file up to date for
//! `gristmill top`, which shows a [`Live`] view.
//!
//! [`History`] keeps [`Record`]s of monitors, `gristmill bench` and `gristmill tune` in a file, and [`regression`] says which kernels
//! became slower. [`report`](report::Report) says what all that means for an operator, as text, JSON and a page.

mod beside;
pub mod date;
mod gpus;
pub mod history;
mod host;
mod live;
mod memory;
mod monitor;
mod prometheus;
pub mod read;
pub mod record;
pub mod regression;
mod regular;
pub mod report;
mod rows;
mod snapshot;
mod snapshot_file;
#[cfg(feature = "tracing")]
mod spans;
mod times;

pub use gristmill_records::receipt::Fallback;
pub use history::{Added, History, HistoryError};
pub use host::{Clock, Host, HugePages};
pub use live::{Live, LiveRow, LiveTransfer};
pub use monitor::{Monitor, MonitorOptions};
pub use record::{Record, Records, Serves, Source, Work};
pub use snapshot::{
    BatchLoad, Bucket, CacheLoad, KernelLoad, PoolLoad, RecoveryCount, Sampled, Snapshot, ThreadLoad,
    TransferLoad,
};
pub use snapshot_file::SnapshotFile;
