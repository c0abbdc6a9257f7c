//! What the compiler refuses: variants that no exact loop can be written for, each with a code and its place in a spec.

use crate::emit::packed_plan;
use crate::plan::{FormatPlan, PackPlan};
use gristmill_spec::Diagnostic;
use gristmill_spec::model::{Origin, Packing, SpecSet, Tile};
use gristmill_spec::vocab::{CudaAlgorithm, Op, Strategy};

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
    pub(crate) fn no_tile(plan: &FormatPlan<'_>, packing: &Packing, variant: &Origin) -> Error {
        let message = format!(
            "packing `{}` has no tile wide enough for format `{}`, whose weights go from {} to {}",
            packing.name,
            plan.format.name,
            plan.min(),
            plan.max()
        );
        let help = "add a wider `[[tile]]` to the packing, or list `formats` without this one";
        let diagnostic = diagnostic("no-tile", variant, message, help);
        Error::Spec(Box::new(diagnostic.also(
            &packing.origin.file,
            packing.origin.span.clone(),
            "the packing",
        )))
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
        let diagnostic = diagnostic("packing-order", variant, message, format!("it needs {needs}"));
        Error::Spec(Box::new(diagnostic.also(
            &packing.origin.file,
            packing.origin.span.clone(),
            "the packing",
        )))
    }

    /// A run of a format's weights whose sums could overflow.
    pub(crate) fn overflow(plan: &FormatPlan<'_>, variant: &Origin) -> Error {
        let message = format!(
            "sums over runs of {} weights of format `{}` could leave 32 bits",
            plan.unit, plan.format.name
        );
        Error::refused("sum-overflow", variant, message, OTHER_FORMATS)
    }

    /// A tile of a CUDA block that needs too much memory.
    pub(crate) fn shared_memory(plan: &FormatPlan<'_>, variant: &Origin, message: &str) -> Error {
        let message = format!("format `{}`: {message}", plan.format.name);
        let help = "fewer `tokens` or `threads` in `tile` need less";
        Error::refused("shared-memory", variant, message, help)
    }

    /// Something that the checks refuse.
    pub(crate) fn passed(plan: &FormatPlan<'_>, reason: impl Into<String>) -> Error {
        Error::Passed { format: plan.format.name.clone(), reason: reason.into() }
    }
}

/// What would help where a variant can't serve a format.
pub(crate) const OTHER_FORMATS: &str = "list `formats` without this one";

fn diagnostic(
    code: &'static str,
    variant: &Origin,
    message: impl Into<String>,
    help: impl Into<String>,
) -> Diagnostic {
    Diagnostic::error(code, &variant.file, variant.span.clone(), message).label("this variant").help(help)
}

/// What the loops of a strategy need of a packing.
fn wanted(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Multiply => {
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

/// What of a checked set can't be compiled, for processors and for GPUs: every kernel is planned and none is written.
pub fn refusals(set: &SpecSet) -> Vec<Error> {
    let mut errors = Vec::new();
    for (index, format) in set.formats.iter().enumerate() {
        let plan = FormatPlan::new(format, &set.activations[format.activations]);
        for (_, _, variant) in crate::emit::serving(set, Op::Matmul, index) {
            if let Some(packing) = variant.packing {
                errors.extend(packed_plan(&plan, &set.packings[packing], variant).err());
            }
        }
        errors.extend(crate::cuda::refusals(set, &plan, index));
    }
    once(errors)
}

/// As [`PackPlan::fit`], or why not.
pub(crate) fn fitted<'a>(
    plan: &FormatPlan<'_>,
    packing: &'a Packing,
    variant: &Origin,
) -> Result<PackPlan<'a>, Error> {
    PackPlan::fit(plan, packing).ok_or_else(|| Error::no_tile(plan, packing, variant))
}
