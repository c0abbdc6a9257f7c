//! Activations: what callers give, and the int8 rows that kernels read.

mod gather;
mod layout;
mod prologue;
mod quantize;
mod rows;
mod shared;

pub(crate) use gather::gather;
pub(crate) use layout::RowLayout;
pub(crate) use prologue::quantize_with;
pub(crate) use quantize::{RowBuffers, quantize, quantize_into, scratch_rows};
pub use rows::NonFinite;
pub(crate) use rows::{InputRows, Source, check_input};
pub(crate) use shared::ActivationLayout;
pub use shared::QuantizedActivations;

use crate::arithmetic::halves::widen_f16;
use gristmill_spec::vocab::DType;
use half::slice::HalfFloatSliceExt;

/// `m` rows (tokens) of `k` activations, row after row.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// binary32.
    F32(&'a [f32]),
    /// binary16.
    F16(&'a [half::f16]),
    /// bfloat16.
    Bf16(&'a [half::bf16]),
    /// Already quantized as the format's activation format says.
    I8 {
        /// `m * k` values.
        q: &'a [i8],
        /// One scale for each block of activations, `m * blocks` of them (one a row where the whole row
        /// shares its scale).
        scales: &'a [f32],
    },
}

/// What a product on a GPU takes from the processor's memory, sizes checked.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nothing reads it where there is no GPU"))]
pub(crate) struct Tokens<'a> {
    pub(crate) input: Input<'a>,
    /// How many; not 0.
    pub(crate) m: usize,
    pub(crate) layout: RowLayout,
    /// Elements that share a scale, where a row has several.
    pub(crate) block: Option<usize>,
    pub(crate) bias: Option<&'a [f32]>,
}

impl<'a> Input<'a> {
    /// The type.
    pub fn dtype(&self) -> DType {
        match self {
            Input::F32(_) => DType::F32,
            Input::F16(_) => DType::F16,
            Input::Bf16(_) => DType::Bf16,
            Input::I8 { .. } => DType::I8,
        }
    }

    /// Values, scales not counted.
    pub(crate) fn len(&self) -> usize {
        match self {
            Input::F32(x) => x.len(),
            Input::F16(x) => x.len(),
            Input::Bf16(x) => x.len(),
            Input::I8 { q, .. } => q.len(),
        }
    }

    /// The first `len` values; scales are all there.
    fn first(self, len: usize) -> Input<'a> {
        match self {
            Input::F32(x) => Input::F32(&x[..len]),
            Input::F16(x) => Input::F16(&x[..len]),
            Input::Bf16(x) => Input::Bf16(&x[..len]),
            Input::I8 { q, scales } => Input::I8 { q: &q[..len], scales },
        }
    }

    /// The first `rows` of `m` rows, and the others.
    #[cfg(feature = "cuda")]
    pub(crate) fn split_at(self, rows: usize, m: usize) -> (Input<'a>, Input<'a>) {
        let at = |len: usize| len / m.max(1) * rows;
        match self {
            Input::F32(x) => {
                let (first, others) = x.split_at(at(x.len()));
                (Input::F32(first), Input::F32(others))
            }
            Input::F16(x) => {
                let (first, others) = x.split_at(at(x.len()));
                (Input::F16(first), Input::F16(others))
            }
            Input::Bf16(x) => {
                let (first, others) = x.split_at(at(x.len()));
                (Input::Bf16(first), Input::Bf16(others))
            }
            Input::I8 { q, scales } => {
                let ((q, q_others), (scales, others)) =
                    (q.split_at(at(q.len())), scales.split_at(at(scales.len())));
                (Input::I8 { q, scales }, Input::I8 { q: q_others, scales: others })
            }
        }
    }

    /// `k` values from `begin` on as f32, converted into `scratch` if need be; `None` for int8 and beyond the end.
    fn values<'s>(&self, begin: usize, k: usize, scratch: &'s mut [f32]) -> Option<&'s [f32]>
    where
        'a: 's,
    {
        let range = begin..begin.checked_add(k)?;
        match *self {
            Input::F32(x) => x.get(range),
            Input::F16(x) => {
                let scratch = scratch.get_mut(..k)?;
                widen_f16(x.get(range)?, scratch);
                Some(scratch)
            }
            Input::Bf16(x) => {
                let scratch = scratch.get_mut(..k)?;
                x.get(range)?.convert_to_f32_slice(scratch);
                Some(scratch)
            }
            Input::I8 { .. } => None,
        }
    }
}

/// Quantized rows in a workspace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activations<'w> {
    pub(crate) layout: RowLayout,
    pub(crate) m: usize,
    /// `m * layout.stride`.
    pub(crate) q: &'w [i8],
    /// `m * layout.blocks`.
    pub(crate) scales: &'w [f32],
    /// `m * layout.units`.
    pub(crate) sums: &'w [i32],
}

impl<'w> Activations<'w> {
    /// Whether the row was not finite ([`NonFinite::Nan`]).
    pub(crate) fn is_set_aside(&self, row: usize) -> bool {
        self.layout.blocks > 0 && self.scales[row * self.layout.blocks].is_nan()
    }

    /// `m` of them from row `first` on.
    pub(crate) fn rows(&self, first: usize, m: usize) -> Activations<'w> {
        let RowLayout { stride, blocks, units, .. } = self.layout;
        Activations {
            layout: self.layout,
            m,
            q: &self.q[first * stride..][..m * stride],
            scales: &self.scales[first * blocks..][..m * blocks],
            sums: &self.sums[first * units..][..m * units],
        }
    }
}
