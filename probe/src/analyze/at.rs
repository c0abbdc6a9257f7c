//! Which file, and which member of an archive, an error is about.

use crate::error::Error;
use std::path::Path;

/// Context of errors.
pub(super) struct At<'a> {
    pub(super) path: &'a Path,
    /// The member of an archive, if in one.
    pub(super) member: Option<String>,
}

impl At<'_> {
    pub(super) fn malformed(&self, what: impl std::fmt::Display) -> Error {
        let what = match &self.member {
            Some(member) => format!("member `{member}`: {what}"),
            None => what.to_string(),
        };
        Error::Malformed { path: self.path.to_owned(), what }
    }
}
