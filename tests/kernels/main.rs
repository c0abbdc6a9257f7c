//! Kernels, the oracle and importers: golden vectors, packings, products.

mod adaptive;
mod golden;
mod grouped;
mod hadamard;
mod import_layouts;
mod importance;
mod memory;
mod oracle;
mod packings;
mod products;
mod prologue;
mod quality;
#[path = "../../oracle/src/random.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod random;
mod rows4;
mod search;
mod stacked;
mod stored;
mod tables;
mod tl;
mod trits;
#[path = "../vectors/mod.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod vectors;
