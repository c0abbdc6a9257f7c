//! The kernel `convert`: rows of f32, f16 or bf16 to another of these types, bit by bit as a processor converts them.

use super::parameters::{BEYOND, define, enumerators};
use gristmill_spec::vocab::CudaAbi;

/// Name of the unit and of its kernel.
pub const CONVERT: &str = "convert";
/// Threads of a CUDA block.
pub const THREADS: u32 = 256;
/// Elements of a thread.
pub const PER_THREAD: u32 = 8;

/// The unit's text.
pub fn emit() -> String {
    let numbers = [("THREADS", THREADS), ("PER_THREAD", PER_THREAD), ("BEYOND", u32::from(BEYOND))];
    [
        &*enumerators(&numbers),
        &define("CONVERT_PARAMETERS", &CudaAbi::CONVERT),
        include_str!("../../../cuda/convert.h"),
    ]
    .concat()
}
