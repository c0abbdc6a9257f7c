//! Words are checked against the vocabulary.

use gristmill::abi::MatmulArgs;
use gristmill::variant;

#[variant(op = matmull, format = nibble, isa = avx2)]
unsafe fn op(args: &MatmulArgs) {}

#[variant(op = matmul, format = nibble, isa = sse4)]
unsafe fn isa(args: &MatmulArgs) {}

#[variant(op = matmul, format = nibble, isa = avx2, requires = [avx512vnmi])]
unsafe fn feature(args: &MatmulArgs) {}

#[variant(op = matmul, format = nibble, isa = scalar, requires = [avx2])]
unsafe fn arch(args: &MatmulArgs) {}

#[variant(op = matmul, isa = scalar)]
unsafe fn missing(args: &MatmulArgs) {}

#[variant(op = matmul, format = Nibble, isa = scalar)]
unsafe fn name(args: &MatmulArgs) {}

#[variant(op = matmul, formt = nibble, isa = scalar)]
unsafe fn key(args: &MatmulArgs) {}

#[variant(op = matmul, op = quantize, format = nibble, isa = scalar)]
unsafe fn twice(args: &MatmulArgs) {}

#[variant(op = matmul, format = nibble, quantizer = absmax, isa = scalar)]
unsafe fn quantizer(args: &MatmulArgs) {}

#[variant(op = quantize, format = nibble, isa = scalar)]
unsafe fn no_quantizer(args: &MatmulArgs) {}

#[variant]
unsafe fn nothing(args: &MatmulArgs) {}

fn main() {}
