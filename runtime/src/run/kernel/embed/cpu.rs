//! Rows by index on the processor.

use crate::abi::EmbedFn;
use crate::decide::Candidate;
use crate::error::Error;
use crate::operands::output::Output;
use crate::registry::{Code, Registry};
use crate::request::Shape;
use crate::run::launch::{Launcher, whole_blocks};
use crate::threads::Threads;
use crate::weights::QuantizedMatrix;
use gristmill_spec::vocab::Op;

/// Code that gives rows as values of a type.
#[derive(Clone, Copy, Debug)]
pub(super) struct EmbedCode(EmbedFn);

impl Launcher<EmbedCode> {
    pub(super) fn cpu(registry: &'static Registry, candidate: Candidate) -> Result<Self, Error> {
        Launcher::new(registry, candidate, Op::Embed, |code| match code {
            Code::Embed(run) => Some(EmbedCode(run)),
            _ => None,
        })
    }

    /// Rows of a matrix by index, as one launch, divided among `threads`; the caller found that each index is of a row and that
    /// `dst` holds their values.
    pub(super) fn rows(
        &self,
        matrix: &QuantizedMatrix<'_>,
        rows: &[u32],
        dst: Output<'_>,
        threads: &Threads,
    ) -> Result<(), Error> {
        let (format, to, k) = (matrix.format(), dst.dtype(), matrix.k());
        let bytes_in = rows.len().saturating_mul(matrix.row_bytes());
        let dst = dst.into_bytes();
        self.launch(Shape { m: rows.len(), n: matrix.n(), k }, [bytes_in, dst.len()], || {
            let row_bytes = dst.len() / rows.len().max(1);
            threads.converted_rows(dst, row_bytes, k, |i, values| {
                // There is one for each row of `dst`.
                let Some(&row) = rows.get(i) else { return Ok(()) };
                let row = row as usize;
                let (blocks, outer) = (matrix.blocks(row), matrix.outer_scale(row)?);
                let count = whole_blocks(format, blocks.len(), k)?;
                // SAFETY: `admit` checked the processor; `blocks` holds `count` blocks, and `values` is aligned and has room
                // for their k values: it is a row of a slice of that type, which the caller measured.
                unsafe { (self.code().0)(blocks.as_ptr(), values.as_mut_ptr(), count, outer, to) }
                    .map_err(|fault| fault.in_rows(format, row, k))
            })
        })
    }
}
