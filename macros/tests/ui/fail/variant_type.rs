//! A type that is only called like the one of the `abi` is found by the compiler.

use gristmill::variant;

pub struct MatmulArgs;

#[variant(op = matmul, format = nibble, isa = scalar)]
unsafe fn product(_args: &MatmulArgs) {}

fn main() {}
