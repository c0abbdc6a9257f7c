//! Weights as llama.cpp keeps them on a processor: in the first of its own buffer types that takes their format, which lays rows
//! out anew for its kernels (`CPU_REPACK`, `AMX`). Its loader chooses by the same questions.

use super::library::{Context, PACKAGE, sys};
use crate::error::Error;
use std::ffi::{CStr, c_void};

/// A buffer type beside the ordinary one.
#[derive(Clone, Copy)]
pub struct BufferType(sys::ggml_backend_buffer_type_t);

impl BufferType {
    /// The first that takes `n` rows of `k`, as the loader asks: whether the product is supported where the weights lie in an empty
    /// buffer of the type.
    pub fn of(id: sys::ggml_type, n: usize, k: usize) -> Result<Option<BufferType>, Error> {
        let context = Context::new(1)?;
        // SAFETY: the device and its registry live as long as the program; the function has the type that its name stands for,
        // and gives a list that ends with null. Tensors are of the context, and the buffer outlives the question about it.
        unsafe {
            let device = sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU);
            let registry = sys::ggml_backend_dev_backend_reg(device);
            let list = sys::ggml_backend_reg_get_proc_address(
                registry,
                c"ggml_backend_dev_get_extra_bufts".as_ptr(),
            );
            let list: sys::ggml_backend_dev_get_extra_bufts_t = std::mem::transmute(list);
            let Some(list) = list else { return Ok(None) };
            let mut next = list(device);
            while !(*next).is_null() {
                let product = context.product(id, [n, k], 1);
                let weights = (*product).src[0];
                let buffer = sys::ggml_backend_buft_alloc_buffer(*next, 0);
                (*weights).buffer = buffer;
                let takes = !buffer.is_null() && sys::ggml_backend_dev_supports_op(device, product);
                (*weights).buffer = std::ptr::null_mut();
                sys::ggml_backend_buffer_free(buffer);
                if takes {
                    return Ok(Some(BufferType(*next)));
                }
                next = next.add(1);
            }
        }
        Ok(None)
    }

    pub fn name(self) -> String {
        // SAFETY: the library gives a text that it keeps.
        let name = unsafe { CStr::from_ptr(sys::ggml_backend_buft_name(self.0)) };
        name.to_string_lossy().into_owned()
    }
}

/// A tensor of weights in such a buffer.
pub struct Repacked {
    _context: Context,
    tensor: *mut sys::ggml_tensor,
    buffer: sys::ggml_backend_buffer_t,
}

impl Repacked {
    /// Of rows as the file has them.
    pub fn new(
        kept: BufferType,
        id: sys::ggml_type,
        [n, k]: [usize; 2],
        rows: &[u8],
    ) -> Result<Repacked, Error> {
        let context = Context::new(1)?;
        // SAFETY: the tensor is of the context, which lives as long; the buffer is as large as its type asks for, and `rows` are as
        // many bytes as the tensor has, which is compared.
        unsafe {
            let tensor = sys::ggml_new_tensor_2d(context.0, id, k as i64, n as i64);
            if sys::ggml_nbytes(tensor) != rows.len() {
                return Err(Error::Peer(PACKAGE, "take the weights: they have another size"));
            }
            let bytes = sys::ggml_backend_buft_get_alloc_size(kept.0, tensor);
            let buffer = sys::ggml_backend_buft_alloc_buffer(kept.0, bytes);
            if buffer.is_null() {
                return Err(Error::Peer(PACKAGE, "allocate the weights"));
            }
            let repacked = Repacked { _context: context, tensor, buffer };
            let base = sys::ggml_backend_buffer_get_base(buffer);
            match sys::ggml_backend_tensor_alloc(buffer, tensor, base) {
                sys::GGML_STATUS_SUCCESS => {}
                _ => return Err(Error::Peer(PACKAGE, "place the weights")),
            }
            sys::ggml_backend_tensor_set(tensor, rows.as_ptr().cast::<c_void>(), 0, rows.len());
            Ok(repacked)
        }
    }

    pub fn tensor(&self) -> *mut sys::ggml_tensor {
        self.tensor
    }
}

impl Drop for Repacked {
    fn drop(&mut self) {
        // SAFETY: made above, and no graph that reads it outlives its owner.
        unsafe { sys::ggml_backend_buffer_free(self.buffer) }
    }
}
