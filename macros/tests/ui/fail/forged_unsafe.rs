//! What makes a registry, a kernel or a handle from facts has no place in a crate that forbids unsafe code.
#![forbid(unsafe_code)]

use gristmill::abi::Fault;
use gristmill::registry::{Registry, RegistryFacts};
use gristmill::variant;

fn registry(facts: RegistryFacts) -> Registry {
    unsafe { Registry::new(facts) }
}

#[variant(op = dequantize, format = nibble, isa = scalar)]
unsafe fn by_hand(_: *const u8, _: *mut f32, _: usize, _: f32) -> Result<(), Fault> {
    Ok(())
}

fn main() {}
