//! `include_kernels!`: what a build script wrote.

use crate::kernel::lints;
use proc_macro2::{Span, TokenStream};
use quote::quote;
use std::ffi::OsString;
use std::path::Path;
use syn::{Error, Result};

pub fn expand(input: TokenStream, out: Option<OsString>) -> Result<TokenStream> {
    if !input.is_empty() {
        return Err(Error::new_spanned(input, "`include_kernels!` takes no arguments"));
    }
    let script = "build.rs with `gristmill_codegen::Builder::new(\"kernels\").build()` in `main`";
    let Some(out) = out else {
        let message =
            format!("this crate has no build script, so there are no kernels to include; add a {script}");
        return Err(Error::new(Span::call_site(), message));
    };
    let file = gristmill_codegen::builder::FILE;
    if !Path::new(&out).join(file).is_file() {
        let message = format!("this crate's build script wrote no kernels; it should be a {script}");
        return Err(Error::new(Span::call_site(), message));
    }
    let lints = lints();
    // A module of its own, so that what generated code imports does not meet the caller's names.
    Ok(quote! {
        #lints
        mod gristmill_kernels {
            ::core::include!(::core::concat!(::core::env!("OUT_DIR"), "/", #file));
        }
        pub use gristmill_kernels::*;
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(input: TokenStream, out: Option<OsString>) -> String {
        expand(input, out).expect_err("an error").to_string()
    }

    #[test]
    fn says_what_is_missing() {
        let none = message(TokenStream::new(), None);
        assert!(none.contains("no build script") && none.contains("Builder"), "{none}");
        let empty = message(TokenStream::new(), Some("a folder that is not there".into()));
        assert!(empty.contains("wrote no kernels"), "{empty}");
        let arguments = message(quote!(i2_s), None);
        assert!(arguments.contains("no arguments"), "{arguments}");
    }
}
