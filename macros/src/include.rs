//! `include_kernels!`: what a build script wrote.

use crate::kernel::lints;
use gristmill_codegen::builder::WRITTEN;
use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Error, Result};

/// `has` says whether the crate is compiled with a variable.
pub fn expand(input: TokenStream, has: impl Fn(&str) -> bool) -> Result<TokenStream> {
    if !input.is_empty() {
        return Err(Error::new_spanned(input, "`include_kernels!` takes no arguments"));
    }
    let script = "build.rs with `gristmill_codegen::Builder::new(\"kernels\").build()` in `main`";
    if !has("OUT_DIR") {
        let message =
            format!("this crate has no build script, so there are no kernels to include; add a {script}");
        return Err(Error::new(Span::call_site(), message));
    }
    // Not whether the file is there: it may be of a script before this one.
    if !has(WRITTEN) {
        let message = format!("this crate's build script wrote no kernels; it should be a {script}");
        return Err(Error::new(Span::call_site(), message));
    }
    let lints = lints();
    // A module of its own, so that what generated code imports does not meet the caller's names.
    Ok(quote! {
        #lints
        mod gristmill_kernels {
            ::core::include!(::core::concat!(::core::env!("OUT_DIR"), "/", ::core::env!(#WRITTEN)));
        }
        pub use gristmill_kernels::*;
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(input: TokenStream, has: &[&str]) -> String {
        expand(input, |name| has.contains(&name)).expect_err("an error").to_string()
    }

    #[test]
    fn says_what_is_missing() {
        let none = message(TokenStream::new(), &[]);
        assert!(none.contains("no build script") && none.contains("Builder"), "{none}");
        let empty = message(TokenStream::new(), &["OUT_DIR"]);
        assert!(empty.contains("wrote no kernels"), "{empty}");
        let arguments = message(quote!(i2_s), &["OUT_DIR", WRITTEN]);
        assert!(arguments.contains("no arguments"), "{arguments}");
    }
}
