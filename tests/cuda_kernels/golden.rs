//! The golden vectors, which nobody here made, through the generated kernels.
