//! What kernels take, made from the table of calls: `docs/cuda.md`.

use cudarc::driver::DeviceRepr;
use gristmill_spec::vocab::CudaAbi;

/// Kernels with several parameters: a struct for each, whose fields become arguments in the kernel's order.
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident $ty:ident $kernel:literal { $($field:ident: $width:ty = $declaration:literal,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $ty {
            $(pub(crate) $field: $width,)*
        }

        impl $ty {
            pub(crate) fn arguments(&self) -> Vec<Argument> {
                vec![$(Argument::from(self.$field)),*]
            }
        }

        const _: () = assert!(
            CudaAbi::$name.agrees(&[$(std::mem::offset_of!($ty, $field)),*], 0, size_of::<$ty>()),
            "widths of declarations and of numbers differ"
        );
    )*};
}

/// Structs that are a parameter, or a part of one.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident $ty:ident$(<$x:ident>)? { $($field:ident: $width:ty = $declaration:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub(crate) struct $ty$(<$x>)? {
            $(pub(super) $field: $width,)*
        }

        impl$(<$x>)? $ty$(<$x>)? {
            /// Whether it lies in memory as CUDA C++ has it; `inner` are the bytes of the struct in it.
            const fn agrees(inner: usize) -> bool {
                CudaAbi::$name.agrees(&[$(std::mem::offset_of!(Self, $field)),*], inner, size_of::<Self>())
            }
        }

        // SAFETY: numbers of fixed width in the order and with the alignment of the kernel's struct, without padding.
        unsafe impl$(<$x: DeviceRepr>)? DeviceRepr for $ty$(<$x>)? {}
    )*};
}
gristmill_spec::cuda_abi!(kernels, structs);

const _: () = assert!(
    Quantized::agrees(0)
        && Raw::agrees(0)
        && Groups::agrees(0)
        && RowsParameters::agrees(0)
        && Parameters::<Quantized>::agrees(size_of::<Quantized>())
        && Parameters::<Raw>::agrees(size_of::<Raw>()),
    "a parameter lies in memory otherwise than kernels read it"
);

/// A parameter of a kernel.
pub(crate) enum Argument {
    U32(u32),
    F32(f32),
    /// A size, or an address of the device.
    U64(u64),
    Product(Parameters<Quantized>),
    Groups(Groups),
    Fused(Parameters<Raw>),
    Rows(RowsParameters),
}

impl From<u32> for Argument {
    fn from(value: u32) -> Argument {
        Argument::U32(value)
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Argument {
        Argument::F32(value)
    }
}

impl From<u64> for Argument {
    fn from(value: u64) -> Argument {
        Argument::U64(value)
    }
}
