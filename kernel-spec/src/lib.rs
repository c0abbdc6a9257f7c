//! The spec language of gristmill.
//!
//! [`vocab`] holds the words (ops, data types, ISAs, CPU features) and nothing else; it is `no_std`.
//! With the feature `parse` (default) the package also reads TOML specs ([`read_path`], [`shipped`]),
//! checks them ([`check()`]), and hands out a [`model::SpecSet`] in which nothing is left to look up.
//! What is wrong comes back as [`Diagnostic`]s, all of them at once, for [`render`] to show.
#![cfg_attr(not(feature = "parse"), no_std)]

pub mod vocab;

#[cfg(feature = "parse")]
mod check;
#[cfg(feature = "parse")]
mod diagnostic;
#[cfg(feature = "parse")]
pub mod model;
#[cfg(feature = "parse")]
mod parse;
#[cfg(feature = "parse")]
mod read;
#[cfg(feature = "parse")]
mod toml_walk;

#[cfg(feature = "parse")]
pub use check::{Report, check};
#[cfg(feature = "parse")]
pub use diagnostic::{Diagnostic, Label, Severity, line_column, render};
#[cfg(feature = "parse")]
pub use read::{FOLDERS, MAX_FILE_BYTES, ReadError, SourceFile, read_path, shipped, shipped_dir};
