//! The peer's library: its package, and contexts in which it describes tensors and graphs.

use crate::error::Error;
#[cfg(feature = "ik")]
pub use ik_llama_cpp_sys as sys;
#[cfg(feature = "ggml")]
pub use llama_cpp_sys_2 as sys;

use std::ffi::{CStr, c_char};

/// The package of the peer.
#[cfg(feature = "ik")]
pub const PACKAGE: &str = "ik-llama-cpp-sys";
#[cfg(feature = "ggml")]
pub const PACKAGE: &str = "llama-cpp-sys-2";

/// What a line of the peer's log says, if it is about an error: others are hundreds a model.
///
/// # Safety
/// `text` is null or a string that lives through the call.
pub unsafe fn error_of(level: sys::ggml_log_level, text: *const c_char) -> Option<String> {
    if level != sys::GGML_LOG_LEVEL_ERROR || text.is_null() {
        return None;
    }
    // SAFETY: as the caller answers for.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// A context, for descriptions of tensors and graphs; their data lie in buffers of ours.
pub struct Context(pub *mut sys::ggml_context);

impl Context {
    /// With room for a graph of so many products.
    pub fn new(products: usize) -> Result<Context, Error> {
        // SAFETY: they tell sizes.
        let mem_size = unsafe {
            3 * products * sys::ggml_tensor_overhead()
                + sys::ggml_graph_overhead_custom(graph_size(products), false)
        };
        let params = sys::ggml_init_params {
            mem_size: mem_size + (64 << 10),
            mem_buffer: std::ptr::null_mut(),
            no_alloc: true,
        };
        // SAFETY: the parameters ask for memory of the library's own.
        let context = unsafe { sys::ggml_init(params) };
        if context.is_null() { Err(Error::Peer(PACKAGE, "make a context")) } else { Ok(Context(context)) }
    }

    /// A product of weights of a type, `n` rows of `k`, and `m` tokens; none of them has data yet.
    #[cfg(feature = "ggml")]
    pub fn product(&self, id: sys::ggml_type, [n, k]: [usize; 2], m: usize) -> *mut sys::ggml_tensor {
        // SAFETY: the context has room for these descriptions.
        unsafe {
            let weights = sys::ggml_new_tensor_2d(self.0, id, k as i64, n as i64);
            let x = sys::ggml_new_tensor_2d(self.0, sys::GGML_TYPE_F32, k as i64, m as i64);
            sys::ggml_mul_mat(self.0, weights, x)
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `ggml_init` made it, and nothing made in it outlives its owner.
        unsafe { sys::ggml_free(self.0) }
    }
}

/// Tensors of a graph of so many products.
pub fn graph_size(products: usize) -> usize {
    3 * products + 8
}
