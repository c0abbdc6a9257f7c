//! Where kernels write floats of a type that the caller chooses.

use gristmill_spec::vocab::DType;

/// Where an [`Embedder`](crate::Embedder) or a [`Product`](crate::Product) writes: rows of values of one of three types.
#[derive(Debug)]
pub enum Output<'a> {
    /// binary32, as kernels compute them.
    F32(&'a mut [f32]),
    /// The same rounded to binary16, ties to even; what is too large becomes an infinity.
    F16(&'a mut [half::f16]),
    /// The same rounded to bfloat16, ties to even.
    Bf16(&'a mut [half::bf16]),
}

impl Output<'_> {
    /// The type.
    pub fn dtype(&self) -> DType {
        match self {
            Output::F32(_) => DType::F32,
            Output::F16(_) => DType::F16,
            Output::Bf16(_) => DType::Bf16,
        }
    }

    /// How many values.
    pub(crate) fn len(&self) -> usize {
        match self {
            Output::F32(y) => y.len(),
            Output::F16(y) => y.len(),
            Output::Bf16(y) => y.len(),
        }
    }
}

impl<'a> Output<'a> {
    /// The same memory as bytes, aligned as its values are.
    pub(crate) fn into_bytes(self) -> &'a mut [u8] {
        let (pointer, bytes) = match self {
            Output::F32(y) => (y.as_mut_ptr().cast::<u8>(), size_of_val(y)),
            Output::F16(y) => (y.as_mut_ptr().cast::<u8>(), size_of_val(y)),
            Output::Bf16(y) => (y.as_mut_ptr().cast::<u8>(), size_of_val(y)),
        };
        // SAFETY: the bytes of a slice that was given away; every pattern of bytes is a value of these types.
        unsafe { std::slice::from_raw_parts_mut(pointer, bytes) }
    }
}
