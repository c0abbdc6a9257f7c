//! What ran, and how fast it could have: observers, receipts, statistics of launches, ceilings of the machine.

pub mod ceilings;
pub mod observe;
pub mod receipt;
pub mod stats;
