//! ISA primitives: the small vocabulary in which generated loops are written.
//!
//! One module an ISA, the same names in each. A vector `I` holds [`LANES`](avx2::LANES) i32 lanes (or
//! four bytes to each), a vector `F` as many f32. Three ways to multiply u8 by i8 and add the four
//! products of a lane:
//!
//! * `dot`: in one instruction, exact for all operands (only where the ISA has it);
//! * `pairs` and `widen`: pairs of products in i16 lanes, exact while the sums stay within i16;
//! * `wide`: operands widened to i16 first, exact for all operands.
//!
//! The functions are safe to call from code compiled for their features, except those that touch memory.

#![allow(
    clippy::missing_safety_doc,
    reason = "the lint takes safe functions with target features for unsafe ones; those that are unsafe say why"
)]

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
#[cfg(target_arch = "x86_64")]
pub mod avx512vnni;
#[cfg(target_arch = "x86_64")]
pub mod avxvnni;
#[cfg(target_arch = "x86_64")]
pub mod sse41;
