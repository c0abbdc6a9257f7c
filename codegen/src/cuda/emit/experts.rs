//! What experts need around their products: activations brought together by expert, and results on their way back.

use super::parameters::{define, enumerators};
use gristmill_spec::vocab::CudaAbi;

/// Name of the translation unit.
pub const EXPERTS: &str = "experts";
/// The kernel that sorts pairs of tokens and experts.
pub const ROUTE: &str = "route";
/// The kernel that brings rows of activations together.
pub const GATHER: &str = "gather";
/// The kernel that brings results to their places, or adds them up.
pub const COMBINE: &str = "combine";
/// Threads of a CUDA block of all three.
pub const THREADS: u32 = 256;

/// The text.
pub fn emit() -> String {
    [
        &*enumerators(&[("THREADS", THREADS)]),
        &define("ROUTE_PARAMETERS", &CudaAbi::ROUTE),
        &define("GATHER_PARAMETERS", &CudaAbi::GATHER),
        &define("COMBINE_PARAMETERS", &CudaAbi::COMBINE),
        include_str!("../../../cuda/experts.h"),
    ]
    .concat()
}
