//! Types of floats as kernels know them.

/// The word of each type that a kernel takes or gives.
pub(crate) const F32: u32 = 0;
pub(crate) const F16: u32 = 1;
pub(crate) const BF16: u32 = 2;

/// FP4 in stages of codes and scales, which are counted in bytes.
pub(crate) const FP4: u32 = 3;

/// Bytes of a value of a type.
pub(crate) fn width(word: u32) -> usize {
    match word {
        F32 => 4,
        FP4 => 1,
        _ => 2,
    }
}
