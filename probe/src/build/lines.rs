//! Lines for cargo.

use crate::error::Error;
use std::io::Write;
use std::path::Path;

/// Lines for cargo.
pub(crate) struct Lines<'a> {
    pub(super) out: &'a mut dyn Write,
}

impl Lines<'_> {
    pub(crate) fn say(&mut self, key: &str, value: impl std::fmt::Display) -> Result<(), Error> {
        let value = value.to_string();
        // What follows an end of line would be another instruction.
        if value.contains(['\n', '\r']) {
            return Err(Error::LineEnd { value });
        }
        writeln!(self.out, "cargo::{key}={value}").map_err(Error::file("write", Path::new("standard output")))
    }
}
