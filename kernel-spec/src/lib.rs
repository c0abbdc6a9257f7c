//! The spec language of gristmill.
//!
//! [`vocab`] holds the words (ops, data types, ISAs, CPU features) and nothing else; it is `no_std`.
//! With the feature `parse` (default) the package also reads TOML specs ([`read`]), checks them, and
//! hands out a [`model::SpecSet`] in which nothing is left to look up.
#![cfg_attr(not(feature = "parse"), no_std)]

pub mod vocab;

#[cfg(feature = "parse")]
pub mod model;
