//! What is no function, and a function that names its features itself.

use gristmill::abi::MatmulArgs;
use gristmill::variant;

#[variant(op = matmul, format = nibble, isa = avx2)]
struct Kernel;

#[variant(op = matmul, format = nibble, isa = avx2)]
#[target_feature(enable = "avx2")]
unsafe fn product(args: &MatmulArgs) {}

fn main() {}
