//! The contract between generated code and the runtime: plain function pointers over raw buffers.
//!
//! Nothing here checks anything. The handles in [`crate::kernel`] check shapes once, own or borrow the
//! buffers, and are the only callers. Generated code implements it, and bodies written by hand that are marked with
//! `#[variant]`; a handle reaches them through an [`Entry`](crate::registry::Entry), which vouches for them.

use gristmill_spec::vocab::{CFault, DType};

/// Why a kernel stopped. Indices count from the start of the buffer that the kernel was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The input holds NaN or an infinity at this element.
    NonFinite(usize),
    /// A code that the format gives no meaning stands at this element.
    InvalidCode(usize),
    /// The scale of this block does not fit its storage type.
    ScaleOverflow(usize),
}

impl Fault {
    /// What a function in C returns: 0, or the index times four and a number of [`CFault`]. Anything else is no answer, and
    /// stops the call too.
    ///
    /// # Errors
    /// The fault.
    pub const fn from_c(word: u64) -> Result<(), Fault> {
        let index = (word >> 2) as usize;
        match word & 3 {
            0 if word == 0 => Ok(()),
            CFault::NON_FINITE => Err(Fault::NonFinite(index)),
            CFault::SCALE_OVERFLOW => Err(Fault::ScaleOverflow(index)),
            _ => Err(Fault::InvalidCode(index)),
        }
    }
}

macro_rules! structs {
    ($(
        $(#[doc = $doc:literal])* #[derive($($derived:ident),*)]
        $ty:ident { $($(#[doc = $about:literal])* $field:ident: $of:ty,)* }
    )*) => {
        $(
            $(#[doc = $doc])*
            #[derive($($derived),*)]
            #[repr(C)]
            pub struct $ty { $($(#[doc = $about])* pub $field: $of,)* }
        )*
    };
}
gristmill_spec::cpu_structs!(structs);

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident $alias:ident($($parameter:ident: $ty:ty),*) $(-> $output:ty)?;)*) => {
        $($(#[$doc])* pub type $alias = unsafe fn($($parameter: $ty),*) $(-> $output)?;)*
    };
}
gristmill_spec::cpu_abi!(functions);

/// Up to `PackInfo::rows` rows of blocks (each `row_stride` bytes after the last) to one panel.
///
/// `codes`: panel bytes, zeroed by the caller; `scales`, `mins`: as
/// [`PackInfo::scale_words`](crate::registry::PackInfo::scale_words) and
/// [`PackInfo::min_words`](crate::registry::PackInfo::min_words) say; rows beyond `rows` keep what the caller wrote, but for nibbles
/// in bytes of the rows packed. A fault's index is `row * k + element`.
pub type PackFn = unsafe fn(
    src: *const u8,
    row_stride: usize,
    rows: usize,
    k: usize,
    codes: *mut u8,
    scales: *mut f32,
    mins: *mut f32,
) -> Result<(), Fault>;

/// Row `row` of one panel back to `k` values.
pub type UnpackFn = unsafe fn(
    codes: *const u8,
    scales: *const f32,
    mins: *const f32,
    outer: f32,
    row: usize,
    k: usize,
    dst: *mut f32,
);

#[cfg(test)]
mod tests {
    use super::Fault;

    #[test]
    fn what_c_returns_is_read() {
        assert_eq!(Fault::from_c(0), Ok(()));
        assert_eq!(Fault::from_c(1), Err(Fault::NonFinite(0)));
        assert_eq!(Fault::from_c(7 << 2 | 2), Err(Fault::InvalidCode(7)));
        assert_eq!(Fault::from_c(9 << 2 | 3), Err(Fault::ScaleOverflow(9)));
        // No function that was written for the header returns this.
        assert_eq!(Fault::from_c(8), Err(Fault::InvalidCode(2)));
    }
}
