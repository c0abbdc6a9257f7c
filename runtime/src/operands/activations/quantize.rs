//! Activations to the int8 rows that kernels read.

use super::layout::RowLayout;
use super::{Activations, Input, InputRows, NonFinite};
use crate::abi::Fault;
use crate::error::Error;
use crate::parallel::division::share;
use crate::run::launch::{ActivationCode, Launcher};
use crate::threads::Threads;
use crate::workspace::Workspace;
use gristmill_spec::vocab::DType;

/// Some rows on their way to int8, with their places in the workspace.
pub(super) struct Rows<'w> {
    pub(super) first: usize,
    pub(super) m: usize,
    pub(super) q: &'w mut [i8],
    pub(super) scales: &'w mut [f32],
    pub(super) sums: &'w mut [i32],
    /// One row of f32 for each part that these rows may still be cut into.
    pub(super) scratch: &'w mut [f32],
}

/// Fills the workspace with rows. `quantizer` may be missing for int8 input only.
pub(crate) fn quantize<'w>(
    quantizer: Option<&Launcher<ActivationCode>>,
    x: InputRows<'_>,
    layout: RowLayout,
    workspace: &'w mut Workspace,
    threads: &Threads,
) -> Result<Activations<'w>, Error> {
    let parts = threads.parts_of_rows(x.m, layout.k);
    let size = layout.workspace(x.m, scratch_rows(x.input, parts))?;
    workspace.check(size)?;
    let Workspace { q, scales, sums, rows: scratch, .. } = workspace;
    let (q, scales, sums) = (&mut q[..size.q], &mut scales[..size.scales], &mut sums[..size.sums]);
    quantize_into(quantizer, x, layout, RowBuffers { q, scales, sums, scratch }, (parts, threads))
}

/// Places for quantized rows.
pub(crate) struct RowBuffers<'w> {
    /// Of exactly the size that the layout gives.
    pub(crate) q: &'w mut [i8],
    /// Likewise.
    pub(crate) scales: &'w mut [f32],
    /// Likewise.
    pub(crate) sums: &'w mut [i32],
    /// As many rows of f32 as [`scratch_rows`] says, or more.
    pub(crate) scratch: &'w mut [f32],
}

/// The same into places of the caller's, whose sizes were checked for so many parts. Threads that fall asleep or wake up meanwhile would
/// give another number when they are asked again.
pub(crate) fn quantize_into<'w>(
    quantizer: Option<&Launcher<ActivationCode>>,
    x: InputRows<'_>,
    layout: RowLayout,
    buffers: RowBuffers<'w>,
    (parts, threads): (usize, &Threads),
) -> Result<Activations<'w>, Error> {
    let InputRows { input, m, .. } = x;
    let RowBuffers { q, scales, sums, scratch } = buffers;
    let scratch = &mut scratch[..scratch_rows(input, parts).min(m) * layout.k];
    let job = Rows { first: 0, m, q: &mut *q, scales: &mut *scales, sums: &mut *sums, scratch };
    let split = |job, left, all| Rows::split(job, &layout, left, all);
    match (input, quantizer) {
        (Input::I8 { q, scales }, _) => {
            threads.divide(parts, job, &split, &|rows| Rows::copy(rows, &layout, x, q, scales))?;
        }
        (Input::F32(_) | Input::F16(_) | Input::Bf16(_), Some(quantizer)) => {
            quantizer.counted(m, &layout, || {
                threads.divide(parts, job, &split, &|rows| Rows::quantize(rows, &layout, x, quantizer))
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

/// Rows of f32 that rows need on their way: one for each of the parts that they are cut into, where they are not f32.
pub(crate) fn scratch_rows(input: Input<'_>, parts: usize) -> usize {
    match input {
        Input::F16(_) | Input::Bf16(_) => parts,
        Input::F32(_) | Input::I8 { .. } => 0,
    }
}

impl Rows<'_> {
    pub(super) fn split(self, layout: &RowLayout, left: usize, all: usize) -> (Self, Self) {
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
        x: InputRows<'_>,
        quantizer: &Launcher<ActivationCode>,
    ) -> Result<(), Error> {
        for i in 0..self.m {
            let row = self.first + i;
            let Some(values) = x.row(row, self.scratch) else {
                let expected = self.m.saturating_add(self.first).saturating_mul(layout.k);
                return Err(Error::ShapeMismatch {
                    what: "activations",
                    unit: "values",
                    expected,
                    found: x.input.len(),
                });
            };
            let q = &mut self.q[i * layout.stride..][..layout.bytes()];
            let scales = &mut self.scales[i * layout.blocks..][..layout.blocks];
            let sums = &mut self.sums[i * layout.units..][..layout.units];
            match (quantizer.row(values, layout, q, scales, sums), x.non_finite) {
                (Ok(()), _) => {}
                (Err(Fault::NonFinite(_)), NonFinite::Nan) => set_aside(q, scales, sums),
                (Err(fault), _) => return Err(fault.in_activations(row)),
            }
        }
        Ok(())
    }

    /// Rows that a caller quantized: into units, with their sums.
    fn copy(self, layout: &RowLayout, x: InputRows<'_>, q: &[i8], scales: &[f32]) -> Result<(), Error> {
        for i in 0..self.m {
            let row = self.first + i;
            let from = &scales[row * layout.blocks..][..layout.blocks];
            let to = &mut self.q[i * layout.stride..][..layout.bytes()];
            let sums = &mut self.sums[i * layout.units..][..layout.units];
            let scales = &mut self.scales[i * layout.blocks..][..layout.blocks];
            match (from.iter().position(|scale| !scale.is_finite()), x.non_finite) {
                (None, _) => scales.copy_from_slice(from),
                (Some(_), NonFinite::Nan) => {
                    set_aside(to, scales, sums);
                    continue;
                }
                (Some(block), NonFinite::Refuse) => return Err(Error::NonFiniteScale { row, block }),
            }
            let from = x.int8(q, row);
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

/// A row of which nothing can be computed. No row that was quantized has a scale of NaN, so this is the mark by which
/// [`Activations::is_set_aside`] knows it; its values are finite, so that kernels read nothing odd.
fn set_aside(q: &mut [i8], scales: &mut [f32], sums: &mut [i32]) {
    q.fill(0);
    sums.fill(0);
    scales.fill(f32::NAN);
}
