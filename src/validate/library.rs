//! Products beside those of a C++ library: another program's idea of a format.

use super::asked::{Options, Outcome, ValidateError};
use super::products::{Inputs, Problem, outcome, product};
use super::tensor::{layer, matrix, row_of};
use crate::compare::{CompareError, TOLERANCE, largest_error};
use crate::registry::FormatInfo;
use crate::{Registry, Threads};
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

pub(super) fn check(
    registry: &'static Registry,
    options: &Options<'_>,
    formats: &[&'static FormatInfo],
    threads: &Threads,
) -> Result<LibraryCheck, ValidateError> {
    let mut check = LibraryCheck {
        outcome: Outcome::NotRun,
        library: options.library.map(|theirs| theirs.path().display().to_string()),
        agree: 0,
        disagree: Vec::new(),
        largest_error: None,
        not_compared: Vec::new(),
    };
    let Some(theirs) = options.library else { return Ok(check) };
    for format in formats {
        let k = row_of(format, Inputs::LEAST_K);
        let Some(weights) = matrix(registry, format, (Inputs::ROWS, k), 8, options)? else { continue };
        let Some(ours) = layer(registry, &weights, options.device, options.restrict(), threads)? else {
            continue;
        };
        let function = match theirs.product(format) {
            Ok(function) => function,
            // A library that means another format by the number is as good as one without it.
            Err(error @ (CompareError::NoProduct { .. } | CompareError::OtherFormat { .. })) => {
                let why = match error {
                    CompareError::NoProduct { reason, .. } => reason,
                    error => error.to_string(),
                };
                check.not_compared.push(NotCompared { format: format.name.to_owned(), why });
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for m in Inputs::TOKENS {
            let x = Inputs::activations(format, m, k);
            let (y, kernel) = product(&ours, m, &x, threads)?;
            let mut z = vec![f32::NAN; y.len()];
            function.run(&weights.matrix(), &x, m, &mut z)?;
            let error = largest_error(&y, &z);
            if error <= TOLERANCE {
                check.agree += 1;
                check.largest_error = Some(check.largest_error.map_or(error, |known| known.max(error)));
                continue;
            }
            let what = format!(
                "differs from {} by {error:.1e} of its largest output; up to {TOLERANCE} agrees",
                function.function()
            );
            check.disagree.push(Problem {
                format: format.name.to_owned(),
                kernel: kernel.to_owned(),
                m,
                what,
            });
        }
    }
    check.outcome = outcome(check.agree, check.disagree.len());
    Ok(check)
}
