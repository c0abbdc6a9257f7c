//! Why a place gave no compiler, and what all compilers are held to.

use super::version::{OLDEST, Version};
use std::path::PathBuf;

/// Why a place gave no compiler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The variable is not set.
    #[error("not set")]
    NotSet,
    /// No program of this name in the folders of `PATH`.
    #[error("no `{0}` there")]
    NotOnPath(&'static str),
    /// Nothing at this path, or nothing that can be started.
    #[error("{} is no program", .0.display())]
    NoProgram(PathBuf),
    /// No such file.
    #[error("no {}", .0.display())]
    NoFile(PathBuf),
    /// A wheel of CUDA 12: assembler without compiler.
    #[error(
        "{} has no nvcc beside it: wheels of CUDA 12 hold the assembler only; those of CUDA 13 hold the compiler",
        .0.display()
    )]
    AssemblerOnly(PathBuf),
    /// It could not be started.
    #[error("{} can't be run: {reason}", path.display())]
    NotRun {
        /// The program.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// It printed no version.
    #[error("{} --version printed no version: {output}", path.display())]
    NoVersion {
        /// The program.
        path: PathBuf,
        /// The beginning of what it printed.
        output: String,
    },
    /// It makes wrong images.
    #[error("{tool} {version} is refused: {why}")]
    KnownBad {
        /// `nvcc`, `cicc`, `ptxas` or `nvrtc`.
        tool: &'static str,
        /// Its version.
        version: Version,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Too old.
    #[error("{tool} {version} is too old: {} is needed", OLDEST)]
    TooOld {
        /// The tool.
        tool: &'static str,
        /// Its version.
        version: Version,
    },
    /// A part of it is missing.
    #[error(
        "{tool} is missing beside {}: install all parts of one version (wheels: nvidia-cuda-nvcc, nvidia-nvvm, \
         nvidia-cuda-crt, nvidia-cuda-runtime)", nvcc.display()
    )]
    Incomplete {
        /// The missing part.
        tool: &'static str,
        /// The compiler driver.
        nvcc: PathBuf,
    },
    /// Parts of several versions.
    #[error(
        "parts of different toolkits: nvcc {nvcc}, {tool} {version}; install all of one version, with `pip install \
         --no-deps` and every version given"
    )]
    Mixed {
        /// Version of the driver.
        nvcc: Version,
        /// The part that differs.
        tool: &'static str,
        /// Its version.
        version: Version,
    },
    /// The host compiler is newer than nvcc knows.
    #[error(
        "nvcc {version} refuses the host compiler: {words}; put an older one first on PATH, or name it in \
         NVCC_PREPEND_FLAGS=\"-ccbin=g++-14\""
    )]
    HostCompilerTooNew {
        /// Version of nvcc.
        version: Version,
        /// The compiler's words.
        words: String,
    },
    /// There is no host compiler.
    #[error("nvcc {version} finds no host compiler: {words}; install gcc, or name one in NVCC_PREPEND_FLAGS")]
    NoHostCompiler {
        /// Version of nvcc.
        version: Version,
        /// The compiler's words.
        words: String,
    },
    /// An empty kernel does not compile.
    #[error("{tool} {version} can't compile an empty kernel: {words}")]
    Trial {
        /// `nvcc` or `nvrtc`.
        tool: &'static str,
        /// Its version.
        version: String,
        /// What it said.
        words: String,
    },
    /// A library could not be opened.
    #[error("{} can't be opened: {reason}", path.display())]
    NotOpened {
        /// The library.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// A folder of images that holds none, or unreadable ones.
    #[error("{}: {reason}", path.display())]
    Images {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Python could not be asked, or has no such packages.
    #[error("{0}")]
    Python(String),
}

/// What is compiled to see whether a compiler works.
pub(super) const TRIAL: &str = "extern \"C\" __global__ void trial(int *out) { *out = 1; }\n";

/// Refuses versions that make wrong images, or are too old.
pub(super) fn acceptable(tool: &'static str, version: Version) -> Result<(), Problem> {
    if let Some(why) = version.known_bad() {
        return Err(Problem::KnownBad { tool, version, why });
    }
    if version < OLDEST {
        return Err(Problem::TooOld { tool, version });
    }
    Ok(())
}

/// The loader's words; libloading's own text leaves them out.
pub(super) fn reason(error: &libloading::Error) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The first lines of what a tool said, short enough for a message.
pub fn words(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).take(4).collect();
    let mut text = lines.join(" / ");
    if text.len() > 400 {
        let cut = (0..=400).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(cut);
        text.push_str(" ...");
    }
    if text.is_empty() { "it said nothing".to_string() } else { text }
}
