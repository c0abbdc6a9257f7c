//! Products of more tokens than a device has memory for: in parts of the tokens, with the same results.

use super::activations::ActivationCode;
use super::halves::{Halves, InFront, in_halves};
use super::product::ProductCode;
use super::scratch::Scratch;
use crate::activations::Tokens;
use crate::error::Error;
use crate::recovery::{Recovery, RecoveryStep};
use crate::registry::FormatInfo;
use crate::run::launch::Launcher;
use crate::weights::PackedMatrix;
use std::time::Instant;

/// What a product reads, and where its results go.
struct Operands<'r> {
    x: Tokens<'r>,
    y: &'r mut [f32],
}

impl Halves for Operands<'_> {
    fn tokens(&self) -> usize {
        self.x.m
    }

    fn halves(self) -> ([Self; 2], InFront) {
        let Operands { x, y } = self;
        let first = x.m / 2;
        let (input, input_behind) = x.input.split_at(first, x.m);
        let (y, y_behind) = y.split_at_mut(y.len() / x.m * first);
        let others = Tokens { input: input_behind, m: x.m - first, ..x };
        let halves =
            [Operands { x: Tokens { input, m: first, ..x }, y }, Operands { x: others, y: y_behind }];
        (halves, InFront { tokens: first, rows: first })
    }
}

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
        let run = |part: &mut Operands<'_>, scratch: &mut Option<Box<Scratch>>| {
            self.run_at_once(packed, part.x, part.y, quantizer, scratch)
        };
        let give_back = |scratch: &mut Option<Box<Scratch>>| {
            scratch.get_or_insert_default().on(self.gpu()).give_back();
            self.gpu().trim_memory(0)
        };
        if let Some((why, started)) = in_halves(Operands { x, y }, scratch, &run, &give_back)?
            && !scratch.get_or_insert_default().goes_in_parts(&why)
        {
            self.went_in_parts(packed.layout.format, &why, started);
        }
        Ok(())
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
