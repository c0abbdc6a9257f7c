//! Our kernels against those of a C++ library, on the same weights and activations.
//!
//! Both start from the same bytes of quantized weights and the same f32 activations, each quantizes the activations
//! as it always does, and quantizing is part of both times. One thread on both sides.

mod cpp;
mod error;

pub use cpp::{CppKernels, CppProduct};
pub use error::CompareError;

use gristmill_runtime::registry::FormatInfo;
use gristmill_runtime::room::zeros;
use gristmill_runtime::{
    Error, Input, Matmul, QuantizedMatrix, Registry, Request, Shape, Threads, Workspace,
};
use std::time::{Duration, Instant};

/// Largest difference, as a part of the largest value, at which results agree. Both sides round activations to
/// int8, at 1/254 of the largest activation at most; where both round alike only the order of f32 sums differs.
pub const TOLERANCE: f64 = 2e-3;

/// What a comparison came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The results differ by more than rounding can explain.
    Disagree,
    /// They agree, and ours took less than 95 % of the time.
    Faster,
    /// They agree, and both took about the same time.
    Even,
    /// They agree, and ours took more than 105 % of the time.
    Slower,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::Disagree => "disagree",
            Verdict::Faster => "agree, ours is faster",
            Verdict::Even => "agree, equally fast",
            Verdict::Slower => "agree, ours is slower",
        })
    }
}

/// Ours and theirs, on the same data.
#[derive(Clone, Debug)]
pub struct PerformanceComparison {
    /// The format of the weights.
    pub format: &'static str,
    /// Tokens, outputs, inner dimension.
    pub shape: Shape,
    /// Our kernel.
    pub kernel: &'static str,
    /// Their function.
    pub function: String,
    /// Median seconds of our kernel.
    pub ours: f64,
    /// Median seconds of theirs.
    pub theirs: f64,
    /// Largest difference between both results, as a part of the largest value of theirs.
    pub max_error: f64,
    /// Whether every result has the same bits.
    pub same_bits: bool,
}

impl PerformanceComparison {
    /// How many times as fast ours is.
    pub fn ratio(&self) -> f64 {
        self.theirs / self.ours
    }

    /// What it came to. An error that is no number disagrees.
    pub fn verdict(&self) -> Verdict {
        if self.max_error.is_nan() || self.max_error > TOLERANCE {
            return Verdict::Disagree;
        }
        match self.ours / self.theirs {
            ratio if ratio < 0.95 => Verdict::Faster,
            ratio if ratio > 1.05 => Verdict::Slower,
            _ => Verdict::Even,
        }
    }
}

/// Computes the product of `weights` with `m` rows of activations on both sides, several times for at least `time`.
///
/// # Errors
/// If there is no kernel of ours for it, `x` has another length than `m` rows of the weights' k, or the library
/// can't compute it.
pub fn compare(
    registry: &'static Registry,
    theirs: &CppKernels,
    weights: &QuantizedMatrix<'_>,
    x: &[f32],
    m: usize,
    time: Duration,
) -> Result<PerformanceComparison, CompareError> {
    let (n, k) = (weights.n(), weights.k());
    let format: &'static FormatInfo = weights.format();
    let shape = Shape::new(m, n, k);
    let matmul =
        Matmul::new(&registry.prepare_from_env(&Request::matmul(format.name, shape))?.decide_as_asked())?;
    let threads = Threads::single();
    let results = m.checked_mul(n).ok_or(Error::TooLarge { what: "results" })?;
    let packed = matmul.pack(weights)?;
    let mut workspace = Workspace::for_(&matmul, m, k, &threads)?;
    let mut y = zeros(results)?;
    let ours =
        median(time, || matmul.run(&packed, Input::F32(x), m, None, &mut y, &mut workspace, &threads))?;
    let product = theirs.product(format)?;
    let mut z = zeros(results)?;
    let seconds = median(time, || product.run(weights, x, m, &mut z))?;
    let max_error = largest_error(&y, &z);
    Ok(PerformanceComparison {
        format: format.name,
        shape,
        kernel: matmul.entry().name,
        function: product.function().to_owned(),
        ours,
        theirs: seconds,
        max_error,
        same_bits: y.iter().zip(&z).all(|(a, b)| a.to_bits() == b.to_bits()),
    })
}

/// The largest difference between both results, as a part of the largest value of theirs.
pub(crate) fn largest_error(ours: &[f32], theirs: &[f32]) -> f64 {
    let largest = theirs.iter().map(|value| f64::from(value.abs())).fold(0.0, f64::max);
    // `f64::max` passes over NaN, which must not look like agreement.
    let error = ours
        .iter()
        .zip(theirs)
        .map(|(a, b)| f64::from((a - b).abs()))
        .fold(0.0, |worst: f64, error| if error.is_nan() { f64::NAN } else { worst.max(error) });
    match (error, largest) {
        (0.0, _) => 0.0,
        (error, largest) => error / largest,
    }
}

/// The median time of a run, in seconds; the first run only warms up.
fn median<E>(time: Duration, mut run: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    run()?;
    let mut times = Vec::new();
    let started = Instant::now();
    while times.len() < 3 || started.elapsed() < time {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied().unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let of = |ours, theirs, max_error| {
            let comparison = PerformanceComparison {
                format: "q8_0",
                shape: Shape::new(1, 1, 32),
                kernel: "ours",
                function: "theirs".to_owned(),
                ours,
                theirs,
                max_error,
                same_bits: false,
            };
            comparison.verdict()
        };
        assert_eq!(of(1.0, 2.0, 0.0), Verdict::Faster);
        assert_eq!(of(1.0, 1.02, 1e-4), Verdict::Even);
        assert_eq!(of(2.0, 1.0, TOLERANCE), Verdict::Slower);
        assert_eq!(of(1.0, 2.0, 0.01), Verdict::Disagree);
        assert_eq!(of(1.0, 2.0, f64::NAN), Verdict::Disagree);
        assert_eq!(of(1.0, 2.0, f64::INFINITY), Verdict::Disagree);
    }
}
