//! Handles of conversions: f32 to a format's bytes, and back.

use super::{check_format, check_shape};
use crate::abi::Step;
use crate::cuda;
use crate::decide::Decision;
use crate::decisions::thread_limits::ThreadLimits;
use crate::error::Error;
use crate::operands::quantized_buf::QuantizedBuf;
use crate::operands::sizes::{check_len, check_rows, product_of};
use crate::receipt::Recording;
use crate::registry::{Entry, FormatInfo};
use crate::request::Shape;
use crate::run::launch::{DequantizeCode, Launcher, On, QuantizeCode};
use crate::threads::Threads;
use crate::weights::QuantizedMatrix;
use std::ops::Range;

/// f32 to a format's bytes.
#[derive(Clone, Debug)]
pub struct Quantizer {
    on: On<QuantizeCode, cuda::QuantizeCode>,
    format: &'static FormatInfo,
    /// Fewer threads, where that was measured to be faster.
    limits: ThreadLimits,
}

impl Quantizer {
    /// The handle for what `decision` chose.
    ///
    /// # Errors
    /// Why nothing was chosen; [`Error::WrongOp`]; [`Error::CannotRunHere`] if it was chosen for another
    /// processor.
    pub fn new(decision: &Decision<'_>) -> Result<Quantizer, Error> {
        let registry = decision.prepared().registry();
        let place = decision.prepared().place();
        let on = On::of(
            registry,
            decision.candidate()?,
            place,
            Launcher::quantize,
            Launcher::<cuda::QuantizeCode>::cuda,
        )?;
        let format = &registry.formats[on.entry().format];
        Ok(Quantizer { on, format, limits: decision.prepared().limits().clone() })
    }

