//! The rows that go through a prologue.

use crate::error::Error;
use crate::operands::sizes::{check_len, check_span, product_of};

/// Rows of f32, one for each token, as they lie in memory.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    values: &'a [f32],
    /// Values from one row to the next; `None`: rows lie one behind the other, and there is nothing else.
    stride: Option<usize>,
}

impl<'a> Rows<'a> {
    /// Rows one behind the other.
    pub fn dense(values: &'a [f32]) -> Rows<'a> {
        Rows { values, stride: None }
    }

    /// Rows that begin `stride` values apart: a part of wider rows. The last one need not be padded.
    pub fn strided(values: &'a [f32], stride: usize) -> Rows<'a> {
        Rows { values, stride: Some(stride) }
    }

    fn check(&self, what: &'static str, m: usize, k: usize) -> Result<(), Error> {
        check_span(what, [m, k], self.stride, self.values.len())
    }

    /// Values, and from one row to the next.
    #[cfg(feature = "cuda")]
    pub(crate) fn parts(&self) -> (&'a [f32], Option<usize>) {
        (self.values, self.stride)
    }

    /// Row `token` of `k` values, if it is there.
    pub(crate) fn row(&self, token: usize, k: usize) -> Option<&'a [f32]> {
        let begin = token.checked_mul(self.stride.unwrap_or(k))?;
        self.values.get(begin..begin.checked_add(k)?)
    }
}

/// What goes through a [`Prologue`](crate::Prologue): the rows of a call.
#[derive(Debug)]
pub struct PrologueInput<'a> {
    pub(crate) x: Rows<'a>,
    /// Of a gate.
    pub(crate) up: Option<Rows<'a>>,
    /// Of an addition, with `sum`.
    pub(crate) residual: Option<Rows<'a>>,
    pub(crate) sum: Option<&'a mut [f32]>,
}

impl<'a> PrologueInput<'a> {
    /// The rows `x`.
    pub fn new(x: Rows<'a>) -> PrologueInput<'a> {
        PrologueInput { x, up: None, residual: None, sum: None }
    }

    /// The rows that a gate multiplies with: `function(x) * up`.
    pub fn gate(self, up: Rows<'a>) -> PrologueInput<'a> {
        PrologueInput { up: Some(up), ..self }
    }

    /// Adds `residual`, behind the gate and in front of the norm, and writes the sums to `sum`, `m * k` values. On an error the
    /// sums of some rows may be written; `residual` is as it was.
    pub fn add(self, residual: Rows<'a>, sum: &'a mut [f32]) -> PrologueInput<'a> {
        PrologueInput { residual: Some(residual), sum: Some(sum), ..self }
    }

    /// Whether there are rows of a gate, and of an addition.
    pub(crate) fn operands(&self) -> [bool; 2] {
        [self.up.is_some(), self.sum.is_some()]
    }

    /// Compares all lengths with the shape.
    pub(crate) fn check(&self, m: usize, k: usize) -> Result<(), Error> {
        self.x.check("activations", m, k)?;
        if let Some(up) = &self.up {
            up.check("the rows of a gate", m, k)?;
        }
        if let Some(residual) = &self.residual {
            residual.check("the residual", m, k)?;
        }
        match &self.sum {
            Some(sum) => check_len("the sum", "values", product_of("the sum", m, k)?, sum.len()),
            None => Ok(()),
        }
    }
}
