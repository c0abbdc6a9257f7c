//! Bodies in C and C++: the header that they are given, the units that are compiled of them, and their compiler.

mod compile;
mod header;
mod unit;

pub use compile::{Built, Target, build};
pub use header::header;
pub use unit::{Unit, units};
pub(crate) use unit::{foreign, symbol};
