//! Prologues of activations: every operation of f32 taken in f64 and rounded, which gives the same.

use super::Refused;
use gristmill_spec::model::Activations;
use gristmill_spec::vocab::{GateFunction, PrologueStep};

/// What goes into the steps of a prologue, besides the row; a step without it is left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrologueSteps<'s> {
    /// The function of the gate, and the row that its value is multiplied with.
    pub gate: Option<(GateFunction, &'s [f32])>,
    /// The row that is added.
    pub residual: Option<&'s [f32]>,
    /// Weight and epsilon of the norm.
    pub norm: Option<(&'s [f32], f32)>,
    /// Elements of a block of the transform, and the sign of each element, if there are any.
    pub transform: Option<(usize, Option<&'s [f32]>)>,
}

/// A row behind a prologue.
#[derive(Clone, Debug, PartialEq)]
pub struct PrologueRow {
    /// What is quantized.
    pub row: Vec<f32>,
    /// The sum, where something is added.
    pub sum: Option<Vec<f32>>,
}

/// The f32 nearest to the exact result of one operation. (f64 has more than twice the bits of f32, so sums, differences, products and
/// quotients of two f32 are rounded as if once.)
fn rounded(exact: f64) -> f32 {
    exact as f32
}

fn times(a: f32, b: f32) -> f32 {
    rounded(f64::from(a) * f64::from(b))
}

fn plus(a: f32, b: f32) -> f32 {
    rounded(f64::from(a) + f64::from(b))
}

fn finite(row: &[f32]) -> Result<(), Refused> {
    row.iter().position(|x| !x.is_finite()).map_or(Ok(()), |at| Err(Refused::NonFinite(at)))
}

/// e^x for x <= 0: the polynomial of degree 6 of x less a multiple of ln 2.
fn exp(x: f32) -> f32 {
    if x < -87.0 {
        return 0.0;
    }
    let n = f64::from(times(x, std::f32::consts::LOG2_E)).round_ties_even() as f32;
    let r = plus(x, -times(n, 0.693_359_4));
    let r = plus(r, -times(n, -2.121_944_4e-4));
    let coefficients = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
    let p = coefficients.into_iter().reduce(|p, next| plus(times(p, r), next)).unwrap_or_default();
    let p = plus(plus(times(p, times(r, r)), r), 1.0);
    rounded(f64::from(p) * f64::from(n).exp2())
}

fn sigmoid(z: f32) -> f32 {
    let e = exp(-z.abs());
    let above = if z >= 0.0 { 1.0 } else { e };
    rounded(f64::from(above) / f64::from(plus(1.0, e)))
}

fn gate(function: GateFunction, x: f32) -> f32 {
    match function {
        GateFunction::Silu => times(x, sigmoid(x)),
        GateFunction::GeluTanh => {
            times(x, sigmoid(times(x, plus(1.595_769, times(0.071_354_82, times(x, x))))))
        }
        GateFunction::SquaredRelu => {
            let positive = if x < 0.0 { 0.0 } else { x };
            times(positive, positive)
        }
    }
}

/// The factor of a norm.
fn factor(row: &[f32], epsilon: f32) -> f32 {
    let square = |x: &f32| f64::from(*x) * f64::from(*x);
    let lane =
        |lane: usize| row.iter().skip(lane).step_by(16).map(square).fold(0.0, |sum, square| sum + square);
    let sum = (0..16).map(lane).fold(0.0, |sum, lane| sum + lane);
    rounded(1.0 / (sum / row.len() as f64 + f64::from(epsilon)).sqrt())
}

/// The transform of one block without its signs and factor: both halves, and then their sums and differences.
fn transformed(block: &[f32]) -> Vec<f32> {
    if block.len() < 2 {
        return block.to_vec();
    }
    let (low, high) = block.split_at(block.len() / 2);
    let (low, high) = (transformed(low), transformed(high));
    let sums = low.iter().zip(&high).map(|(a, b)| plus(*a, *b));
    let differences = low.iter().zip(&high).map(|(a, b)| plus(*a, -*b));
    sums.chain(differences).collect()
}

impl PrologueRow {
    /// What the row `x` becomes, step by step in the order of the activation format.
    ///
    /// # Errors
    /// [`Refused::NonFinite`] where the row, or a row that a step takes, is not finite.
    pub fn of(
        activations: &Activations,
        x: &[f32],
        steps: &PrologueSteps<'_>,
    ) -> Result<PrologueRow, Refused> {
        finite(x)?;
        let (mut row, mut sum) = (x.to_vec(), None);
        for step in &activations.prologue {
            match step {
                PrologueStep::Gate => {
                    let Some((function, up)) = steps.gate else { continue };
                    finite(up)?;
                    row = row.iter().zip(up).map(|(x, up)| times(gate(function, *x), *up)).collect();
                }
                PrologueStep::Add => {
                    let Some(residual) = steps.residual else { continue };
                    row = row.iter().zip(residual).map(|(x, residual)| plus(*x, *residual)).collect();
                    finite(&row)?;
                    sum = Some(row.clone());
                }
                PrologueStep::RmsNorm => {
                    let Some((weight, epsilon)) = steps.norm else { continue };
                    finite(&row)?;
                    let factor = factor(&row, epsilon);
                    row =
                        row.iter().zip(weight).map(|(x, weight)| times(times(*x, factor), *weight)).collect();
                }
                PrologueStep::Hadamard => {
                    let Some((block, signs)) = steps.transform else { continue };
                    finite(&row)?;
                    let root = rounded(1.0 / (block as f64).sqrt());
                    let sign = |i: usize| signs.map_or(1.0, |signs| signs[i]);
                    let scaled: Vec<f32> =
                        row.iter().enumerate().map(|(i, x)| times(times(*x, sign(i)), root)).collect();
                    row = scaled.chunks(block).flat_map(transformed).collect();
                }
            }
        }
        Ok(PrologueRow { row, sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The oracle's own arithmetic by definitions in f64.
    #[test]
    fn functions_are_what_their_names_say() {
        for i in -800..=0 {
            let x = i as f32 / 10.0;
            assert!((f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs() < 2.5e-7, "{x}");
        }
        let exact = |function, x: f64| match function {
            GateFunction::Silu => x / (1.0 + (-x).exp()),
            GateFunction::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
            GateFunction::SquaredRelu => x.max(0.0).powi(2),
        };
        for function in GateFunction::ALL {
            for i in -200..=200 {
                let x = i as f32 / 20.0;
                let (found, expected) = (f64::from(gate(*function, x)), exact(*function, f64::from(x)));
                assert!((found - expected).abs() <= 1e-6 * expected.abs() + 1e-6, "{function}({x}): {found}");
            }
        }
        assert_eq!(transformed(&[1.0, 2.0, 3.0, 4.0]), [10.0, -2.0, -4.0, 0.0]);
    }
}
