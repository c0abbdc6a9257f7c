//! What a driver's compiler says of PTX that it does not take.

use cudarc::driver::sys::{CUjit_option, CUmodule, cuModuleLoadDataEx, cuModuleUnload};
use std::ffi::{CStr, c_void};

/// Bytes of the log that are asked for: the first mistakes, which are the causes of the others.
const BYTES: usize = 4096;

/// Compiles `ptx`, which the driver has refused, once more and takes what its compiler says. The device's context is current.
pub(super) fn log(ptx: &[u8]) -> Option<String> {
    // The driver reads up to a zero byte.
    let ptx = CStr::from_bytes_until_nul(ptx).ok()?;
    let mut text = vec![0u8; BYTES];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The size is passed as a pointer's value, and that of what was written comes back in its place.
    let mut values = [text.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(BYTES)];
    let mut module: CUmodule = std::ptr::null_mut();
    // SAFETY: the image ends with a zero byte; options and values are as many as is said; the buffer has BYTES bytes and outlives
    // the call.
    let outcome = unsafe {
        cuModuleLoadDataEx(&raw mut module, ptx.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    if outcome.result().is_ok() {
        // SAFETY: the module was just loaded and nobody has it.
        let _ = unsafe { cuModuleUnload(module) };
        return None;
    }
    // The last byte is a zero whatever the driver wrote.
    *text.last_mut()? = 0;
    let said = CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy();
    let said = said.trim();
    (!said.is_empty()).then(|| said.to_owned())
}
