//! What is done to activations in front of a product, in one pass with their quantization: the prologue of a layer.
//!
//! Each row goes through its steps and is quantized while it lies in the first cache, by a kernel (op `prologue`) that was
//! compiled for it. Which steps there are, and their order, is said by the activation format (`prologue` in its spec).

mod input;
pub mod steps;

pub use gristmill_spec::vocab::GateFunction;
pub use input::{PrologueInput, Rows};

use crate::error::Error;
use crate::hadamard::Hadamard;
use crate::operands::sizes::check_len;
use crate::registry::ActivationInfo;
use gristmill_spec::vocab::PrologueStep;
use std::sync::Arc;

/// Steps between what an engine has and what a product takes, with what is the same for every token: a norm's weight, a gate's
/// function, a transform. [`Linear::quantize_with`](crate::Linear::quantize_with) applies it.
///
/// Shipped activation formats take, in this order: a gate (`f(x) * up`), an addition (`x + residual`, whose sum is kept), an RMSNorm,
/// a Hadamard transform. Each is left out unless it was asked for. [`steps`] states the arithmetic of each.
///
/// ```
/// use gristmill_runtime::{Error, Linear, Prologue, PrologueInput, Rows, Threads, Workspace};
///
/// /// Query, key and value of tokens whose last sub-layer gave `out`: the sum becomes the new residual.
/// fn project(
///     layers: [&Linear; 3],
///     norm: &Prologue,
///     [out, residual]: [&[f32]; 2],
///     sum: &mut [f32],
///     m: usize,
///     outputs: [&mut [f32]; 3],
///     workspace: &mut Workspace,
///     threads: &Threads,
/// ) -> Result<(), Error> {
///     let input = PrologueInput::new(Rows::dense(out)).add(Rows::dense(residual), sum);
///     let shared = layers[0].quantize_with(norm, input, m, workspace, threads)?;
///     for (layer, y) in layers.into_iter().zip(outputs) {
///         layer.forward_quantized(&shared, None, y, threads)?;
///     }
///     Ok(())
/// }
/// # let _ = project;
/// // The norm, made when the model is loaded: its weight, and what is added to the mean of squares.
/// let norm = Prologue::new(4).rms_norm(&[1.0, 0.5, 1.0, 2.0], 1e-5)?;
/// assert_eq!(norm.k(), 4);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Prologue {
    k: usize,
    gate: Option<GateFunction>,
    norm: Option<Norm>,
    transform: Option<Arc<Hadamard>>,
}

/// An RMSNorm.
#[derive(Clone, Debug, PartialEq)]
struct Norm {
    weight: Box<[f32]>,
    epsilon: f32,
}

impl Prologue {
    /// The prologue of rows of `k` elements, without any step but an addition where [`PrologueInput::add`] names one.
    pub fn new(k: usize) -> Prologue {
        Prologue { k, gate: None, norm: None, transform: None }
    }

    /// With a gate: each element x becomes `function(x) * up`, with the rows that [`PrologueInput::gate`] names.
    pub fn gated(self, function: GateFunction) -> Prologue {
        Prologue { gate: Some(function), ..self }
    }

    /// With an RMSNorm: `x / sqrt(mean of squares + epsilon) * weight`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for a weight that is not `k` values long; [`Error::Prologue`] for one that is not finite, with its
    /// place, and for an epsilon that is not positive and finite.
    pub fn rms_norm(self, weight: &[f32], epsilon: f32) -> Result<Prologue, Error> {
        check_len("the weight of a norm", "values", self.k, weight.len())?;
        if let Some(at) = weight.iter().position(|weight| !weight.is_finite()) {
            return Err(self.refused(format!("weight {at} of its norm is {}", weight[at])));
        }
        if !(epsilon > 0.0 && epsilon.is_finite()) {
            return Err(
                self.refused(format!("the epsilon of its norm is {epsilon:e}, expected a positive number"))
            );
        }
        Ok(Prologue { norm: Some(Norm { weight: weight.into(), epsilon }), ..self })
    }

    /// With a Hadamard transform, for weights that were folded with it.
    ///
    /// # Errors
    /// [`Error::Hadamard`] where the transform is of another width.
    pub fn transformed(self, transform: Arc<Hadamard>) -> Result<Prologue, Error> {
        if transform.width() != self.k {
            return Err(transform.refused(format!("the prologue is of rows of {}", self.k)));
        }
        Ok(Prologue { transform: Some(transform), ..self })
    }

    /// Elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    pub(crate) fn gate(&self) -> Option<GateFunction> {
        self.gate
    }

    /// Weight and epsilon, where there is a norm; the weight has `k` values.
    pub(crate) fn norm(&self) -> Option<(&[f32], f32)> {
        self.norm.as_ref().map(|norm| (&*norm.weight, norm.epsilon))
    }

    /// The transform, of `k` elements, if there is one.
    pub(crate) fn transform(&self) -> Option<&Hadamard> {
        self.transform.as_deref()
    }

    /// Refuses steps that kernels of `format` do not take, and a gate without its rows; of the input, whether there are rows of a
    /// gate and of an addition.
    pub(crate) fn check(&self, format: &ActivationInfo, [up, added]: [bool; 2]) -> Result<(), Error> {
        let wanted = [
            (PrologueStep::Gate, self.gate.is_some()),
            (PrologueStep::Add, added),
            (PrologueStep::RmsNorm, self.norm.is_some()),
            (PrologueStep::Hadamard, self.transform.is_some()),
        ];
        for (step, wanted) in wanted {
            if wanted && !format.prologue.contains(&step) {
                return Err(self.refused(format!("activations of `{}` take no `{step}`", format.name)));
            }
        }
        match (self.gate, up) {
            (Some(function), false) => Err(self.refused(format!(
                "its gate `{function}` has no rows to multiply with: `PrologueInput::gate`"
            ))),
            (None, true) => {
                Err(self.refused("rows for a gate, which it has not: `Prologue::gated`".to_owned()))
            }
            (Some(_), true) | (None, false) => Ok(()),
        }
    }

    fn refused(&self, why: String) -> Error {
        Error::Prologue { k: self.k, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_prologue_is_refused() {
        let four = || Prologue::new(4);
        let short = four().rms_norm(&[1.0; 3], 1e-5);
        assert!(matches!(short, Err(Error::ShapeMismatch { expected: 4, found: 3, .. })), "{short:?}");
        let refused = |made: Result<Prologue, Error>, why: &str| {
            let error = made.expect_err("it is none").to_string();
            assert!(error.contains("rows of 4") && error.contains(why), "{error}");
        };
        refused(four().rms_norm(&[1.0, 2.0, f32::NAN, 1.0], 1e-5), "weight 2 of its norm is NaN");
        for epsilon in [0.0, -1e-6, f32::NAN, f32::INFINITY] {
            refused(four().rms_norm(&[1.0; 4], epsilon), "the epsilon of its norm");
        }
        let eight = Hadamard::new(8, 8, None).map(Arc::new).expect("it is one");
        let error = four().transformed(eight).expect_err("of another width").to_string();
        assert!(error.contains("rows of 8") && error.contains("the prologue is of rows of 4"), "{error}");
    }
}
