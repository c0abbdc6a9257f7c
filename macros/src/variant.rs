//! `#[variant]`: a hand-written function and the variant of a spec that it is.

use crate::signature;
use crate::words::{Word, unknown};
use gristmill_codegen::emit::kernel_name;
use gristmill_codegen::plan::{enabled, features};
use gristmill_spec::model::{CpuVariant, Origin, ShapeRules};
use gristmill_spec::vocab::{Arch, Feature, Isa, Op, Strategy};
use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::{Error, ItemFn, Result, Token, bracketed};

const KEYS: [&str; 7] = ["op", "kernel", "format", "quantizer", "isa", "requires", "name"];

/// Arguments of `#[variant]`.
#[derive(Debug)]
pub struct Arguments {
    op: Op,
    /// The variant's name, as the registry will have it.
    name: String,
    variant: CpuVariant,
}

/// What stands behind a key.
struct Entry {
    key: Word,
    words: Vec<Word>,
}

impl Parse for Entry {
    fn parse(input: ParseStream<'_>) -> Result<Entry> {
        let key: Word = input.parse()?;
        if !KEYS.contains(&key.text.as_str()) {
            return Err(Error::new(key.span, unknown("argument of `#[variant]`", &key.text, &KEYS)));
        }
        input.parse::<Token![=]>()?;
        if key.text != "requires" {
            return Ok(Entry { key, words: vec![input.parse()?] });
        }
        let list;
        bracketed!(list in input);
        let words = list.parse_terminated(Word::parse, Token![,])?;
        Ok(Entry { key, words: words.into_iter().collect() })
    }
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Arguments> {
        let entries = input.parse_terminated(Entry::parse, Token![,])?;
        let mut seen: Vec<Entry> = Vec::new();
        for entry in entries {
            if seen.iter().any(|earlier| earlier.key.text == entry.key.text) {
                return Err(Error::new(entry.key.span, format!("`{}` is said twice", entry.key.text)));
            }
            seen.push(entry);
        }
        let find = |key: &str| seen.iter().find(|entry| entry.key.text == key);
        let one = |key: &str| find(key).and_then(|entry| entry.words.first());
        let need = |key: &str| {
            one(key).ok_or_else(|| {
                let example = "#[variant(op = matmul, format = i2_s, isa = avx2)]";
                Error::new(Span::call_site(), format!("`{key}` is missing; for example {example}"))
            })
        };
        let op = need("op")?.of("op", Op::ALL, Op::name)?;
        let format = need("format")?.name("format")?;
        let isa = need("isa")?.of("ISA", Isa::ALL, Isa::name)?;
        let kernel = one("kernel").map(|word| word.name("kernel file")).transpose()?.unwrap_or(op.name());
        let label = one("name").map(|word| word.name("variant")).transpose()?.unwrap_or("");
        let quantizer = match (one("quantizer"), op.info().by_quantizer) {
            (Some(word), true) => Some(word.name("quantizer")?),
            (Some(word), false) => {
                return Err(Error::new(word.span, format!("`{op}` has no quantizers; leave it out")));
            }
            (None, true) => Some(need("quantizer")?.name("quantizer")?),
            (None, false) => None,
        };
        let mut requires = Vec::new();
        for word in find("requires").map_or(&[][..], |entry| &entry.words) {
            let feature = word.of("CPU feature", Feature::ALL, Feature::name)?;
            if feature.arch() != isa.arch() {
                let message = format!(
                    "`{feature}` is a feature of {}, but `{isa}` is for {}",
                    feature.arch(),
                    isa.arch()
                );
                return Err(Error::new(word.span, message));
            }
            requires.push(feature);
        }
        // Everything that tells this variant from others; the rest is the spec's business.
        let variant = CpuVariant {
            isa,
            requires,
            label: label.to_owned(),
            code_bits: None,
            levels: None,
            by_default: true,
            formats: Vec::new(),
            packing: None,
            strategy: Strategy::Multiply,
            rows: 0,
            tokens: 0,
            shape: ShapeRules::default(),
            body: None,
            origin: Origin::default(),
        };
        let name = kernel_name(kernel, format, quantizer, &variant);
        Ok(Arguments { op, name, variant })
    }
}

pub fn expand(arguments: &Arguments, item: TokenStream) -> Result<TokenStream> {
    let Arguments { op, name, variant } = arguments;
    let mut function: ItemFn = syn::parse2(item).map_err(|error| {
        Error::new(error.span(), format!("`#[variant]` stands before an `unsafe fn` with a body ({error})"))
    })?;
    for attribute in &function.attrs {
        if attribute.path().is_ident("target_feature") {
            let message = "`#[variant]` adds the features, from the ISA and `requires`; remove this";
            return Err(Error::new_spanned(attribute, message));
        }
    }
    signature::check(*op, &function.sig)?;
    let body = {
        let (signature, block) = (&function.sig, &function.block);
        gristmill_codegen::emit::body_hash(&quote! { #signature #block }.to_string())
    };
    let enable = enabled(&features(variant));
    if !enable.is_empty() {
        function.attrs.push(syn::parse_quote!(#[target_feature(enable = #enable)]));
    }
    let cfg = match variant.isa.arch() {
        Arch::Any => TokenStream::new(),
        arch @ (Arch::X86 | Arch::Aarch64) => {
            let arch = arch.name();
            quote! { #[cfg(target_arch = #arch)] }
        }
    };
    let (ident, visibility) = (&function.sig.ident, &function.vis);
    let alias = format_ident!("{}", op.info().abi.alias);
    let doc = format!("Which variant [`{ident}`](fn@{ident}) is.");
    let typed = quote_spanned! {ident.span()=>
        const _: ::gristmill::runtime::abi::#alias = #ident;
    };
    Ok(quote! {
        #cfg
        #function

        #[doc = #doc]
        #cfg
        #visibility mod #ident {
            /// The kernel's name in the registry.
            pub const VARIANT: &str = #name;
            /// A hash of the function's text, comments and white space apart: part of the kernel's id.
            pub const BODY: u64 = #body;
        }

        #cfg
        #typed
    })
}
