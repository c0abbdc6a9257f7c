//! A reading position in a file's bytes: every read is checked, and says what it was for.

use super::error::{GgufError, Problem};
use std::path::PathBuf;

/// Position in `bytes`, of which the first lies at byte `base` of the file, and which may be only the beginning of what there
/// is up to byte `end`.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    base: u64,
    end: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], base: u64) -> Cursor<'a> {
        Cursor { bytes, at: 0, base, end: base.saturating_add(bytes.len() as u64) }
    }

    /// Over the first bytes of a file of `length` bytes. Where more of them are needed than there are, the error is one that
    /// [`GgufError::needs`] knows.
    pub(super) fn of_head(bytes: &'a [u8], length: u64) -> Cursor<'a> {
        Cursor { bytes, at: 0, base: 0, end: length }
    }

    /// Offset in the file.
    pub(super) fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Bytes behind the position, whether they are here or still to be read.
    pub(super) fn left(&self) -> u64 {
        self.end.saturating_sub(self.offset())
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let rest = self.rest();
        match usize::try_from(len).ok().and_then(|len| rest.get(..len)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => {
                let left = self.left();
                Err(GgufError::at(self.offset(), Problem::Truncated { what, needed: len, left }))
            }
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, GgufError> {
        self.array(what).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, GgufError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string: u64 length, then UTF-8 without a terminator.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a str, GgufError> {
        let start = self.offset();
        let length = self.u64(what)?;
        let left = self.left();
        if length > left {
            return Err(GgufError::at(start, Problem::StringLength { what, length, left }));
        }
        let text = self.offset();
        std::str::from_utf8(self.take(length, what)?)
            .map_err(|e| GgufError::at(text + e.valid_up_to() as u64, Problem::Utf8 { what }))
    }

    /// There is no memory for what stands in the bytes.
    pub(super) fn no_memory(&self) -> GgufError {
        GgufError::Memory { path: PathBuf::new(), bytes: self.bytes.len() as u64 }
    }

    /// A text of the bytes for longer than they stay.
    pub(super) fn own(&self, text: &str) -> Result<Box<str>, GgufError> {
        let mut own = String::new();
        own.try_reserve_exact(text.len()).map_err(|_| self.no_memory())?;
        own.push_str(text);
        Ok(own.into_boxed_str())
    }

    /// Refuses a `count` of items, each of at least `least` bytes, that the rest cannot hold.
    pub(super) fn check_count(
        &self,
        at: u64,
        count: u64,
        least: u64,
        what: &'static str,
    ) -> Result<(), GgufError> {
        let left = self.left();
        let most = left / least;
        if count > most {
            return Err(GgufError::at(at, Problem::Count { what, count, left, most }));
        }
        Ok(())
    }
}
