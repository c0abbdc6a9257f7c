//! Products of more tokens than a device has memory for: in parts of the tokens, with the same results.

use super::activations::ActivationCode;
use super::product::ProductCode;
use super::scratch::Scratch;
use crate::activations::{Input, RowLayout};
use crate::error::Error;
use crate::launch::Launcher;
use crate::weights::PackedMatrix;

impl Launcher<ProductCode> {
    /// The product of `m > 0` rows in the processor's memory with `n > 0` rows of `k > 0`, into it. Sizes were checked.
    /// Where the device has no memory for all of them, halves of them follow one another, down to single rows.
    #[expect(clippy::too_many_arguments, reason = "the operands of a product")]
    pub(crate) fn run(
        &self,
        packed: &PackedMatrix,
        input: Input<'_>,
        m: usize,
        layout: &RowLayout,
        block: Option<usize>,
        bias: Option<&[f32]>,
        y: &mut [f32],
        quantizer: Option<&Launcher<ActivationCode>>,
        scratch: &mut Option<Box<Scratch>>,
    ) -> Result<(), Error> {
        let done = self.run_at_once(packed, input, m, layout, block, bias, y, quantizer, scratch);
        if !matches!(done, Err(Error::OutOfDeviceMemory { .. })) || m < 2 {
            return done;
        }
        // What there is for so many rows stands in the way of fewer, and so does what the pool keeps.
        *scratch = None;
        self.gpu().trim_memory(0)?;
        let first = m / 2;
        let (x, x_behind) = input.split_at(first, m);
        let (y, y_behind) = y.split_at_mut(first * packed.n);
        self.run(packed, x, first, layout, block, bias, y, quantizer, scratch)?;
        self.run(packed, x_behind, m - first, layout, block, bias, y_behind, quantizer, scratch)
            .map_err(|error| behind(error, first))
    }
}

/// An error of the rows behind the first `rows`, as one of all.
fn behind(error: Error, rows: usize) -> Error {
    match error {
        Error::NonFinite { row, column } => Error::NonFinite { row: rows + row, column },
        Error::NonFiniteScale { row, block } => Error::NonFiniteScale { row: rows + row, block },
        Error::ScaleOverflow { row, block } => Error::ScaleOverflow { row: rows + row, block },
        Error::BeyondPrecision { what, row, column } => {
            Error::BeyondPrecision { what, row: rows + row, column }
        }
        other => other,
    }
}
