//! What stands in front of units.

/// The vocabulary in front of every unit.
pub const DEVICE_HEADER: &str = include_str!("../../../cuda/device.h");

/// A part of it that is not the same for all architectures. A unit that uses none of these is compiled once for all of
/// them from 7.0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Copies to shared memory that are waited for later.
    Copies,
    /// Launches that overlap those in front of them.
    Overlap,
    /// Products of integers by tensor cores.
    Tensor,
    /// Halves, and their products by tensor cores.
    Halves,
    /// Products of FP4 by block-scaled tensor cores.
    Fp4,
}

impl Part {
    /// All of them: what is written by hand may use any.
    pub(in crate::cuda) const ALL: &[Part] =
        &[Part::Copies, Part::Overlap, Part::Tensor, Part::Halves, Part::Fp4];

    /// What the header asks for.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Copies => "GM_COPIES",
            Part::Overlap => "GM_OVERLAP",
            Part::Tensor => "GM_TENSOR",
            Part::Halves => "GM_HALVES",
            Part::Fp4 => "GM_FP4",
        }
    }
}

/// The header with some of its parts.
pub(super) fn header(parts: impl IntoIterator<Item = Part>) -> String {
    let defined: String = parts.into_iter().map(|part| format!("#define {}\n", part.name())).collect();
    format!("{defined}{DEVICE_HEADER}\n")
}

/// What stands behind it in units of `wgmma`.
pub(super) const HOPPER_HEADER: &str = include_str!("../../../cuda/hopper.h");
