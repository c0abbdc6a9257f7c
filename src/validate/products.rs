//! Products of every format: the oracle's bits, and those of another way of computing them.

use super::asked::{Options, Outcome, Problem, ValidateError};
use super::library::LibraryCheck;
use super::tensor::{layer, matrix, row_of};
use crate::oracle::{FormatOracle, Int8Row, Oracle, Random};
use crate::registry::FormatInfo;
use crate::vocab::{DeviceKind, Isa};
use crate::{Device, Error, Input, Linear, QuantizedBuf, Registry, Restrict, Shape, Threads};
use serde::Serialize;

/// Tokens of the products: a decode step, and a few together.
const TOKENS: [usize; 2] = [1, 5];
/// Rows of the weights: more than a tile and no whole number of them.
const ROWS: usize = 70;
/// Elements of a row, at least.
const LEAST_K: usize = 512;

/// Products against the oracle, which shares no code with kernels.
#[derive(Clone, Debug, Serialize)]
pub struct Accuracy {
    /// Failed, if any product is wrong; not run, if there was none.
    pub outcome: Outcome,
    /// Products whose bits are the oracle's.
    pub right: usize,
    /// Products that are wrong.
    pub wrong: Vec<Problem>,
    /// Formats without a kernel on the device.
    pub without_kernel: Vec<String>,
    /// Formats that no weights could be made for.
    pub without_quantizer: Vec<String>,
}

/// The same products computed twice.
#[derive(Clone, Debug, Serialize)]
pub struct CrossCheck {
    /// Failed, if any product has other bits; not run, if there was none.
    pub outcome: Outcome,
    /// What the products are compared with.
    pub against: String,
    /// Products with the same bits.
    pub same: usize,
    /// Products with other bits.
    pub different: Vec<Problem>,
}

/// The outputs of a layer for random activations, and the kernel that gave them.
fn product(
    layer: &Linear,
    m: usize,
    x: &[f32],
    threads: &Threads,
) -> Result<(Vec<f32>, &'static str), Error> {
    let mut y = vec![f32::NAN; m * layer.n()];
    let mut workspace = layer.workspace(m, threads)?;
    layer.forward(Input::F32(x), m, None, &mut y, &mut workspace, threads)?;
    let kernel = layer.prepared().decide(Shape::new(m, layer.n(), layer.k())).kernel()?;
    Ok((y, kernel.name))
}

fn different(expected: &[f32], found: &[f32], n: usize) -> Option<String> {
    let at = expected.iter().zip(found).position(|(e, f)| e.to_bits() != f.to_bits())?;
    Some(format!("y[{}, {}]: expected {:e}, found {:e}", at / n, at % n, expected[at], found[at]))
}

/// The oracle's outputs.
fn expected(
    oracle: &FormatOracle<'_>,
    weights: &QuantizedBuf<'_>,
    x: &[f32],
) -> Result<Vec<f32>, ValidateError> {
    let matrix = weights.matrix();
    let (n, k) = (matrix.n(), matrix.k());
    let rows: Result<Vec<_>, _> = (0..n).map(|row| oracle.row(matrix.data(), n, k, row)).collect();
    let rows = rows?;
    let mut y = Vec::new();
    for x in x.chunks(k) {
        // Random numbers are finite, so nothing refuses them; if something did, NaN equals no output.
        match Int8Row::quantize(oracle.activations(), x) {
            Ok(token) => {
                y.extend(rows.iter().map(|row| oracle.product_f32(row, &token.q, &token.scales, None)))
            }
            Err(_) => y.extend(std::iter::repeat_n(f32::NAN, n)),
        }
    }
    Ok(y)
}

pub(super) fn check(
    registry: &'static Registry,
    options: &Options<'_>,
    formats: &[&'static FormatInfo],
    threads: &Threads,
) -> Result<(Accuracy, CrossCheck, LibraryCheck), ValidateError> {
    let oracle = Oracle::new(registry)?;
    let device = options.device;
    let (against, restrict) = match device.kind {
        DeviceKind::Cpu => ("the scalar kernels", Restrict { isa: Some(Isa::Scalar), ..options.restrict() }),
        _ => ("this processor", options.restrict()),
    };
    let mut accuracy = Accuracy {
        outcome: Outcome::NotRun,
        right: 0,
        wrong: Vec::new(),
        without_kernel: Vec::new(),
        without_quantizer: Vec::new(),
    };
    let mut cross =
        CrossCheck { outcome: Outcome::NotRun, against: against.to_owned(), same: 0, different: Vec::new() };
    let mut library = LibraryCheck::new(options.library);
    for format in formats {
        let k = row_of(format, LEAST_K);
        let Some(weights) = matrix(registry, format, (ROWS, k), 8, options)? else {
            accuracy.without_quantizer.push(format.name.to_owned());
            continue;
        };
        let Some(one) = layer(registry, &weights, device, options.restrict(), threads)? else {
            accuracy.without_kernel.push(format.name.to_owned());
            continue;
        };
        let other = layer(registry, &weights, Device::CPU, restrict.clone(), threads)?;
        let meaning = oracle.format(format.name)?;
        let theirs = match options.library {
            Some(theirs) => library.product(theirs, format)?,
            None => None,
        };
        for m in TOKENS {
            let x = Random::new(2, format.name).gauss_vec(m * k, 1.0);
            let (y, kernel) = product(&one, m, &x, threads)?;
            let problem =
                |what| Problem { format: format.name.to_owned(), kernel: kernel.to_owned(), m, what };
            match different(&expected(&meaning, &weights, &x)?, &y, ROWS) {
                Some(what) => accuracy.wrong.push(problem(what)),
                None => accuracy.right += 1,
            }
            if let Some(theirs) = &theirs {
                library.compare(theirs, &weights.matrix(), (&x, m), &y, problem)?;
            }
            let Some(other) = &other else { continue };
            match different(&product(other, m, &x, threads)?.0, &y, ROWS) {
                Some(what) => cross.different.push(problem(what)),
                None => cross.same += 1,
            }
        }
    }
    accuracy.outcome = outcome(accuracy.right, accuracy.wrong.len());
    cross.outcome = outcome(cross.same, cross.different.len());
    library.outcome = outcome(library.agree, library.disagree.len());
    Ok((accuracy, cross, library))
}

fn outcome(right: usize, wrong: usize) -> Outcome {
    match (right, wrong) {
        (0, 0) => Outcome::NotRun,
        (_, 0) => Outcome::Passed,
        _ => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_that_differs_is_named() {
        assert_eq!(different(&[1.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 3.0, 4.0], 2), None);
        let what = different(&[1.0, 2.0, 0.0, 4.0], &[1.0, 2.0, -0.0, 4.0], 2);
        assert_eq!(what.as_deref(), Some("y[1, 0]: expected 0e0, found -0e0"));
        assert_eq!(
            [outcome(0, 0), outcome(3, 0), outcome(3, 1)],
            [Outcome::NotRun, Outcome::Passed, Outcome::Failed]
        );
    }
}
