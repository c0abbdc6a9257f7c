//! More tokens than a device has memory for: halves of them one behind the other, with the same results.

use crate::error::Error;
use std::time::Instant;

/// Operands in the processor's memory, with the place of their results.
pub(crate) trait Halves: Sized {
    fn tokens(&self) -> usize;

    /// Those of the first half of the tokens and of the others, and what lies in front of the others.
    fn halves(self) -> ([Self; 2], InFront);
}

/// What lies in front of some tokens.
#[derive(Clone, Copy)]
pub(crate) struct InFront {
    pub(crate) tokens: usize,
    /// Rows of activations.
    pub(crate) rows: usize,
}

/// Runs `all`. Where the device has no memory for all tokens, halves of them follow one another, down to single ones, each after `give_back`: what
/// there is for so many tokens stands in the way of fewer, and so does what pools keep. If it came to that: why, and since when.
pub(crate) fn in_halves<T: Halves, C>(
    mut all: T,
    context: &mut C,
    run: &impl Fn(&mut T, &mut C) -> Result<(), Error>,
    give_back: &impl Fn(&mut C) -> Result<(), Error>,
) -> Result<Option<(Error, Instant)>, Error> {
    let why = match run(&mut all, context) {
        Err(why @ Error::OutOfDeviceMemory { .. }) if all.tokens() >= 2 => why,
        done => return done.map(|()| None),
    };
    let started = Instant::now();
    give_back(context)?;
    let ([first, others], front) = all.halves();
    in_halves(first, context, run, give_back)?;
    in_halves(others, context, run, give_back).map_err(|error| front.of_all(error))?;
    Ok(Some((why, started)))
}

impl InFront {
    /// An error of the tokens behind, as one of all.
    fn of_all(self, error: Error) -> Error {
        match error {
            Error::NoSuchExpert { token, position, expert, experts } => {
                Error::NoSuchExpert { token: self.tokens + token, position, expert, experts }
            }
            Error::DuplicateExpert { token, position, expert } => {
                Error::DuplicateExpert { token: self.tokens + token, position, expert }
            }
            other => behind(other, self.rows),
        }
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