    /// The kernel.
    pub fn entry(&self) -> &'static Entry {
        self.on.entry()
    }

    /// The format.
    pub fn format(&self) -> &'static FormatInfo {
        self.format
    }

    /// Lets launches count in `recording` (`None`: in no recording any more).
    ///
    /// # Errors
    /// [`Error::ForeignRecording`].
    pub fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        self.on.record(recording)
    }

    /// Writes the whole tensor: row headers, blocks, and the tail with its zero fill. One thread.
    ///
    /// `src` holds `n * k` values, `dst` [`FormatInfo::tensor_bytes`] bytes. After an error `dst` holds
    /// nothing of use.
    ///
    /// # Errors
    /// Sizes: [`Error::KNotMultiple`], [`Error::ShapeMismatch`], [`Error::ShapeRule`], [`Error::TooLarge`].
    /// Values: [`Error::NonFinite`], [`Error::ScaleOverflow`].
    pub fn run(&self, src: &[f32], n: usize, k: usize, dst: &mut [u8]) -> Result<(), Error> {
        self.run_on(src, n, k, dst, &Threads::single())
    }

    /// The same, its rows divided among `threads`: the same bytes and the same error for any number of them. A scale that covers
    /// the whole tensor is computed before, by the calling thread alone. On a GPU they are not used.
    ///
    /// # Errors
    /// As for [`Quantizer::run`].
    pub fn run_on(
        &self,
        src: &[f32],
        n: usize,
        k: usize,
        dst: &mut [u8],
        threads: &Threads,
    ) -> Result<(), Error> {
        self.quantize((src, None), n, k, dst, threads)
    }

    /// Whether the kernel takes the importance of the columns: see [`run_weighted`](Quantizer::run_weighted).
    pub fn takes_importance(&self) -> bool {
        match &self.on {
            On::Cpu(launcher) => launcher.weighs(),
            On::Cuda(_) => false,
        }
    }

    /// As [`run_on`](Quantizer::run_on), where a squared error of a weight costs what `importance` says of its column.
    ///
    /// `importance` holds `k` values, finite and not negative, for all rows: usually the mean square of the activation that the
    /// column is multiplied by. Only its proportions within a block count. A block whose columns have none is quantized as if
    /// all had the same. What each search makes of it is in [`search`](crate::search); it prefers the error that costs less,
    /// and finds no optimum.
    ///
    /// # Errors
    /// As for [`run`](Quantizer::run); [`Error::NoImportance`] where the kernel is none that weighs errors,
    /// [`Error::Importance`] with the first column of which it is negative, infinite or NaN.
    pub fn run_weighted(
        &self,
        src: &[f32],
        importance: &[f32],
        n: usize,
        k: usize,
        dst: &mut [u8],
        threads: &Threads,
    ) -> Result<(), Error> {
        if !self.takes_importance() {
            let quantizer = self.format.quantizers.get(self.entry().quantizer).copied().unwrap_or_default();
            return Err(Error::NoImportance {
                kernel: self.entry().name,
                format: self.format.name,
                quantizer,
            });
        }
        check_len("the importance", "values", k, importance.len())?;
        let unusable = importance.iter().position(|value| !(value.is_finite() && *value >= 0.0));
        if let Some(column) = unusable {
            return Err(Error::Importance { column, value: importance[column] });
        }
        self.quantize((src, Some(importance)), n, k, dst, threads)
    }

    fn quantize(
        &self,
        (src, importance): (&[f32], Option<&[f32]>),
        n: usize,
        k: usize,
        dst: &mut [u8],
        threads: &Threads,
    ) -> Result<(), Error> {
        let format = self.format;
        let bytes = format.tensor_bytes(n, k)?;
        check_len("the source", "values", product_of("a tensor", n, k)?, src.len())?;
        check_len("the destination", "bytes", bytes, dst.len())?;
        check_shape(self.on.entry(), Shape::matrix(n, k))?;
        match &self.on {
            On::Cpu(launcher) => launcher.counted(Shape::matrix(n, k), bytes, || {
                self.tensor(launcher, (src, importance), n, k, dst, threads)
            }),
            On::Cuda(launcher) => launcher.tensor(format, src, n, k, dst),
        }
    }

    fn tensor(
        &self,
        launcher: &Launcher<QuantizeCode>,
        (src, importance): (&[f32], Option<&[f32]>),
        n: usize,
        k: usize,
        dst: &mut [u8],
        threads: &Threads,
    ) -> Result<(), Error> {
        let format = self.format;
        let row_bytes = format.row_bytes(k)?;
        // A step for no values at all would divide by zero; nothing is stored with it.
        let nothing = Step { apply: 0.0, stored: 0.0 };
        let (rows, tail) = dst.split_at_mut(n * row_bytes);
        let tensor_step = match format.tensor_tail {
            Some((outer, _)) => {
                let step = if src.is_empty() { Ok(nothing) } else { launcher.step(src) };
                let step = step.map_err(|fault| fault.in_rows(format, 0, k))?;
                tail.fill(0);
                if !outer.write(step.stored, tail) {
                    return Err(Error::ScaleOverflow { row: 0, block: 0 });
                }
                step
            }
            None => nothing,
        };
        if row_bytes == 0 {
            return Ok(());
        }
        let threads = threads.at_most(self.limits.of(Shape::matrix(n, k)));
        threads.converted_rows(rows, row_bytes, k, |row, bytes| {
            let values = &src[row * k..][..k];
            let (header, blocks) = bytes.split_at_mut(format.header_bytes());
            let step = match format.row_header {
                Some(outer) => {
                    let step = if k == 0 { Ok(nothing) } else { launcher.step(values) };
                    let step = step.map_err(|fault| fault.in_rows(format, row, k))?;
                    if !outer.write(step.stored, header) {
                        return Err(Error::ScaleOverflow { row, block: 0 });
                    }
                    step
                }
                None => tensor_step,
            };
            launcher.blocks(format, values, importance, row, blocks, step)
        })
    }
}

/// A format's bytes to f32.
#[derive(Clone, Debug)]
pub struct Dequantizer {
    pub(super) on: On<DequantizeCode, cuda::DequantizeCode>,
    pub(super) format: &'static FormatInfo,
    /// Fewer threads, where that was measured to be faster.
    limits: ThreadLimits,
}

impl Dequantizer {
    /// The handle for what `decision` chose.
    ///
    /// # Errors
    /// As for [`Quantizer::new`].
    pub fn new(decision: &Decision<'_>) -> Result<Dequantizer, Error> {
        let registry = decision.prepared().registry();
        let place = decision.prepared().place();
        let gpu = Launcher::<cuda::DequantizeCode>::cuda;
        let on = On::of(registry, decision.candidate()?, place, Launcher::dequantize, gpu)?;
        let format = &registry.formats[on.entry().format];
        Ok(Dequantizer { on, format, limits: decision.prepared().limits().clone() })
    }

