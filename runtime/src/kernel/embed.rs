//! The handle for rows by index: what turns token numbers into their vectors.

use super::{check_format, check_len, check_shape, format_of, product_of};
use crate::cuda;
use crate::decide::Decision;
use crate::error::Error;
use crate::launch::{EmbedCode, Launcher, On};
use crate::receipt::Recording;
use crate::registry::{Entry, FormatInfo};
use crate::request::Shape;
use crate::weights::QuantizedMatrix;
use gristmill_spec::vocab::DType;

/// Where an [`Embedder`] writes: rows of values, one after the other, of one of three types.
#[derive(Debug)]
pub enum Output<'a> {
    /// binary32, as `dequantize` has them.
    F32(&'a mut [f32]),
    /// The same rounded to binary16, ties to even; what is too large becomes an infinity.
    F16(&'a mut [half::f16]),
    /// The same rounded to bfloat16, ties to even.
    Bf16(&'a mut [half::bf16]),
}

impl Output<'_> {
    /// The type.
    pub fn dtype(&self) -> DType {
        match self {
            Output::F32(_) => DType::F32,
            Output::F16(_) => DType::F16,
            Output::Bf16(_) => DType::Bf16,
        }
    }

    fn len(&self) -> usize {
        match self {
            Output::F32(y) => y.len(),
            Output::F16(y) => y.len(),
            Output::Bf16(y) => y.len(),
        }
    }
}

impl<'a> Output<'a> {
    /// The same memory as bytes, aligned as its values are.
    pub(crate) fn into_bytes(self) -> &'a mut [u8] {
        let (pointer, bytes) = match self {
            Output::F32(y) => (y.as_mut_ptr().cast::<u8>(), size_of_val(y)),
            Output::F16(y) => (y.as_mut_ptr().cast::<u8>(), size_of_val(y)),
            Output::Bf16(y) => (y.as_mut_ptr().cast::<u8>(), size_of_val(y)),
        };
        // SAFETY: the bytes of a slice that was given away; every pattern of bytes is a value of these types.
        unsafe { std::slice::from_raw_parts_mut(pointer, bytes) }
    }
}

/// Rows of a quantized matrix by index.
#[derive(Clone, Debug)]
pub struct Embedder {
    on: On<EmbedCode, cuda::EmbedCode>,
    format: &'static FormatInfo,
}

impl Embedder {
    /// The handle for what `decision` chose.
    ///
    /// # Errors
    /// Why nothing was chosen; [`Error::WrongOp`]; [`Error::CannotRunHere`] if it was chosen for another
    /// processor.
    pub fn new(decision: &Decision<'_>) -> Result<Embedder, Error> {
        let registry = decision.prepared().registry();
        let index = decision.prepared().device().index;
        let gpu = Launcher::<cuda::EmbedCode>::cuda;
        let on = On::of(registry, decision.candidate()?, index, Launcher::embed, gpu)?;
        let format = format_of(registry, on.entry())?;
        Ok(Embedder { on, format })
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

    /// Writes the rows of `matrix` that `rows` names (0 the first, any order, any number of times), one after the other:
    /// `dst` holds `rows.len() * k` values. Every index is compared before anything is written.
    ///
    /// # Errors
    /// [`Error::RowIndexOutOfRange`] with the first such index and its position; [`Error::WrongFormat`],
    /// [`Error::ShapeMismatch`], [`Error::ShapeRule`]; [`Error::InvalidCode`] with the row of the matrix.
    pub fn run(&self, matrix: &QuantizedMatrix<'_>, rows: &[u32], dst: Output<'_>) -> Result<(), Error> {
        check_format(self.on.entry(), self.format, matrix.format())?;
        let (n, k) = (matrix.n(), matrix.k());
        check_shape(self.on.entry(), Shape::matrix(n, k))?;
        if let Some((position, row)) = rows.iter().enumerate().find(|(_, row)| **row as usize >= n) {
            return Err(Error::RowIndexOutOfRange { position, index: *row, rows: n });
        }
        check_len("the destination", "values", product_of("the destination", rows.len(), k)?, dst.len())?;
        if dst.len() == 0 {
            return Ok(());
        }
        match &self.on {
            On::Cpu(launcher) => launcher.rows(matrix, rows, dst),
            On::Cuda(launcher) => launcher.rows(matrix, rows, dst),
        }
    }
}
