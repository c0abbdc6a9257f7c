//! What `gristmill validate` is asked.

use super::super::output::Files;
use super::super::request;
use gristmill::Device;
use std::path::PathBuf;

/// Validate what decisions choose here: accuracy, a second way of computing, speed, memory
///
/// Small products of every format against the oracle and against the scalar kernels (on a GPU: this processor's), times
/// against a baseline of this machine, and memory over many layers. Exit code 0 if nothing failed, else 1.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where products run: cpu, cuda:0
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: Device,
    /// Only these formats
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) format: Vec<String>,
    /// Threads; one for each physical core, if not given
    #[arg(long, value_name = "COUNT", value_parser = request::threads)]
    pub(super) threads: Option<usize>,
    /// How often a layer is made, run and dropped while memory is watched
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = request::count)]
    pub(super) rounds: usize,
    /// Compare times with those of this file
    #[arg(long, value_name = "FILE")]
    pub(super) baseline: Option<PathBuf>,
    /// How many percent slower than the baseline a product may be
    #[arg(long, value_name = "PERCENT", default_value_t = 25)]
    pub(super) tolerance: u32,
    /// Write the times of this run to a file, for `--baseline` of later ones, if nothing failed
    #[arg(long, value_name = "FILE")]
    pub(super) save_baseline: Option<PathBuf>,
    /// Compare with the products of a C++ library too, whose code then runs in this process: root of a build or installation, or a folder of
    /// libraries; the usual places without DIR
    #[arg(long, value_name = "DIR")]
    pub(super) library: Option<Option<PathBuf>>,
    /// Keep kernels that end the program in a folder, and decide without those in it: the validation runs in a process of its own, as often
    /// as a kernel ends that by SIGILL or another signal. GRISTMILL_QUARANTINE names the folder to programs
    #[arg(long, value_name = "FOLDER")]
    pub(super) quarantine: Option<PathBuf>,
    /// Validate in this process: what `--quarantine` starts
    #[arg(long, hide = true, requires = "quarantine")]
    pub(super) here: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Arguments {
    /// What is read and what is written.
    pub fn files(&self) -> Files<'_> {
        Files::default().reads(&self.baseline).writes(&self.save_baseline)
    }
}
