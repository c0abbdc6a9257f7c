//! The parameters of products, as kernels read them.

use cudarc::driver::DeviceRepr;

/// The parameter of a product: `docs/cuda.md`, in its order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Parameters<X> {
    pub(super) codes: u64,
    pub(super) stride: u64,
    pub(super) scales: u64,
    pub(super) mins: u64,
    pub(super) min: i32,
    pub(super) k: u32,
    pub(super) table: u64,
    pub(super) outer: u64,
    pub(super) units: u32,
    pub(super) x_blocks: u32,
    pub(super) x: X,
    pub(super) bias: u64,
    pub(super) y: u64,
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) parts: u64,
}

/// Activations that `quantize_activations` made.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Quantized {
    pub(super) x: u64,
    pub(super) stride: u64,
    pub(super) scales: u64,
    pub(super) sums: u64,
}

/// Activations as they are.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Raw {
    pub(super) x: u64,
    pub(super) first: u64,
    pub(super) fault: u64,
    pub(super) word: u32,
    pub(super) sides: u32,
}

// SAFETY: numbers of fixed width in the order and with the alignment of the kernel's struct, without padding.
unsafe impl<X: DeviceRepr> DeviceRepr for Parameters<X> {}

// SAFETY: as above.
unsafe impl DeviceRepr for Quantized {}

// SAFETY: as above.
unsafe impl DeviceRepr for Raw {}

/// The parameter of a product over rows: `docs/cuda.md`, in its order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RowsParameters {
    pub(super) blocks: u64,
    pub(super) row_bytes: u64,
    pub(super) outer: u64,
    pub(super) x: u64,
    pub(super) x_stride: u64,
    pub(super) x_first: u64,
    pub(super) bias: u64,
    pub(super) y: u64,
    pub(super) fault: u64,
    pub(super) x_type: u32,
    pub(super) k: u32,
    pub(super) m: u32,
    pub(super) n: u32,
}
