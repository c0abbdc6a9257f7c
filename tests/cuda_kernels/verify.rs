//! What the command fills tensors with when it verifies.

#[path = "../../src/cli/verify/inputs.rs"]
#[allow(dead_code, reason = "the command uses the rest")]
pub mod inputs;

#[path = "../../src/cli/verify/scales.rs"]
#[allow(dead_code, reason = "the command uses the rest")]
pub mod scales;
