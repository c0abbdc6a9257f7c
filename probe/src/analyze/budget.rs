//! A bound of the work that a file can ask for.
//!
//! Tables point at names. Nothing keeps a damaged or hostile file from having a hundred thousand entries that all point
//! at one name of megabytes, or lists that lead through the same bytes again and again. A linker's files hold each
//! name once or nearly so; so what is read in all is bounded by a multiple of the file's size, and a file that wants
//! more is refused.

use super::at::At;
use crate::error::Error;
use std::cell::Cell;

/// How many times the bytes of a file may be read as names and entries.
const TIMES: u64 = 8;
/// What every file may have besides: tables of small files are mostly headers.
const BASE: u64 = 1 << 16;
/// What an entry costs besides its name: no table has smaller ones, but for a few bytes.
const ENTRY: u64 = 8;

/// What may still be read.
#[derive(Debug)]
pub(super) struct Budget {
    left: Cell<u64>,
}

impl Budget {
    /// For this many bytes.
    pub(super) fn of(bytes: usize) -> Budget {
        Budget { left: Cell::new((bytes as u64).saturating_mul(TIMES).saturating_add(BASE)) }
    }

    /// Takes an entry and its name off.
    ///
    /// # Errors
    /// [`Error::Malformed`] if nothing is left.
    pub(super) fn take(&self, at: &At<'_>, name: usize) -> Result<(), Error> {
        match self.left.get().checked_sub((name as u64).saturating_add(ENTRY)) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err(at.malformed("its tables point at the same bytes over and over")),
        }
    }
}
