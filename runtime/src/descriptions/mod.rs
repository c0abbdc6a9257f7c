//! What there is and what is asked, as plain data: devices, the kernels of a build, requests. Nothing here chooses or runs.

pub mod abi;
pub mod device;
pub(crate) mod disagreement;
pub mod gpu;
pub(crate) mod names;
pub mod occupancy;
pub mod registry;
pub mod request;
