//! What a command can fail with, and the exit code that follows.

use super::table::bytes;
use gristmill::Error;
use gristmill::compare::CompareError;
use gristmill::gguf::{GgufError, ImportanceError, ModelError, NoData, TransformError, WriteError};
use gristmill::oracle::OracleError;
use gristmill::replace::ReplaceError;
use gristmill::text::Printable;
use gristmill::validate::ValidateError;
use gristmill::weights_file::WeightError;
use gristmill_codegen::builder::BuildError;
use std::io;
use std::path::{Path, PathBuf};

/// How a command that did its work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Yes.
    Yes,
    /// There is no kernel for something that was asked about; it has been said.
    NoKernel,
    /// Something was found wrong; it has been said.
    Failed,
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// From the runtime: names, shapes, decisions, values.
    #[error(transparent)]
    Runtime(#[from] Error),
    /// A GGUF file that can't be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A tensor whose bytes can't be had.
    #[error(transparent)]
    NoData(#[from] NoData),
    /// A tensor that can't be read as a matrix.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A GGUF file that declares a transform which is not understood.
    #[error(transparent)]
    Transform(#[from] TransformError),
    /// A file that gives no importance of columns.
    #[error("{}{error}", unless_named(path, error))]
    Importance {
        /// The file.
        path: PathBuf,
        /// Why.
        error: ImportanceError,
    },
    /// A file of weights that can't be read.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// A GGUF file that can't be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A file that can't be replaced.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// A tensor whose bytes are in the file, but no weights of its format.
    #[error("tensor `{}`: {what}", Printable(tensor))]
    Defect {
        /// The tensor.
        tensor: String,
        /// What is wrong with it, and where.
        what: String,
    },
    /// Sizes that this machine has no memory for.
    #[error(
        "{what} needs {}{} of memory besides {} for the program itself, {} are available\n  help: {help}",
        if *needed > u128::from(u64::MAX) { "more than " } else { "" },
        bytes(u64::try_from(*needed).unwrap_or(u64::MAX)),
        bytes(*reserve),
        bytes(*available)
    )]
    Memory {
        /// What was asked for.
        what: String,
        /// Bytes that it takes.
        needed: u128,
        /// Bytes that are left for the program itself.
        reserve: u64,
        /// Bytes that can be had.
        available: u64,
        /// What would take less.
        help: &'static str,
    },
    /// The oracle can't answer.
    #[error(transparent)]
    Oracle(#[from] OracleError),
    /// Nothing can be validated.
    #[error(transparent)]
    Validate(#[from] ValidateError),
    /// A history that can't be read or added to.
    #[cfg(feature = "ops")]
    #[error(transparent)]
    History(#[from] gristmill_ops::HistoryError),
    /// A file that holds no records of measurements.
    #[cfg(feature = "ops")]
    #[error(transparent)]
    Records(#[from] gristmill_ops::read::ReadError),
    /// A spec path that can't be read.
    #[error(transparent)]
    Specs(#[from] gristmill_spec::ReadError),
    /// Specs that can't be compiled.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A C++ library whose kernels can't be compared with ours.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// A C++ library that can't be found, read or used.
    #[error(transparent)]
    Probe(#[from] gristmill_probe::Error),
    /// A file that can't be read or written.
    #[error("can't {action} `{}`: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Standard output is gone or full.
    #[error("can't write to standard output: {0}")]
    Output(#[source] io::Error),
    /// Guarded memory for `verify` can't be had.
    #[error("can't map guarded memory: {0}")]
    Guard(#[source] io::Error),
    /// Nothing of what was selected has a kernel here.
    #[error("{what}\n  help: {help}")]
    NoKernel {
        /// What there is none of, and why.
        what: String,
        /// What would help.
        help: String,
    },
    /// A request that makes no sense as it was written.
    #[error("{what}\n  help: {help}")]
    Usage {
        /// What is wrong.
        what: String,
        /// What would help.
        help: String,
    },
}

/// What stands in front of an error, where it does not name its file itself.
fn unless_named(path: &std::path::Path, error: &ImportanceError) -> String {
    match error {
        ImportanceError::File(_) | ImportanceError::NotGguf(_) => String::new(),
        _ => format!("`{}`: ", path.display()),
    }
}

impl CliError {
    /// An error about a request, with what would help.
    pub fn usage(what: impl Into<String>, help: impl Into<String>) -> CliError {
        CliError::Usage { what: what.into(), help: help.into() }
    }

    /// An error about a file.
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CliError {
        move |source| CliError::File { action, path: path.to_owned(), source }
    }

    /// Whether it is a list of diagnostics, each of which begins with `error` itself.
    pub fn is_diagnostics(&self) -> bool {
        matches!(self, CliError::Build(BuildError::Specs(_)))
    }

    /// Whether the reader of standard output went away, which is its right.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, CliError::Output(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether the answer is "there is no kernel".
    pub fn is_no_kernel(&self) -> bool {
        match self {
            CliError::Runtime(error) => is_no_kernel(error),
            CliError::NoKernel { .. } | CliError::Compare(CompareError::NoProduct { .. }) => true,
            _ => false,
        }
    }
}

/// Whether an error of the runtime says that there is no kernel.
pub fn is_no_kernel(error: &Error) -> bool {
    match error {
        Error::NoKernel(refusal) => !refusal.is_of_a_name(),
        Error::NotCompiled { .. } | Error::KNotMultiple { .. } => true,
        _ => false,
    }
}

impl From<io::Error> for CliError {
    /// Only writes to standard output are passed up without a path.
    fn from(source: io::Error) -> CliError {
        CliError::Output(source)
    }
}
