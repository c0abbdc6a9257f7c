//! Records: what was measured, when, where and how.

use crate::error::Error;
use gristmill::CpuProfile;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;

/// A record of runs, one for each peer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub date: String,
    pub machine: Machine,
    pub runs: Vec<Run>,
}

/// Where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub features: Vec<String>,
    pub l2_bytes: Option<usize>,
    pub l3_bytes: Option<usize>,
}

/// One run against one peer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    /// Package and version.
    pub peer: String,
    pub command: String,
    /// Compilers and our commit.
    pub versions: Vec<String>,
    /// Load averages of the last minute, before and after: 1 is this run alone.
    pub load: [Option<f64>; 2],
    /// What is to be known when reading it.
    pub notes: Vec<String>,
    /// Ceilings of one thread: the name, the rate, its unit.
    pub ceilings: Vec<(String, f64, String)>,
    pub cells: Vec<Cell>,
}

/// Ours and theirs for one format and shape, one thread. Quantizing f32 activations is part of both times.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Our kernel.
    pub kernel: String,
    pub format: String,
    /// The peer's name of its format.
    pub theirs: String,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub threads: usize,
    /// `hot` or `cold`.
    pub memory: String,
    pub our_us: f64,
    pub their_us: f64,
    pub our_gmac_s: f64,
    pub their_gmac_s: f64,
    /// Median over rounds of their time over ours.
    pub speedup: f64,
    /// Of the lower ceiling as measured beside ours; reading counts the bytes of the file, in records that say below how many
    /// those are, and else those of our packing.
    pub our_percent: f64,
    /// What a weight of ours takes in a file.
    pub file_bits_per_weight: Option<f64>,
    /// What it takes packed, scales included.
    pub memory_bits_per_weight: Option<f64>,
    /// Normalized mean square difference of the results.
    pub nmse: f64,
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        let cpu = CpuProfile::detect();
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let of = |name: &str| {
            let line =
                info.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
            line.split_once(':').map(|(_, value)| value.trim().to_owned())
        };
        let unknown = || "unknown".to_owned();
        Machine {
            cpu: format!(
                "{} (family {}, model {})",
                of("model name").unwrap_or_else(unknown),
                of("cpu family").unwrap_or_else(unknown),
                of("model").unwrap_or_else(unknown)
            ),
            cores: cpu.cores,
            features: cpu.features.iter().map(|feature| feature.name().to_owned()).collect(),
            l2_bytes: cpu.caches.l2,
            l3_bytes: cpu.caches.l3,
        }
    }
}

/// Today.
pub fn date() -> String {
    jiff::Timestamp::now().strftime("%F").to_string()
}

/// Programs that want to run, over the last minute.
pub fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// The first line that a command prints; nothing if it can't be run.
pub fn first_line(command: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(command).args(arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()?.lines().next().map(str::to_owned)
}

/// Compilers and our commit.
pub fn versions() -> Vec<String> {
    let mut versions = Vec::new();
    versions.extend(first_line("rustc", &["--version"]));
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "clang++".to_owned());
    versions.extend(first_line(&compiler, &["--version"]));
    versions.extend(
        first_line("git", &["rev-parse", "--short=12", "HEAD"]).map(|head| format!("gristmill {head}")),
    );
    versions
}

impl Record {
    /// Reads a record.
    pub fn read(path: &Path) -> Result<Record, Error> {
        let bytes = std::fs::read(path).map_err(Error::file("read", path))?;
        serde_json::from_slice(&bytes).map_err(|source| Error::Record { path: path.to_owned(), source })
    }

    /// Writes it, a run of the same peer replaced; other runs are kept if they are of this machine and day.
    #[cfg(any(feature = "ik", feature = "ggml"))]
    pub fn add(path: &Path, run: Run) -> Result<(), Error> {
        let mut record = match path.exists() {
            true => Record::read(path)?,
            false => Record { date: date(), machine: Machine::here(), runs: Vec::new() },
        };
        if record.date != date() || record.machine != Machine::here() {
            record = Record { date: date(), machine: Machine::here(), runs: Vec::new() };
        }
        record.runs.retain(|other| other.peer != run.peer);
        record.runs.push(run);
        write(path, &record)
    }
}

/// Writes a value as JSON.
pub fn write(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|source| Error::Record { path: path.to_owned(), source })?;
    text.push('\n');
    std::fs::write(path, text).map_err(Error::file("write", path))
}
