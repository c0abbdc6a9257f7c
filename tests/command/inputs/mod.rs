//! What a user gives the command: files that must not be lost, numbers that are too large, names and scales that are not to be
//! trusted.
#![cfg(feature = "bitnet")]

mod files;
mod sizes;
mod untrusted;
