//! What compilers say: warnings, and why an image could not be made.

use super::image::target;
use gristmill_spec::vocab::CudaArch;
use std::fmt;
use std::path::PathBuf;

/// An image that could not be made. The others are not affected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The unit.
    pub unit: String,
    /// The architecture.
    pub arch: CudaArch,
    /// Whether it was PTX.
    pub ptx: bool,
    /// What the compiler said, or why it was not asked.
    pub stderr: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unit `{}` for {}: {}", self.unit, target(self.arch, self.ptx), self.stderr.trim())
    }
}

/// What stops a compilation as a whole.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The cache can't be used.
    #[error("{}: {source}", path.display())]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A name that is no file name.
    #[error("`{name}` can't name a unit: only letters, digits, `_`, `-` and `.` are allowed, a letter first")]
    Name {
        /// The name.
        name: String,
    },
    /// A tool that looks into images failed.
    #[error("{}: {reason}", path.display())]
    Tool {
        /// The tool.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

/// The lines of a log that warn, or say that instructions which should overlap don't.
pub(super) fn warnings(log: &str) -> Vec<String> {
    let warns = |line: &str| line.to_ascii_lowercase().contains("warning") && !line.starts_with("Remark:");
    log.lines()
        .map(str::trim)
        .filter(|line| warns(line) || line.contains("Potential Performance Loss"))
        .map(str::to_string)
        .collect()
}
