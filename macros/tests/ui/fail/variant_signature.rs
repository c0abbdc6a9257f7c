//! Each difference from the op's signature is reported where it stands.

use gristmill::abi::{Fault, MatmulArgs};
use gristmill::variant;

#[variant(op = dequantize, format = nibble, isa = avx2)]
unsafe fn wrong_type(src: *mut u8, dst: *mut f32, blocks: u32, outer: f32) -> Result<(), Fault> {
    Ok(())
}

#[variant(op = dequantize, format = nibble, isa = avx2)]
unsafe fn too_few(src: *const u8, dst: *mut f32) -> Result<(), Fault> {
    Ok(())
}

#[variant(op = matmul, format = nibble, isa = avx2)]
fn safe(args: &MatmulArgs) {}

#[variant(op = matmul, format = nibble, isa = avx2)]
unsafe fn fallible(args: &MatmulArgs) -> Result<(), Fault> {
    Ok(())
}

#[variant(op = dequantize, format = nibble, isa = avx2)]
unsafe fn silent(src: *const u8, dst: *mut f32, blocks: usize, outer: f32) {}

#[variant(op = matmul, format = nibble, isa = avx2)]
unsafe extern "C" fn generic<T>(args: &MatmulArgs) {}

#[variant(op = matmul, format = nibble, isa = avx2)]
async unsafe fn method(&self) {}

fn main() {}
