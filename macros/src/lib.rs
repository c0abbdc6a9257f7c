//! The macros of gristmill.
use proc_macro::TokenStream;

/// Includes what `gristmill_codegen::Builder` wrote in this crate's build script.
#[proc_macro]
pub fn include_kernels(_input: TokenStream) -> TokenStream {
    "include!(concat!(env!(\"OUT_DIR\"), \"/gristmill.rs\"));".parse().unwrap_or_default()
}