    /// The kernel.
    pub fn entry(&self) -> &'static Entry {
        self.on.entry()
    }

    /// The format.
    pub fn format(&self) -> &'static FormatInfo {
        self.format
    }

    /// Lets launches count in `recording` (`None`: in no recording any more).
    ///
    /// # Errors
    /// [`Error::ForeignRecording`].
    pub fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        self.on.record(recording)
    }

    /// Writes the `n * k` values of `matrix`, row after row. One thread.
    ///
    /// # Errors
    /// [`Error::WrongFormat`], [`Error::ShapeMismatch`], [`Error::ShapeRule`]; [`Error::InvalidCode`] with
    /// the position.
    pub fn run(&self, matrix: &QuantizedMatrix<'_>, dst: &mut [f32]) -> Result<(), Error> {
        self.run_on(matrix, dst, &Threads::single())
    }

    /// The same, its rows divided among `threads`: the same values and the same error for any number of them. On a GPU they are
    /// not used.
    ///
    /// # Errors
    /// As for [`Dequantizer::run`].
    pub fn run_on(
        &self,
        matrix: &QuantizedMatrix<'_>,
        dst: &mut [f32],
        threads: &Threads,
    ) -> Result<(), Error> {
        self.check(matrix)?;
        check_len("the destination", "values", product_of("a tensor", matrix.n(), matrix.k())?, dst.len())?;
        if dst.is_empty() {
            return Ok(());
        }
        match &self.on {
            On::Cpu(launcher) => {
                let limit = self.limits.of(Shape::matrix(matrix.n(), matrix.k()));
                launcher.rows(matrix, 0..matrix.n(), dst, threads.at_most(limit))
            }
            On::Cuda(launcher) => launcher.tensor(matrix, Some(dst)),
        }
    }

    /// Writes the values of some rows of `matrix`: `dst` holds `rows.len() * k`. A scale behind the whole tensor counts. One thread.
    ///
    /// # Errors
    /// As for [`Dequantizer::run`]; [`Error::RowRange`]. Positions are those in the matrix.
    pub fn rows(
        &self,
        matrix: &QuantizedMatrix<'_>,
        rows: Range<usize>,
        dst: &mut [f32],
    ) -> Result<(), Error> {
        self.rows_on(matrix, rows, dst, &Threads::single())
    }

    /// The same, divided among `threads`: the same values and the same error for any number of them. On a GPU they are not used.
    ///
    /// # Errors
    /// As for [`Dequantizer::rows`].
    pub fn rows_on(
        &self,
        matrix: &QuantizedMatrix<'_>,
        rows: Range<usize>,
        dst: &mut [f32],
        threads: &Threads,
    ) -> Result<(), Error> {
        self.check(matrix)?;
        check_rows(&rows, matrix.n())?;
        check_len("the destination", "values", product_of("a tensor", rows.len(), matrix.k())?, dst.len())?;
        if dst.is_empty() {
            return Ok(());
        }
        match &self.on {
            On::Cpu(launcher) => {
                let limit = self.limits.of(Shape::matrix(rows.len(), matrix.k()));
                launcher.rows(matrix, rows, dst, threads.at_most(limit))
            }
            On::Cuda(launcher) => {
                let first = rows.start;
                let some = QuantizedBuf::rows_of(matrix, rows)?;
                launcher.tensor(&some.matrix(), Some(dst)).map_err(|error| match error {
                    Error::InvalidCode { format, row, column } => {
                        Error::InvalidCode { format, row: first + row, column }
                    }
                    error => error,
                })
            }
        }
    }

    fn check(&self, matrix: &QuantizedMatrix<'_>) -> Result<(), Error> {
        check_format(self.on.entry(), self.format, matrix.format())?;
        check_shape(self.on.entry(), Shape::matrix(matrix.n(), matrix.k()))
    }

    /// Reads every row and keeps nothing: finds codes that mean nothing.
    ///
    /// # Errors
    /// As for [`Dequantizer::run`].
    pub fn validate(&self, matrix: &QuantizedMatrix<'_>) -> Result<(), Error> {
        self.check(matrix)?;
        if matrix.n() == 0 || matrix.k() == 0 {
            return Ok(());
        }
        match &self.on {
            On::Cpu(launcher) => launcher.validate(matrix),
            On::Cuda(launcher) => launcher.tensor(matrix, None),
        }
    }
}
