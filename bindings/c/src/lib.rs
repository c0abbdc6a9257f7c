//! gristmill for C and C++: the functions of `include/gristmill.h`, which cbindgen makes of this package.
//!
//! The library's own types stand behind opaque handles. Each function returns a [`gm_status`]; what went wrong is said by
//! [`gm_last_error`](error::gm_last_error). No panic crosses the border. Layers are strict: without a kernel they are an error
//! that names the reason for each kernel, and of the environment nothing is read but
//! `GRISTMILL_QUARANTINE`.
#![allow(non_camel_case_types, reason = "the names of the header")]

mod abi;
pub mod blocks;
pub mod error;
pub mod guard;
pub mod linear;
pub mod model;
pub mod query;
mod raw;
pub mod threads;

pub use abi::GM_ABI_VERSION;
pub use error::gm_status;

/// The version of the interface that the library was built with.
#[unsafe(no_mangle)]
pub extern "C" fn gm_abi_version() -> u32 {
    GM_ABI_VERSION
}

/// The version of gristmill, such as "0.1.0". The library owns the text.
#[unsafe(no_mangle)]
pub extern "C" fn gm_version() -> *const std::ffi::c_char {
    const VERSION: &std::ffi::CStr =
        match std::ffi::CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}
