//! Errors of the compiler, each of a spec with a code and its place.

use gristmill_spec::Diagnostic;
use gristmill_spec::model::{CudaBudget, Format, Origin, Packing, Tile};
use gristmill_spec::vocab::{CudaAlgorithm, Strategy};

/// What the compiler can refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Something in a spec that can't be compiled exactly.
    #[error("{}: [{}] {}", .0.path, .0.code, .0.message)]
    Spec(Box<Diagnostic>),
    /// A spec passed the checks that it should not have passed: a defect of gristmill, never of the spec alone.
    #[error(
        "format `{format}` passed the checks, but {reason}; please report this with the spec that caused it"
    )]
    Passed {
        /// The format.
        format: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The emitted text is not Rust: a defect of the compiler, never of a spec.
    #[error(
        "the compiler emitted text that is not Rust ({message}); please report this with the spec that caused it"
    )]
    Emitted {
        /// What the parser said.
        message: String,
    },
}

impl Error {
    /// A variant that can't be compiled as it stands.
    pub(crate) fn refused(
        code: &'static str,
        variant: &Origin,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Error {
        Error::Spec(Box::new(diagnostic(code, variant, message, help)))
    }

    /// A packing without a tile wide enough for the weights of a format.
    pub(crate) fn no_tile(
        format: &Format,
        (least, most): (i32, i32),
        packing: &Packing,
        variant: &Origin,
    ) -> Error {
        let message = format!(
            "packing `{}` has no tile wide enough for format `{}`, whose weights go from {least} to {most}",
            packing.name, format.name
        );
        let help = "add a wider `[[tile]]` to the packing, or list `formats` without this one";
        Error::of_packing(packing, of_format(format, diagnostic("no-tile", variant, message, help)))
    }

    /// A packing whose order the loops of a strategy can't read.
    pub(crate) fn strategy_order(
        packing: &Packing,
        tile: &Tile,
        strategy: Strategy,
        variant: &Origin,
    ) -> Error {
        let message =
            format!("strategy `{strategy}` can't read packing `{}`, tile of {}", packing.name, tile.code);
        Error::order(packing, variant, message, wanted(strategy))
    }

    /// A packing whose order the loops of a CUDA algorithm can't read.
    pub(crate) fn cuda_order(
        packing: &Packing,
        algorithm: CudaAlgorithm,
        needs: &str,
        variant: &Origin,
    ) -> Error {
        let message = format!("`{algorithm}` can't read packing `{}`", packing.name);
        Error::order(packing, variant, message, needs)
    }

    fn order(packing: &Packing, variant: &Origin, message: String, needs: &str) -> Error {
        let help = format!("it needs {needs}");
        Error::of_packing(packing, diagnostic("packing-order", variant, message, help))
    }

    /// With the packing's place beside the variant's.
    fn of_packing(packing: &Packing, diagnostic: Diagnostic) -> Error {
        let Origin { file, span, .. } = &packing.origin;
        Error::Spec(Box::new(diagnostic.also(file, span.clone(), "the packing")))
    }

    /// A run of a format's weights whose sums could overflow.
    pub(crate) fn overflow(format: &Format, run: u32, variant: &Origin) -> Error {
        let message =
            format!("sums over runs of {run} weights of format `{}` could leave 32 bits", format.name);
        Error::Spec(Box::new(of_format(format, diagnostic("sum-overflow", variant, message, OTHER_FORMATS))))
    }

    /// A tile of a CUDA block that needs too much memory.
    pub(crate) fn shared_memory(format: &Format, variant: &Origin, message: &str) -> Error {
        let message = format!("format `{}`: {message}", format.name);
        let help = "fewer `tokens` or `threads` in `tile` need less";
        Error::Spec(Box::new(of_format(format, diagnostic("shared-memory", variant, message, help))))
    }

    /// A tile whose threads have more in shared memory than there is.
    pub(crate) fn large_tile(
        format: &Format,
        variant: &Origin,
        (tokens, threads): (u32, u32),
        bytes: u32,
    ) -> Error {
        let most = CudaBudget::default().shared;
        let message = format!(
            "a tile of {tokens} tokens and {threads} threads needs {bytes} bytes of shared memory, of which a CUDA block has {most}"
        );
        Error::shared_memory(format, variant, &message)
    }

    /// A tile of which not even two stages have room in the `most` bytes of shared memory that a CUDA block has.
    pub(crate) fn large_stages(
        format: &Format,
        variant: &Origin,
        (tokens, rows): (u32, u32),
        (bytes, most): (u32, u32),
    ) -> Error {
        let message = format!(
            "two stages of a tile of {tokens} tokens and {rows} rows need {bytes} bytes of shared memory, of which a CUDA block has {most}"
        );
        Error::shared_memory(format, variant, &message)
    }

    /// Something that the checks refuse.
    pub(crate) fn passed(format: &Format, reason: impl Into<String>) -> Error {
        Error::Passed { format: format.name.clone(), reason: reason.into() }
    }
}

/// What would help where a variant can't serve a format.
pub(crate) const OTHER_FORMATS: &str = "list `formats` without this one";

pub(crate) fn diagnostic(
    code: &'static str,
    variant: &Origin,
    message: impl Into<String>,
    help: impl Into<String>,
) -> Diagnostic {
    Diagnostic::error(code, &variant.file, variant.span.clone(), message).label("this variant").help(help)
}

/// With the format's place beside the variant's, which may be a shipped one.
pub(crate) fn of_format(format: &Format, diagnostic: Diagnostic) -> Diagnostic {
    let Origin { file, span, .. } = &format.origin;
    diagnostic.also(file, span.clone(), "the format")
}

/// Each message once, at the first of the variants that it is of.
pub fn by_message(diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let mut all: Vec<(Diagnostic, usize)> = Vec::with_capacity(diagnostics.len());
    for diagnostic in diagnostics {
        let same = |(first, _): &&mut (Diagnostic, usize)| {
            (first.code, &first.message) == (diagnostic.code, &diagnostic.message)
        };
        match all.iter_mut().find(same) {
            Some((_, more)) => *more += 1,
            None => all.push((diagnostic, 0)),
        }
    }
    let counted = |(diagnostic, more): (Diagnostic, usize)| match more {
        0 => diagnostic,
        more => {
            let label = format!("{}, and {more} more", diagnostic.label);
            diagnostic.label(label)
        }
    };
    all.into_iter().map(counted).collect()
}

/// What the loops of a strategy need of a packing.
pub(super) fn wanted(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Multiply | Strategy::Staged | Strategy::Tiles => {
            "one row to a 32-bit lane (row stride 32), four k to its bytes (innermost k of 4 with stride 8) and the other k \
             in the fields of a byte"
        }
        Strategy::Lookup => {
            "one row to a byte (row stride 8) and codes of 1, 2 or 4 bits one after the other in it (k stride: their bits)"
        }
    }
}

/// Each error once: many are the same for every format that a variant serves.
pub(crate) fn once(errors: Vec<Error>) -> Vec<Error> {
    let mut all: Vec<Error> = Vec::with_capacity(errors.len());
    for error in errors {
        if !all.contains(&error) {
            all.push(error);
        }
    }
    all
}
