//! What `device-report` is asked.

use gristmill::Device;
use std::path::PathBuf;

/// Run everything that a GPU is to be judged by, and write one folder of records
///
/// Driver and decisions, verify (also under compute-sanitizer, where it is), a soak of two layers in a graph, bench beside cuBLASLt
/// and this processor, tune, layers that come and go, two processes at once. Goes on after failures. Exit code 0 if every stage that
/// could run succeeded, else 1; goals that were missed do not count.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The GPU
    #[arg(long, value_name = "DEVICE", default_value = "cuda:0")]
    pub(super) device: Device,
    /// Folder for the records; made, if it is not there
    #[arg(long, value_name = "DIR", required_unless_present = "soak")]
    pub(super) out: Option<PathBuf>,
    /// Only these formats
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) format: Vec<String>,
    /// Only these stages
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) stage: Vec<String>,
    /// Shorter stages, in minutes instead of hours
    #[arg(long)]
    pub(super) quick: bool,
    /// Shape of the matrices that are timed, NxK [default: those of bench]
    #[arg(long, value_name = "NxK")]
    pub(super) shape: Option<String>,
    /// How often the soak's graph is launched [default: 100000, with --quick 1000]
    #[arg(long, value_name = "COUNT")]
    replays: Option<u64>,
    /// The soak alone, in this process
    #[arg(long, hide = true)]
    pub(super) soak: bool,
}

impl Arguments {
    /// How often the soak launches its graph.
    pub(super) fn replays(&self) -> u64 {
        self.replays.unwrap_or(if self.quick { 1000 } else { 100_000 })
    }
}
