//! The spec language of gristmill.
//!
//! [`vocab`] holds the words (ops, data types, ISAs, CPU features) and nothing else; it is `no_std`.
//! With the feature `parse` (default) the package also reads TOML specs ([`read_path`], [`shipped`]),
//! checks them ([`check()`]), and hands out a [`model::SpecSet`] in which nothing is left to look up.
//! What is wrong comes back as [`Diagnostic`]s, all of them at once, for [`render`] to show.
#![cfg_attr(
    feature = "parse",
    doc = r#"
```
use gristmill_spec::{SourceFile, check, render};

let text = "rows = 16\ntiles = []\n";
let sources = [SourceFile { path: "packings/mine.toml".to_owned(), bytes: text.as_bytes().to_vec() }];
let report = check(&sources);
assert!(report.set.is_none());
let text = render(&sources, &report.diagnostics, false);
assert!(text.contains("did you mean `tile`?"));
assert!(text.ends_with("found 2 errors and 1 warning\n"));
```
"#
)]
#![cfg_attr(not(feature = "parse"), no_std)]

mod fnv;
pub mod vocab;

pub use fnv::Fnv;

#[cfg(feature = "parse")]
mod check;
#[cfg(feature = "parse")]
mod comments;
#[cfg(feature = "parse")]
mod diagnostic;
#[cfg(feature = "parse")]
pub mod model;
#[cfg(feature = "parse")]
mod nearest;
#[cfg(feature = "parse")]
mod parse;
#[cfg(feature = "parse")]
mod read;
#[cfg(feature = "parse")]
mod toml_walk;

#[cfg(feature = "parse")]
pub use check::{Report, check};
#[cfg(feature = "parse")]
pub use diagnostic::{CODES, Diagnostic, Label, Severity, line_column, render};
#[cfg(feature = "parse")]
pub use nearest::nearest;
#[cfg(feature = "parse")]
pub use read::{
    FOLDERS, MAX_FILE_BYTES, ReadError, SHIPPED_PREFIX, SourceFile, is_shipped, read_path, shipped,
    shipped_dir,
};
