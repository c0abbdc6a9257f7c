//! Records: what was measured, when, where and how.

use crate::error::Error;
use gristmill::CpuProfile;
use gristmill_records::committed::Machine;
#[cfg(any(feature = "ik", feature = "ggml"))]
use gristmill_records::daily::{Daily, with_run};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::process::Command;

/// This machine.
pub fn machine() -> Machine {
    let cpu = CpuProfile::detect();
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of = |name: &str| {
        let line = info.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
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
        cores: cpu.cores as u64,
        features: cpu.features.iter().map(|feature| feature.name().to_owned()).collect(),
        l2_bytes: cpu.caches.l2.map(|bytes| bytes as u64),
        l3_bytes: cpu.caches.l3.map(|bytes| bytes as u64),
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

/// Reads a record.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let bytes = std::fs::read(path).map_err(Error::file("read", path))?;
    serde_json::from_slice(&bytes).map_err(|source| Error::Record { path: path.to_owned(), source })
}

/// Adds a run to the record at `path`, as [`with_run`] says.
#[cfg(any(feature = "ik", feature = "ggml"))]
pub fn add<T: Daily + DeserializeOwned + Serialize>(path: &Path, fresh: T, run: T::Run) -> Result<(), Error> {
    let there = path.exists().then(|| read(path)).transpose()?;
    let mut record =
        with_run(there, fresh, run).ok_or_else(|| Error::OtherMachine { path: path.to_owned() })?;
    write(path, &record)?;
    println!("{}: {} runs", path.display(), record.runs().len());
    Ok(())
}

/// Writes a value as JSON.
pub fn write(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|source| Error::Record { path: path.to_owned(), source })?;
    text.push('\n');
    std::fs::write(path, text).map_err(Error::file("write", path))
}
