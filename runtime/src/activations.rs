//! Activations: what callers give, and the int8 rows that kernels read.

use crate::aligned::LINE;
use crate::error::Error;
use crate::launch::{ActivationCode, Launcher};
use crate::registry::Unit;
use crate::threads::{Threads, share};
use crate::workspace::{Workspace, WorkspaceSize};
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

    /// Row `token` as f32, converted into `scratch` if need be; `None` for int8 and beyond the end.
    pub(crate) fn row<'s>(&self, token: usize, k: usize, scratch: &'s mut [f32]) -> Option<&'s [f32]>
    where
        'a: 's,
    {
        let range = token.checked_mul(k)?..token.checked_add(1)?.checked_mul(k)?;
        match *self {
            Input::F32(x) => x.get(range),
            Input::F16(x) => {
                let scratch = scratch.get_mut(..k)?;
                x.get(range)?.convert_to_f32_slice(scratch);
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

/// How one row of activations is laid out for a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowLayout {
    pub(crate) k: usize,
    /// Elements of a unit.
    pub(crate) unit: usize,
    /// Bytes from one unit to the next.
    pub(crate) unit_padded: usize,
    /// Units of a row.
    pub(crate) units: usize,
    /// Bytes from one row to the next: whole cache lines, so that every row starts on one.
    pub(crate) stride: usize,
    /// Scales of a row.
    pub(crate) blocks: usize,
}

impl RowLayout {
    /// `unit.multiple` and `block` must not be 0 (checked where handles are made).
    pub(crate) fn new(unit: Unit, k: usize, block: Option<usize>) -> Result<RowLayout, Error> {
        let too_large = Error::TooLarge { what: "a row of activations" };
        let elements = if unit.elements == 0 { k.max(1) } else { unit.elements };
        let units = k.div_ceil(elements).max(1);
        let padded = elements.checked_next_multiple_of(unit.multiple);
        let Some((padded, bytes)) = padded.and_then(|padded| Some((padded, padded.checked_mul(units)?)))
        else {
            return Err(too_large);
        };
        let stride = bytes.checked_next_multiple_of(LINE).ok_or(too_large)?;
        let blocks = block.map_or(1, |block| k.div_ceil(block.max(1)).max(1));
        Ok(RowLayout { k, unit: elements, unit_padded: padded, units, stride, blocks })
    }

    /// Bytes of a row that kernels read.
    pub(crate) fn bytes(&self) -> usize {
        self.unit_padded * self.units
    }

    /// What a workspace must hold for `m` rows; `parts` rows of f32 besides.
    pub(crate) fn workspace(&self, m: usize, parts: usize) -> Result<WorkspaceSize, Error> {
        let times = |a: usize, b: usize| a.checked_mul(b).ok_or(Error::TooLarge { what: "the workspace" });
        Ok(WorkspaceSize {
            q: times(m, self.stride)?,
            scales: times(m, self.blocks)?,
            sums: times(m, self.units)?,
            rows: times(parts.min(m), self.k)?,
        })
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

/// Some rows on their way to int8, with their places in the workspace.
struct Rows<'w> {
    first: usize,
    m: usize,
    q: &'w mut [i8],
    scales: &'w mut [f32],
    sums: &'w mut [i32],
    /// One row of f32 for each part that these rows may still be cut into.
    scratch: &'w mut [f32],
}

/// Fills the workspace with `m` rows. `quantizer` may be missing for int8 input only. Sizes were checked.
pub(crate) fn quantize<'w>(
    quantizer: Option<&Launcher<ActivationCode>>,
    input: Input<'_>,
    m: usize,
    layout: RowLayout,
    workspace: &'w mut Workspace,
    threads: &Threads,
) -> Result<Activations<'w>, Error> {
    // A value of f32 costs about as much here as sixteen multiply-accumulates of a product.
    let work = (m as u64).saturating_mul(layout.k as u64).saturating_mul(16);
    let parts = threads.parts(work, m);
    let size = layout.workspace(m, if scratch_needed(input) { parts } else { 0 })?;
    workspace.check(size)?;
    let Workspace { q, scales, sums, rows, gpu: _ } = workspace;
    let (q, scales, sums) = (&mut q[..size.q], &mut scales[..size.scales], &mut sums[..size.sums]);
    let scratch = &mut rows[..size.rows];
    let job = Rows { first: 0, m, q: &mut *q, scales: &mut *scales, sums: &mut *sums, scratch };
    let split = |job, left, all| Rows::split(job, &layout, left, all);
    match (input, quantizer) {
        (Input::I8 { q, scales }, _) => {
            threads.divide(parts, job, &split, &|rows| Rows::copy(rows, &layout, q, scales))?;
        }
        (Input::F32(_) | Input::F16(_) | Input::Bf16(_), Some(quantizer)) => {
            quantizer.counted(m, &layout, || {
                threads.divide(parts, job, &split, &|rows| Rows::quantize(rows, &layout, input, quantizer))
            })?;
        }
        (Input::F32(_) | Input::F16(_) | Input::Bf16(_), None) => {
            return Err(Error::WrongInput {
                kernel: "int8 activations",
                expected: vec![DType::I8],
                found: input.dtype(),
            });
        }
    }
    Ok(Activations { layout, m, q, scales, sums })
}

fn scratch_needed(input: Input<'_>) -> bool {
    match input {
        Input::F16(_) | Input::Bf16(_) => true,
        Input::F32(_) | Input::I8 { .. } => false,
    }
}

impl Rows<'_> {
    fn split(self, layout: &RowLayout, left: usize, all: usize) -> (Self, Self) {
        let m = share(self.m, left, all);
        let (q, q2) = self.q.split_at_mut(m * layout.stride);
        let (scales, scales2) = self.scales.split_at_mut(m * layout.blocks);
        let (sums, sums2) = self.sums.split_at_mut(m * layout.units);
        let scratch_rows = if self.scratch.is_empty() { 0 } else { left * layout.k };
        let (scratch, scratch2) = self.scratch.split_at_mut(scratch_rows);
        let first = Rows { first: self.first, m, q, scales, sums, scratch };
        let second = Rows {
            first: self.first + m,
            m: self.m - m,
            q: q2,
            scales: scales2,
            sums: sums2,
            scratch: scratch2,
        };
        (first, second)
    }

    fn quantize(
        self,
        layout: &RowLayout,
        input: Input<'_>,
        quantizer: &Launcher<ActivationCode>,
    ) -> Result<(), Error> {
        for i in 0..self.m {
            let row = self.first + i;
            let Some(x) = input.row(row, layout.k, self.scratch) else {
                let expected = self.m.saturating_add(self.first).saturating_mul(layout.k);
                return Err(Error::ShapeMismatch {
                    what: "activations",
                    unit: "values",
                    expected,
                    found: input.len(),
                });
            };
            let q = &mut self.q[i * layout.stride..][..layout.bytes()];
            let scales = &mut self.scales[i * layout.blocks..][..layout.blocks];
            let sums = &mut self.sums[i * layout.units..][..layout.units];
            quantizer.row(x, layout, q, scales, sums).map_err(|fault| fault.in_activations(row))?;
        }
        Ok(())
    }

    /// Rows that a caller quantized: into units, with their sums.
    fn copy(self, layout: &RowLayout, q: &[i8], scales: &[f32]) -> Result<(), Error> {
        for i in 0..self.m {
            let row = self.first + i;
            let from = &scales[row * layout.blocks..][..layout.blocks];
            if let Some(block) = from.iter().position(|scale| !scale.is_finite()) {
                return Err(Error::NonFiniteScale { row, block });
            }
            self.scales[i * layout.blocks..][..layout.blocks].copy_from_slice(from);
            let from = &q[row * layout.k..][..layout.k];
            let to = &mut self.q[i * layout.stride..][..layout.bytes()];
            let sums = &mut self.sums[i * layout.units..][..layout.units];
            for ((from, to), sum) in
                from.chunks(layout.unit).zip(to.chunks_mut(layout.unit_padded)).zip(sums.iter_mut())
            {
                let (body, padding) = to.split_at_mut(from.len());
                body.copy_from_slice(from);
                padding.fill(0);
                *sum = from.iter().map(|q| i32::from(*q)).sum();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts() -> Result<(), Error> {
        let whole = RowLayout::new(Unit { elements: 0, multiple: 16 }, 100, None)?;
        assert_eq!((whole.unit, whole.unit_padded, whole.units), (100, 112, 1));
        assert_eq!((whole.stride, whole.blocks, whole.bytes()), (128, 1, 112));
        let units = RowLayout::new(Unit { elements: 20, multiple: 16 }, 50, Some(32))?;
        assert_eq!((units.unit, units.unit_padded, units.units), (20, 32, 3));
        assert_eq!((units.stride, units.blocks, units.bytes()), (128, 2, 96));
        let wide = RowLayout::new(Unit { elements: 0, multiple: 16 }, usize::MAX, None);
        assert_eq!(wide, Err(Error::TooLarge { what: "a row of activations" }));
        Ok(())
    }
}
