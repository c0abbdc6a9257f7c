//! Literals of C++.

pub(super) use crate::print::cuda::float;
