//! `require!`: a question to a registry while compiling.

use crate::words::Word;
use gristmill_spec::vocab::{DType, DeviceKind, Op};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, LitStr, Path, Result, Token, parse_quote};

/// Arguments of `require!`.
pub struct Input {
    registry: Path,
    op: Op,
    format: String,
    input: DType,
    device: DeviceKind,
}

const FORM: &str = "write `require!(crate::kernels, matmul, i2_s, f32, cpu)`: the module that holds the registry \
                    (without it gristmill's own is asked), the op, the format, the type and the device";

/// A module, or a word.
enum Argument {
    Path(Path),
    Quoted(LitStr),
}

impl Parse for Argument {
    fn parse(input: ParseStream<'_>) -> Result<Argument> {
        if input.peek(LitStr) {
            return input.parse().map(Argument::Quoted);
        }
        Path::parse_mod_style(input).map(Argument::Path).map_err(|error| Error::new(error.span(), FORM))
    }
}

impl Argument {
    fn word(&self) -> Result<Word> {
        match self {
            Argument::Quoted(literal) => Ok(Word { text: literal.value(), span: literal.span() }),
            Argument::Path(path) => match path.get_ident() {
                Some(ident) => Ok(Word { text: ident.to_string(), span: ident.span() }),
                None => Err(Error::new_spanned(path, FORM)),
            },
        }
    }
}

impl Parse for Input {
    fn parse(input: ParseStream<'_>) -> Result<Input> {
        let arguments = Punctuated::<Argument, Token![,]>::parse_terminated(input)?;
        let arguments: Vec<Argument> = arguments.into_iter().collect();
        let (registry, words) = match arguments.as_slice() {
            [Argument::Path(registry), words @ ..] if words.len() == 4 => (registry.clone(), words),
            words if words.len() == 4 => (parse_quote!(::gristmill::kernels), words),
            _ => return Err(Error::new(input.span(), FORM)),
        };
        let [op, format, dtype, device] = words else { return Err(Error::new(input.span(), FORM)) };
        let op = op.word().and_then(|word| word.of("op", Op::ALL, Op::name));
        let format = format.word().and_then(|word| word.name("format").map(str::to_owned));
        let dtype = dtype.word().and_then(|word| word.of("data type", DType::ALL, DType::name));
        let device = device.word().and_then(|word| word.of("device", DeviceKind::ALL, DeviceKind::name));
        match (op, format, dtype, device) {
            (Ok(op), Ok(format), Ok(input), Ok(device)) => Ok(Input { registry, op, format, input, device }),
            (op, format, dtype, device) => {
                // Every mistake is said, not only the first.
                let errors = [op.err(), format.err(), dtype.err(), device.err()].into_iter().flatten();
                let all = errors.reduce(|mut all, error| {
                    all.combine(error);
                    all
                });
                Err(all.unwrap_or_else(|| Error::new(input.span(), FORM)))
            }
        }
    }
}

/// A constant that can't be evaluated where the registry holds no such kernel.
pub fn expand(input: &Input) -> TokenStream {
    let Input { registry, op, format, input, device } = input;
    let [op, input, device] =
        [format!("{op:?}"), format!("{input:?}"), format!("{device:?}")].map(|w| format_ident!("{w}"));
    quote! {
        const _: () = {
            const WHY_NOT: ::gristmill::runtime::require::Text = #registry::why_not(
                ::gristmill::runtime::vocab::Op::#op,
                #format,
                ::gristmill::runtime::vocab::DType::#input,
                ::gristmill::runtime::vocab::DeviceKind::#device,
            );
            ::core::assert!(WHY_NOT.is_empty(), "{}", WHY_NOT.as_str());
        };
    }
}
