//! The command: exit codes, output, JSON, and the pages that it writes.
#![cfg(feature = "cli")]

mod answers;
mod bench;
#[path = "../choice/mod.rs"]
#[allow(dead_code, reason = "no test here is left out whole")]
mod choice;
mod common;
mod compare;
mod docs;
mod doctor;
mod imatrix;
mod inputs;
#[cfg(target_os = "linux")]
#[path = "../../probe/tests/made/mod.rs"]
mod made;
mod models;
mod no_cuda;
#[cfg(feature = "ops")]
mod operations;
mod pages;
mod probe;
mod products;
#[cfg(target_os = "linux")]
mod release;
mod requirements;
mod specs;
mod tiled;
mod transforms;
mod tune;
mod types;
mod validate;
mod verify;
