//! Says what it was linked with: nothing, a library for the processor, or one with CUDA.
//!
//!     cargo run                                                # whatever this machine has
//!     BITNET_CPP_DIR=/path/to/llama.cpp cargo run              # this library or an error
//!     BITNET_CPP_DIR=/path/to/llama.cpp cargo run --features cuda

use std::ffi::{CStr, c_char};

/// Constants that say what is linked, and functions with the same signature in every build.
mod bitnet_cpp {
    include!(concat!(env!("OUT_DIR"), "/bitnet_cpp.rs"));
}

use bitnet_cpp::Unavailable;

fn main() {
    // Code that needs a library stands under a flag; a misspelt flag is a warning of the compiler.
    #[cfg(bitnet_cpp_available)]
    println!("C++ backend: {}", bitnet_cpp::LIBRARIES.join(", "));
    #[cfg(not(bitnet_cpp_available))]
    println!("C++ backend: there was none when this was built");

    println!("kernel families: {}", or_none(bitnet_cpp::FAMILIES));
    println!("bitnet.cpp's own functions: {}", if cfg!(bitnet_cpp_has_bitnet_lib) { "yes" } else { "no" });
    println!("I2_S: {}", if cfg!(bitnet_cpp_has_i2_s) { "yes" } else { "no" });
    println!("system: {}", said(text(system_info())));
    println!("CUDA: {}", said(devices().map(|count| format!("{count} devices"))));
}

/// What the library says about itself. The call is there in every build; where no library is, it is an error.
fn system_info() -> Result<*const c_char, Unavailable> {
    // SAFETY: the function takes nothing and returns a constant text.
    unsafe { bitnet_cpp::llama_print_system_info() }
}

fn devices() -> Result<i32, Unavailable> {
    // SAFETY: the function takes nothing and may be called at any time.
    unsafe { bitnet_cpp::ggml_backend_cuda_get_device_count() }
}

fn text(found: Result<*const c_char, Unavailable>) -> Result<String, Unavailable> {
    // SAFETY: the library returns a text that ends with a zero and stays where it is.
    found.map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

fn said(answer: Result<String, Unavailable>) -> String {
    answer.unwrap_or_else(|error| format!("no: {error}"))
}

fn or_none(names: &[&str]) -> String {
    if names.is_empty() { String::from("none") } else { names.join(", ") }
}
