//! Buffers that start on a cache line. Allocation can fail with an error and never aborts.

use crate::error::Error;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Bytes of a cache line, and of the widest vector that a kernel loads.
pub(crate) const LINE: usize = 64;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// A number for which every bit pattern is a value.
///
/// # Safety
/// The type has no padding, no invalid bit patterns, and an alignment that divides 64.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: a primitive number without invalid bit patterns.
unsafe impl Plain for u8 {}
// SAFETY: a primitive number without invalid bit patterns.
unsafe impl Plain for i8 {}
// SAFETY: a primitive number without invalid bit patterns.
unsafe impl Plain for i32 {}
// SAFETY: a primitive number without invalid bit patterns.
unsafe impl Plain for f32 {}

/// `len` values of `T`, zero at first, starting at a multiple of 64 bytes.
pub(crate) struct Aligned<T: Plain> {
    lines: Vec<Line>,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: Plain> Aligned<T> {
    pub(crate) const fn empty() -> Aligned<T> {
        Aligned { lines: Vec::new(), len: 0, kind: PhantomData }
    }

    pub(crate) fn zeroed(len: usize) -> Result<Aligned<T>, Error> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Error::TooLarge { what: "a buffer" })?;
        let mut lines = Vec::new();
        let count = bytes.div_ceil(LINE);
        lines.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { required: bytes })?;
        lines.resize(count, Line([0; LINE]));
        Ok(Aligned { lines, len, kind: PhantomData })
    }

    /// The same values in memory of their own.
    pub(crate) fn try_clone(&self) -> Result<Aligned<T>, Error> {
        let mut lines = Vec::new();
        lines
            .try_reserve_exact(self.lines.len())
            .map_err(|_| Error::OutOfMemory { required: self.bytes() })?;
        lines.extend_from_slice(&self.lines);
        Ok(Aligned { lines, len: self.len, kind: PhantomData })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T: Plain> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `lines` holds at least `len * size_of::<T>()` initialized bytes (`zeroed`), starts at
        // a multiple of 64, and every bit pattern is a value of a `Plain` type.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl<T: Plain> std::fmt::Debug for Aligned<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aligned({} bytes)", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_on_a_line_and_is_zero() -> Result<(), Error> {
        for len in [0, 1, 15, 16, 17, 1000] {
            let buffer = Aligned::<f32>::zeroed(len)?;
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % LINE, 0);
            assert!(buffer.iter().all(|v| v.to_bits() == 0));
        }
        Ok(())
    }

    #[test]
    fn a_copy_is_equal_and_apart() -> Result<(), Error> {
        let mut buffer = Aligned::<i32>::zeroed(17)?;
        buffer[16] = 7;
        let copy = buffer.try_clone()?;
        buffer[0] = 1;
        assert_eq!((copy.len(), copy[0], copy[16]), (17, 0, 7));
        assert_eq!(copy.as_ptr() as usize % LINE, 0);
        Ok(())
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(matches!(Aligned::<f32>::zeroed(usize::MAX), Err(Error::TooLarge { .. })));
        assert!(matches!(Aligned::<u8>::zeroed(usize::MAX - 64), Err(Error::OutOfMemory { .. })));
    }
}
