//! Formats invented for tests, each with a shape that no shipped format has, compiled into one [`REGISTRY`].

gristmill::include_kernels!();
