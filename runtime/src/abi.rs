//! The contract between generated code and the runtime: plain function pointers over raw buffers.
//!
//! Nothing here checks anything. The handles in [`crate::kernel`] check shapes once, own or borrow the
//! buffers, and are the only callers. Generated code implements it, and bodies written by hand that are marked with
//! `#[variant]`; a handle reaches them through an [`Entry`](crate::registry::Entry), which vouches for them.

use gristmill_spec::vocab::DType;

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

/// The step of a quantizer whose scale covers more than a block.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Step {
    /// What an element is multiplied by (or divided by, as the format says) before rounding.
    pub apply: f32,
    /// What is stored.
    pub stored: f32,
}

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
/// [`PackInfo::min_words`](crate::registry::PackInfo::min_words) say; rows beyond `rows` keep what the caller wrote. A fault's
/// index is `row * k + element`.
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

/// Arguments of a [`MatmulFn`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MatmulArgs {
    /// Packed codes (panel after panel), or the blocks of each row, without its header, where the
    /// variant has no packing.
    pub codes: *const u8,
    /// Bytes from one panel (or row) to the next.
    pub stride: usize,
    /// Packed scales, panel after panel as [`PackInfo::scale_words`](crate::registry::PackInfo::scale_words) says: an address
    /// of words, which hold f32 or narrower numbers; null where the format has none in its blocks.
    pub scales: *const f32,
    /// Packed minimum terms, like `scales`; null where there are none.
    pub mins: *const f32,
    /// Integer value of operand 0: what a packed code counts as is its operand plus this.
    pub min: i32,
    /// Operand of each code where packed codes are looked up, else null; sixteen bytes.
    pub table: *const [u8; 16],
    /// One scale a row (row header or tensor tail; 1 where the format has neither).
    pub outer: *const f32,
    /// Inner dimension.
    pub k: usize,
    /// Units along k (1 where nothing divides the row).
    pub units: usize,
    /// int8 activations, `[token][units * unit_padded]`.
    pub x: *const i8,
    /// Bytes from one token's activations to the next.
    pub x_stride: usize,
    /// Bytes of activations that all rows go through before the next tokens do, so that they stay in the second cache while weights
    /// pass by. Changes no result; kernels of single tokens need not heed it.
    pub x_share: usize,
    /// Activation scales, `[token][blocks]`.
    pub x_scales: *const f32,
    /// Blocks of activations in a row.
    pub x_blocks: usize,
    /// Activation sums, `[token][units]`.
    pub x_sums: *const i32,
    /// Bias of `row_end` values, or null.
    pub bias: *const f32,
    /// Output, `[token][n]`, of which the rows to compute are written.
    pub y: *mut f32,
    /// Tokens.
    pub m: usize,
    /// The row stride of `y`, in values; at least `row_end`. (Rows of the weights may be more, and fewer.)
    pub n: usize,
    /// First row to compute, counted from the one that `codes` begins with; a multiple of the packing's rows.
    pub row_begin: usize,
    /// End of the rows to compute.
    pub row_end: usize,
}
