//! Types of floats as kernels know them.

/// The word of each type that a kernel takes or gives.
pub(super) const F32: u32 = 0;
pub(super) const F16: u32 = 1;
pub(super) const BF16: u32 = 2;

/// Bytes of a value of a type.
pub(super) fn width(word: u32) -> usize {
    if word == F32 { 4 } else { 2 }
}
