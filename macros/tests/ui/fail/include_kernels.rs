//! There is nothing to include.

gristmill::include_kernels!();
gristmill::include_kernels!(i2_s);

fn main() {}
