//! ISA primitives: the small vocabulary in which generated loops are written.
//!
//! One module an ISA, the same names in each. A vector `I` holds `LANES` i32 lanes (or four bytes to
//! each), a vector `F` as many f32. Four ways to multiply operands by activations and add the four
//! products of a lane:
//!
//! * `dot`: in one instruction, exact for all operands (only where the ISA has it); `dot_group` takes the
//!   activations of all lanes from one group of a vector (only on Arm);
//! * `matrix`: in one instruction, two rows by two tokens by eight k, exact for all operands (only on Arm with i8mm);
//!   `in_turn`, `halves` and `every_second` bring operands together for it and sums apart after it;
//! * `pairs` and `widen`: products in i16 lanes, exact while their sums stay within i16;
//! * `wide`: operands widened to i16 first, exact for all operands (only on x86, where `pairs` can't take
//!   operands above 127).
//!
//! Integers of runs are bytes beside the codes: `integers` loads one to a lane for `add_product`, `integer_pairs` two for
//! `add_products`, which takes sums of activations two by two. Where the rows of both halves of a panel share bytes, `unsigned_integers` and
//! `unsigned_pairs` load them, and `shift_by` brings the upper half down. `flagged` adds shifts that groups of weights have.
//!
//! Scales lie in packings as formats store them: `load_f16`, `load_bf16`, `load_e8m0_half` and `load_ue4m3_half` widen a vector
//! of them to f32, which is exact.
//!
//! Where codes lie in planes, `shift`, `shift_left`, `and` and `or` put them together; `nibbles` loads upper bits of which a
//! row has two bytes.
//!
//! A matrix unit multiplies sixteen rows by sixteen tokens by 64 k at once: [`amx`] has its loops, and what brings operands into the
//! form that they read. They are beside the vectors of AVX-512 rather than in place of them.
//!
//! Operands are unsigned bytes, except in `neon` and `neondot`, where they are signed: what doesn't fit goes
//! through `signed` there.
//!
//! The functions are safe to call from code compiled for their features, except those that touch memory.

#![allow(
    clippy::missing_safety_doc,
    reason = "the lint takes safe functions with target features for unsafe ones; those that are unsafe say why"
)]

#[cfg(target_arch = "x86_64")]
pub mod amx;
#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
#[cfg(target_arch = "x86_64")]
pub mod avx512vbmi;
#[cfg(target_arch = "x86_64")]
pub mod avx512vnni;
#[cfg(target_arch = "x86_64")]
pub mod avxvnni;
#[cfg(target_arch = "aarch64")]
pub mod neon;
#[cfg(all(test, target_arch = "aarch64"))]
mod neon_tests;
#[cfg(target_arch = "aarch64")]
pub mod neondot;
#[cfg(target_arch = "aarch64")]
pub mod neoni8mm;
#[cfg(target_arch = "x86_64")]
pub mod sse41;
#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod widening_tests;
