//! Products of more tokens than a device has memory for: in parts of the tokens, with the same results.

use super::activations::ActivationCode;
use super::product::ProductCode;
use super::scratch::Scratch;
use crate::activations::Tokens;
use crate::error::Error;
use crate::launch::Launcher;
use crate::recovery::{Recovery, RecoveryStep};
use crate::registry::FormatInfo;
use crate::weights::PackedMatrix;
use std::time::Instant;

impl Launcher<ProductCode> {
    /// The product of rows in the processor's memory with `n > 0` rows of `k > 0`, into it. Where the device has no memory
    /// for all of them, halves of them follow one another, down to single rows.
    pub(crate) fn run(
        &self,
        packed: &PackedMatrix,
        x: Tokens<'_>,
        y: &mut [f32],
        quantizer: Option<&Launcher<ActivationCode>>,
        scratch: &mut Option<Box<Scratch>>,
    ) -> Result<(), Error> {
        let why = match self.run_at_once(packed, x, y, quantizer, scratch) {
            Err(why @ Error::OutOfDeviceMemory { .. }) if x.m >= 2 => why,
            done => return done,
        };
        let started = Instant::now();
        let told = scratch.get_or_insert_default().goes_in_parts(&why);
        self.run_in_parts(packed, x, y, quantizer, scratch)?;
        if !told {
            self.went_in_parts(packed.layout.format, &why, started);
        }
        Ok(())
    }

    /// The product of rows that are too many at once.
    fn run_in_parts(
        &self,
        packed: &PackedMatrix,
        x: Tokens<'_>,
        y: &mut [f32],
        quantizer: Option<&Launcher<ActivationCode>>,
        scratch: &mut Option<Box<Scratch>>,
    ) -> Result<(), Error> {
        // What there is for so many rows stands in the way of fewer, and so does what the pool keeps.
        scratch.get_or_insert_default().on(self.gpu()).give_back();
        self.gpu().trim_memory(0)?;
        let first = x.m / 2;
        let (input, input_behind) = x.input.split_at(first, x.m);
        let (y, y_behind) = y.split_at_mut(first * packed.n);
        let mut half = |x: Tokens<'_>, y: &mut [f32]| match self.run_at_once(packed, x, y, quantizer, scratch)
        {
            Err(Error::OutOfDeviceMemory { .. }) if x.m >= 2 => {
                self.run_in_parts(packed, x, y, quantizer, scratch)
            }
            done => done,
        };
        half(Tokens { input, m: first, ..x }, y)?;
        let others = Tokens { input: input_behind, m: x.m - first, ..x };
        half(others, y_behind).map_err(|error| behind(error, first))
    }

    /// Tells of parts that followed one another, as a step of this run.
    pub(crate) fn went_in_parts(&self, format: &FormatInfo, why: &Error, started: Instant) {
        let (op, name, id) = (self.entry.op, self.entry.name, self.entry.id);
        self.recovered(Recovery {
            step: RecoveryStep::InParts,
            op,
            format: format.name.to_owned(),
            kernel: name,
            id,
            reason: why.to_string(),
            then: Some(name),
            attempt: 1,
            success: true,
            time: started.elapsed(),
        });
    }
}

/// An error of the rows behind the first `rows`, as one of all.
pub(crate) fn behind(error: Error, rows: usize) -> Error {
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
