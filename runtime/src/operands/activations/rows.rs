//! Rows of activations as callers give them: how far apart, and what becomes of those that are not finite.

use super::Input;
use crate::arithmetic::halves::widen_f16;
use crate::error::Error;
use crate::operands::sizes::{check_len, check_span, product_of};
use half::slice::HalfFloatSliceExt;

/// What becomes of a token with NaN or an infinity among its activations, or among the scales of int8 activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NonFinite {
    /// The product is an error that names the token and the place ([`Error::NonFinite`], [`Error::NonFiniteScale`]).
    #[default]
    Refuse,
    /// Each output of the token is NaN; those of other tokens have the bits that they have without it.
    Nan,
}

/// Activations as a caller states them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) input: Input<'a>,
    pub(crate) m: usize,
    /// Values from one row to the next; `None`: rows lie one behind the other, and there is nothing else.
    pub(crate) stride: Option<usize>,
    pub(crate) non_finite: NonFinite,
}

impl<'a> Source<'a> {
    /// Rows one behind the other, refused where they are not finite.
    pub(crate) fn dense(input: Input<'a>, m: usize) -> Source<'a> {
        Source { input, m, stride: None, non_finite: NonFinite::Refuse }
    }

    /// Whether it is what [`dense`](Source::dense) makes.
    pub(crate) fn is_plain(&self) -> bool {
        self.stride.is_none() && self.non_finite == NonFinite::Refuse
    }

    /// Rows of `k` values; int8 rows have `blocks` scales each. With a stride the last row need not be padded.
    pub(crate) fn rows(&self, k: usize, blocks: usize) -> Result<InputRows<'a>, Error> {
        let Source { input, m, stride, non_finite } = *self;
        check_span("activations", [m, k], stride, input.len())?;
        check_scales(input, m, blocks)?;
        Ok(InputRows { input, m, k, stride: stride.unwrap_or(k), non_finite })
    }
}

/// Rows of a caller's, whose sizes were checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputRows<'a> {
    pub(crate) input: Input<'a>,
    pub(crate) m: usize,
    k: usize,
    /// Values from one row to the next; scales of int8 rows lie without gaps.
    stride: usize,
    pub(crate) non_finite: NonFinite,
}

impl<'a> InputRows<'a> {
    /// Rows one behind the other, refused where they are not finite; `check_input` compared the sizes.
    pub(crate) fn dense(input: Input<'a>, m: usize, k: usize) -> InputRows<'a> {
        InputRows { input, m, k, stride: k, non_finite: NonFinite::Refuse }
    }

    /// The rows without anything behind them, if they lie one behind the other.
    pub(crate) fn dense_input(&self) -> Option<Input<'a>> {
        let dense = self.stride == self.k || self.m <= 1;
        dense.then(|| self.input.first(self.m * self.k))
    }

    /// Row `token` as f32, converted into `scratch` if need be; `None` for int8 and beyond the end.
    pub(crate) fn row<'s>(&self, token: usize, scratch: &'s mut [f32]) -> Option<&'s [f32]>
    where
        'a: 's,
    {
        self.input.values(token.checked_mul(self.stride)?, self.k, scratch)
    }

    /// Copies row `token`, as f32; not for int8.
    pub(crate) fn read(&self, token: usize, to: &mut [f32]) {
        let range = token * self.stride..token * self.stride + self.k;
        match self.input {
            Input::F32(x) => to.copy_from_slice(&x[range]),
            Input::F16(x) => widen_f16(&x[range], to),
            Input::Bf16(x) => x[range].convert_to_f32_slice(to),
            Input::I8 { .. } => {}
        }
    }

    /// Row `token` of the int8 values `q`.
    pub(crate) fn int8<'q>(&self, q: &'q [i8], token: usize) -> &'q [i8] {
        &q[token * self.stride..][..self.k]
    }
}

/// Compares the lengths of activations with their shape.
pub(crate) fn check_input(input: Input<'_>, m: usize, k: usize, blocks: usize) -> Result<(), Error> {
    check_span("activations", [m, k], None, input.len())?;
    check_scales(input, m, blocks)
}

fn check_scales(input: Input<'_>, m: usize, blocks: usize) -> Result<(), Error> {
    match input {
        Input::I8 { scales, .. } => {
            check_len("activation scales", "values", product_of("activations", m, blocks)?, scales.len())
        }
        Input::F32(_) | Input::F16(_) | Input::Bf16(_) => Ok(()),
    }
}
