//! The files of the pool, with stand-ins for what loom has no threads for.

mod affinity;
#[path = "../../../src/parallel/division.rs"]
#[allow(dead_code, reason = "the model cuts no job into parts")]
mod division;
mod fork;
#[path = "../../../src/parallel/pool/mod.rs"]
#[allow(dead_code, reason = "the model starts no job that asks whether workers sleep")]
pub mod pool;
mod sync;
