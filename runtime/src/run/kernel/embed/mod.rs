//! The handle for rows by index: what turns token numbers into their vectors.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
mod cuda {
    use crate::error::Error;
    use crate::operands::output::Output;
    use crate::run::launch::Launcher;
    use crate::weights::QuantizedMatrix;

    crate::cuda::absent!(EmbedCode);

    impl Launcher<EmbedCode> {
        pub(super) fn rows(&self, _: &QuantizedMatrix<'_>, _: &[u32], _: Output<'_>) -> Result<(), Error> {
            match *self.code() {}
        }
    }
}

use super::{check_format, check_shape};
use crate::decide::Decision;
use crate::error::Error;
use crate::operands::output::Output;
use crate::operands::sizes::{check_len, product_of};
use crate::receipt::Recording;
use crate::registry::{Entry, FormatInfo};
use crate::request::{Request, Shape};
use crate::run::launch::{Launcher, On};
use crate::threads::Threads;
use crate::weights::QuantizedMatrix;
use gristmill_spec::vocab::Op;

/// Rows of a quantized matrix by index.
#[derive(Clone, Debug)]
pub struct Embedder {
    on: On<cpu::EmbedCode, cuda::EmbedCode>,
    format: &'static FormatInfo,
}

impl<'a> Request<'a> {
    /// Rows of blocks by index to f32 ([`with_input`](Request::with_input): f16 or bf16) on the processor; `n` and `k` are
    /// those of the matrix.
    pub const fn embed(format: &'a str, n: usize, k: usize) -> Request<'a> {
        Request::of(Op::Embed, format, None, Shape::matrix(n, k))
    }
}

impl Embedder {
    /// The handle for what `decision` chose.
    ///
    /// # Errors
    /// Why nothing was chosen; [`Error::WrongOp`]; [`Error::CannotRunHere`] if it was chosen for another
    /// processor.
    pub fn new(decision: &Decision<'_>) -> Result<Embedder, Error> {
        let registry = decision.prepared().registry();
        let place = decision.prepared().place();
        let (cpu, gpu) = (Launcher::<cpu::EmbedCode>::cpu, Launcher::<cuda::EmbedCode>::cuda);
        let on = On::of(registry, decision.candidate()?, place, cpu, gpu)?;
        let format = &registry.formats[on.entry().format];
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
    /// `dst` holds `rows.len() * k` values. Every index is compared before anything is written. One thread.
    ///
    /// # Errors
    /// [`Error::RowIndexOutOfRange`] with the first such index and its position; [`Error::WrongFormat`],
    /// [`Error::ShapeMismatch`], [`Error::ShapeRule`]; [`Error::InvalidCode`] with the row of the matrix.
    pub fn run(&self, matrix: &QuantizedMatrix<'_>, rows: &[u32], dst: Output<'_>) -> Result<(), Error> {
        self.run_on(matrix, rows, dst, &Threads::single())
    }

    /// The same, divided among `threads`: the same values and the same error for any number of them. On a GPU they are not used.
    ///
    /// # Errors
    /// As for [`Embedder::run`].
    pub fn run_on(
        &self,
        matrix: &QuantizedMatrix<'_>,
        rows: &[u32],
        dst: Output<'_>,
        threads: &Threads,
    ) -> Result<(), Error> {
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
            On::Cpu(launcher) => launcher.rows(matrix, rows, dst, threads),
            On::Cuda(launcher) => launcher.rows(matrix, rows, dst),
        }
    }
}
