//! Products beside those of a C++ library: another program's idea of a format.

use super::asked::{Outcome, Problem, ValidateError};
use crate::QuantizedMatrix;
use crate::compare::{CompareError, CppKernels, CppProduct, TOLERANCE, largest_error};
use crate::registry::FormatInfo;
use serde::Serialize;

/// Products beside those of a C++ library.
#[derive(Clone, Debug, Serialize)]
pub struct LibraryCheck {
    /// Failed, if any product disagrees; not run, if there was none, or no library.
    pub outcome: Outcome,
    /// The library's file; none was asked for where there is none.
    pub library: Option<String>,
    /// Products that agree up to what rounding activations can explain.
    pub agree: usize,
    /// Products that do not.
    pub disagree: Vec<Problem>,
    /// The largest difference of those that agree, as a part of the largest output of a product.
    pub largest_error: Option<f64>,
    /// Formats that the library has no product of, each with why.
    pub not_compared: Vec<NotCompared>,
}

/// A format without a product in the library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotCompared {
    /// The format.
    pub format: String,
    /// Why.
    pub why: String,
}

impl LibraryCheck {
    /// Nothing is compared yet.
    pub(super) fn new(theirs: Option<&CppKernels>) -> LibraryCheck {
        LibraryCheck {
            outcome: Outcome::NotRun,
            library: theirs.map(|theirs| theirs.path().display().to_string()),
            agree: 0,
            disagree: Vec::new(),
            largest_error: None,
            not_compared: Vec::new(),
        }
    }

    /// The library's product of a format; none is noted with its reason.
    pub(super) fn product<'l>(
        &mut self,
        theirs: &'l CppKernels,
        format: &'static FormatInfo,
    ) -> Result<Option<CppProduct<'l>>, ValidateError> {
        let why = match theirs.product(format) {
            Ok(product) => return Ok(Some(product)),
            Err(CompareError::NoProduct { reason, .. }) => reason,
            // A library that means another format by the number is as good as one without it.
            Err(error @ CompareError::OtherFormat { .. }) => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        self.not_compared.push(NotCompared { format: format.name.to_owned(), why });
        Ok(None)
    }

    /// Compares `ours` with the library's product of the same weights and activations. `problem` says of what kernel it is.
    pub(super) fn compare(
        &mut self,
        theirs: &CppProduct<'_>,
        weights: &QuantizedMatrix<'_>,
        (x, m): (&[f32], usize),
        ours: &[f32],
        problem: impl Fn(String) -> Problem,
    ) -> Result<(), ValidateError> {
        let mut z = vec![f32::NAN; ours.len()];
        theirs.run(weights, x, m, &mut z)?;
        let error = largest_error(ours, &z);
        if error <= TOLERANCE {
            self.agree += 1;
            self.largest_error = Some(self.largest_error.map_or(error, |known| known.max(error)));
        } else {
            self.disagree.push(problem(format!(
                "differs from {} by {error:.1e} of its largest output; up to {TOLERANCE} agrees",
                theirs.function()
            )));
        }
        Ok(())
    }
}
