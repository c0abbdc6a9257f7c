//! Launches of what goes over blocks: quantizers, dequantizers, and what makes activations int8.

use super::Launcher;
use crate::abi::{DequantizeFn, Fault, QuantizeActivationsFn, QuantizeFn, Step, StepFn};
use crate::activations::RowLayout;
use crate::decide::Candidate;
use crate::error::Error;
use crate::observe::Ending;
use crate::operands::sizes::check_len;
use crate::registry::{Code, FormatInfo, Registry};
use crate::request::Shape;
use crate::threads::divide::SomeThreads;
use crate::weights::QuantizedMatrix;
use gristmill_spec::vocab::Op;
use std::ops::Range;

/// Code of a quantizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizeCode {
    step: Option<StepFn>,
    blocks: QuantizeFn,
    weighs: bool,
}

/// Code of an activation quantizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationCode(QuantizeActivationsFn);

/// Code of a dequantizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DequantizeCode(DequantizeFn);

impl Fault {
    /// The fault as an error, where index 0 is column 0 of row `row` in rows of `k`.
    pub(crate) fn in_rows(self, format: &FormatInfo, row: usize, k: usize) -> Error {
        let k = k.max(1);
        let blocks = (k / format.elements.max(1)).max(1);
        match self {
            Fault::NonFinite(i) => Error::NonFinite { row: row.saturating_add(i / k), column: i % k },
            Fault::InvalidCode(i) => {
                Error::InvalidCode { format: format.name, row: row.saturating_add(i / k), column: i % k }
            }
            Fault::ScaleOverflow(b) => {
                Error::ScaleOverflow { row: row.saturating_add(b / blocks), block: b % blocks }
            }
        }
    }

    /// The fault as an error in row `row` of activations.
    pub(crate) fn in_activations(self, row: usize) -> Error {
        match self {
            Fault::NonFinite(column) => Error::NonFinite { row, column },
            Fault::InvalidCode(column) => Error::InvalidCode { format: "activations", row, column },
            Fault::ScaleOverflow(block) => Error::ScaleOverflow { row, block },
        }
    }
}

/// How many blocks a row is, if its bytes and its values agree.
pub(crate) fn whole_blocks(format: &FormatInfo, bytes: usize, values: usize) -> Result<usize, Error> {
    let blocks = bytes / format.bytes.max(1);
    let expected = blocks.saturating_mul(format.elements);
    if blocks.saturating_mul(format.bytes) == bytes && expected == values {
        Ok(blocks)
    } else {
        Err(Error::ShapeMismatch { what: "a row", unit: "values", expected, found: values })
    }
}

impl Launcher<DequantizeCode> {
    pub(crate) fn dequantize(registry: &'static Registry, candidate: Candidate) -> Result<Self, Error> {
        Launcher::new(registry, candidate, Op::Dequantize, |code| match code {
            Code::Dequantize(run) => Some(DequantizeCode(run)),
            _ => None,
        })
    }

    /// Some rows of a matrix to `rows.len() * k` values, of which the caller found that `dst` holds them. One launch, whatever
    /// threads it is divided among.
    pub(crate) fn rows(
        &self,
        matrix: &QuantizedMatrix<'_>,
        rows: Range<usize>,
        dst: &mut [f32],
        threads: SomeThreads<'_>,
    ) -> Result<(), Error> {
        let k = matrix.k();
        let bytes_in = rows.len().saturating_mul(matrix.row_bytes());
        let shape = Shape::matrix(rows.len(), k);
        self.launch(shape, [bytes_in, size_of_val(dst)], || {
            threads.converted_rows(dst, k, k, |i, values| self.row(matrix, rows.start + i, values))
        })
    }

    /// Reads every row, so that a code without a meaning is found.
    pub(crate) fn validate(&self, matrix: &QuantizedMatrix<'_>) -> Result<(), Error> {
        let mut scratch = crate::memory::aligned::Aligned::<f32>::zeroed(matrix.k())?;
        self.launch(Shape::matrix(matrix.n(), matrix.k()), [matrix.total_bytes(), 0], || {
            (0..matrix.n()).try_for_each(|row| self.row(matrix, row, &mut scratch))
        })
    }

    /// One row, given apart from its matrix.
    pub(crate) fn one(
        &self,
        format: &FormatInfo,
        blocks: &[u8],
        outer: f32,
        dst: &mut [f32],
    ) -> Result<(), Error> {
        let (shape, bytes) = (Shape::matrix(1, dst.len()), [blocks.len(), size_of_val(dst)]);
        self.launch(shape, bytes, || self.blocks(format, blocks, outer, 0, dst))
    }

    fn row(&self, matrix: &QuantizedMatrix<'_>, row: usize, dst: &mut [f32]) -> Result<(), Error> {
        let outer = matrix.outer_scale(row)?;
        self.blocks(matrix.format(), matrix.blocks(row), outer, row, dst)
    }

