//! Why two kernels can't be compared.

use gristmill_probe::{Error as ProbeError, printable};
use gristmill_runtime::Error;

/// Why two kernels can't be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// From the runtime: no kernel of ours, wrong shapes.
    #[error(transparent)]
    Ours(#[from] Error),
    /// From the library: not there, not usable.
    #[error(transparent)]
    Theirs(#[from] ProbeError),
    /// The library has no product of the format.
    #[error(
        "`{library}` has no product of `{format}` that can be called: {reason}\n  help: {help}",
        library = printable(library)
    )]
    NoProduct {
        /// The library.
        library: String,
        /// The format.
        format: &'static str,
        /// Why not.
        reason: String,
        /// What would help.
        help: &'static str,
    },
    /// The library means another format by the same number.
    #[error(
        "`{library}` calls type {id} `{found}` with blocks of {elements} in {bytes} bytes; `{format}` has {our_elements} in {our_bytes}",
        library = printable(library), found = printable(found)
    )]
    OtherFormat {
        /// The library.
        library: String,
        /// The number in GGUF.
        id: u32,
        /// The name the library gives it.
        found: String,
        /// Elements of a block there.
        elements: i64,
        /// Bytes of a block there.
        bytes: usize,
        /// The format.
        format: &'static str,
        /// Elements of a block here.
        our_elements: usize,
        /// Bytes of a block here.
        our_bytes: usize,
    },
}