    /// The blocks of row `row`, which is named in errors.
    fn blocks(
        &self,
        format: &FormatInfo,
        blocks: &[u8],
        outer: f32,
        row: usize,
        dst: &mut [f32],
    ) -> Result<(), Error> {
        let count = whole_blocks(format, blocks.len(), dst.len())?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: `admit` checked the processor; `whole_blocks` found that `blocks` holds `count` blocks
        // and `dst` their values.
        unsafe { (self.code.0)(blocks.as_ptr(), dst.as_mut_ptr(), count, outer) }
            .map_err(|fault| fault.in_rows(format, row, dst.len()))
    }
}

impl Launcher<QuantizeCode> {
    pub(crate) fn quantize(registry: &'static Registry, candidate: Candidate) -> Result<Self, Error> {
        Launcher::new(registry, candidate, Op::Quantize, |code| match code {
            Code::Quantize { step, blocks, weighs } => Some(QuantizeCode { step, blocks, weighs }),
            _ => None,
        })
    }

    /// Whether it weighs errors by the importance of the weights.
    pub(crate) fn weighs(&self) -> bool {
        self.code.weighs
    }

    /// A whole tensor, as one launch.
    pub(crate) fn counted<R: Ending>(&self, shape: Shape, dst: usize, run: impl FnOnce() -> R) -> R {
        self.launch(shape, [shape.n.saturating_mul(shape.k).saturating_mul(4), dst], run)
    }

    /// The step of a row or tensor; for a quantizer without one, the neutral step.
    pub(crate) fn step(&self, src: &[f32]) -> Result<Step, Fault> {
        match self.code.step {
            // SAFETY: `admit` checked the processor; the slice gives pointer and length.
            Some(step) => unsafe { step(src.as_ptr(), src.len()) },
            None => Ok(Step { apply: 1.0, stored: 1.0 }),
        }
    }

    /// The blocks of row `row`, which is named in errors.
    pub(crate) fn blocks(
        &self,
        format: &FormatInfo,
        src: &[f32],
        importance: Option<&[f32]>,
        row: usize,
        dst: &mut [u8],
        step: Step,
    ) -> Result<(), Error> {
        let count = whole_blocks(format, dst.len(), src.len())?;
        if count == 0 {
            return Ok(());
        }
        if let Some(importance) = importance {
            check_len("the importance", "values", src.len(), importance.len())?;
        }
        let importance = importance.map_or(std::ptr::null(), <[f32]>::as_ptr);
        // SAFETY: `admit` checked the processor; `whole_blocks` found that `src` holds the values of
        // `count` blocks and that `dst` has room for these; the importance is null or as long as `src`.
        unsafe { (self.code.blocks)(src.as_ptr(), dst.as_mut_ptr(), count, step, importance) }
            .map_err(|fault| fault.in_rows(format, row, src.len()))
    }
}

impl Launcher<ActivationCode> {
    pub(crate) fn activations(registry: &'static Registry, candidate: Candidate) -> Result<Self, Error> {
        Launcher::new(registry, candidate, Op::QuantizeActivations, |code| match code {
            Code::QuantizeActivations(run) => Some(ActivationCode(run)),
            _ => None,
        })
    }

    /// `m` rows, as one launch.
    pub(crate) fn counted<R: Ending>(&self, m: usize, layout: &RowLayout, run: impl FnOnce() -> R) -> R {
        let out = layout.bytes() + 4 * (layout.blocks + layout.units);
        let shape = Shape { m, n: 1, k: layout.k };
        self.launch(shape, [m.saturating_mul(layout.k).saturating_mul(4), m.saturating_mul(out)], run)
    }

    /// One row of `layout.k` values to places of exactly the layout's sizes.
    #[inline]
    pub(crate) fn row(
        &self,
        x: &[f32],
        layout: &RowLayout,
        q: &mut [i8],
        scales: &mut [f32],
        sums: &mut [i32],
    ) -> Result<(), Fault> {
        let RowLayout { k, unit, unit_padded, units, blocks, .. } = *layout;
        // One comparison a row; the caller cuts the buffers by the same layout.
        assert!(
            x.len() == k && q.len() == layout.bytes() && scales.len() == blocks && sums.len() == units,
            "rows are cut by the layout"
        );
        if k == 0 {
            return Ok(());
        }
        // SAFETY: `admit` checked the processor; the buffers have the sizes that the ABI asks for this
        // `k` and unit, as just compared.
        unsafe {
            (self.code.0)(
                x.as_ptr(),
                k,
                unit,
                unit_padded,
                q.as_mut_ptr(),
                scales.as_mut_ptr(),
                sums.as_mut_ptr(),
            )
        }
    }
}
