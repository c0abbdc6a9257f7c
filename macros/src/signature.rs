//! Signatures of hand-written kernels, as the table of ops has them. The compiler compares the runtime's type of that name with
//! the function again, so that a change of the runtime's `abi` can't go unnoticed here.

use gristmill_spec::vocab::{Abi, Op};
use quote::ToTokens as _;
use syn::{
    Error, FnArg, GenericArgument, PathArguments, PointerMutability, Result, ReturnType, Safety, Signature,
    Type,
};

/// A type of the table, whose tokens may stand apart, as it would be written.
fn spelled(ty: &str) -> String {
    syn::parse_str(ty).map_or_else(|_| ty.to_owned(), |ty| written(&ty))
}

/// A signature as it would be written.
fn text(abi: &Abi) -> String {
    let parameters: Vec<String> =
        abi.parameters.iter().map(|(name, ty)| format!("{name}: {}", spelled(ty))).collect();
    let output = abi.output.map_or(String::new(), |output| format!(" -> {}", spelled(output)));
    format!("unsafe fn({}){output}", parameters.join(", "))
}

/// Compares a function's signature with that of an op; every difference is reported where it stands.
pub fn check(op: Op, found: &Signature) -> Result<()> {
    let mut errors: Vec<Error> = Vec::new();
    let abi = &op.info().abi;
    let expected = text(abi);
    let output = abi.output.map(spelled);
    if !matches!(found.safety, Safety::Unsafe(_)) {
        let why = "it is called with raw pointers, on CPUs that have the features";
        errors.push(Error::new_spanned(found.fn_token, format!("a kernel is an `unsafe fn`: {why}")));
    }
    if let Some(token) = &found.asyncness {
        errors.push(Error::new_spanned(token, "a kernel can't be async"));
    }
    if let Some(abi) = &found.abi {
        errors.push(Error::new_spanned(abi, "a kernel is a Rust function, without `extern`"));
    }
    if !found.generics.params.is_empty() {
        let message = "a kernel can't be generic: the registry holds one function";
        errors.push(Error::new_spanned(&found.generics.params, message));
    }
    if let Some(variadic) = &found.variadic {
        errors.push(Error::new_spanned(variadic, format!("`{op}` takes no further arguments: {expected}")));
    }
    if found.inputs.len() != abi.parameters.len() {
        let (takes, has) = (abi.parameters.len(), found.inputs.len());
        let plural = if takes == 1 { "" } else { "s" };
        let message = format!(
            "a function for `{op}` has {takes} parameter{plural}, this one {has}; expected {expected}"
        );
        errors.push(Error::new(found.paren_token.span.join(), message));
    } else {
        for (input, (name, ty)) in found.inputs.iter().zip(abi.parameters) {
            match input {
                FnArg::Receiver(receiver) => {
                    errors.push(Error::new_spanned(receiver, "a kernel is a free function, without `self`"));
                }
                FnArg::Typed(typed) if written(&typed.ty) != spelled(ty) => {
                    let ty = spelled(ty);
                    let message = format!("for `{op}`, `{name}` is a `{ty}`; expected {expected}");
                    errors.push(Error::new_spanned(&typed.ty, message));
                }
                FnArg::Typed(_) => {}
            }
        }
    }
    match (&found.output, output.as_deref()) {
        (ReturnType::Default, None) => {}
        (ReturnType::Type(_, ty), Some(output)) if written(ty) == output => {}
        (ReturnType::Type(_, ty), None) if written(ty) == "()" => {}
        (ReturnType::Type(_, ty), output) => {
            let returns = output.map_or("nothing".to_owned(), |output| format!("`{output}`"));
            errors.push(Error::new_spanned(
                ty,
                format!("a function for `{op}` returns {returns}; expected {expected}"),
            ));
        }
        (ReturnType::Default, Some(output)) => {
            let message = format!("a function for `{op}` returns `{output}`; expected {expected}");
            errors.push(Error::new_spanned(&found.ident, message));
        }
    }
    let all = errors.into_iter().reduce(|mut all, error| {
        all.combine(error);
        all
    });
    all.map_or(Ok(()), Err)
}

/// A type in one spelling: paths by their last segment, no lifetimes.
fn written(ty: &Type) -> String {
    match ty {
        Type::Group(group) => written(&group.elem),
        Type::Paren(paren) => written(&paren.elem),
        Type::Ptr(pointer) => {
            let kind = match pointer.mutability {
                PointerMutability::Mut(_) => "*mut",
                PointerMutability::Const(_) => "*const",
            };
            format!("{kind} {}", written(&pointer.elem))
        }
        Type::Reference(reference) => {
            let kind = if reference.mutability.is_some() { "&mut " } else { "&" };
            format!("{kind}{}", written(&reference.elem))
        }
        Type::Tuple(tuple) => {
            let elements: Vec<String> = tuple.elems.iter().map(written).collect();
            format!("({})", elements.join(", "))
        }
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return ty.to_token_stream().to_string() };
            match &last.arguments {
                PathArguments::AngleBracketed(arguments) => {
                    let arguments: Vec<String> = arguments
                        .args
                        .iter()
                        .map(|argument| match argument {
                            GenericArgument::Type(ty) => written(ty),
                            other => other.to_token_stream().to_string(),
                        })
                        .collect();
                    format!("{}<{}>", last.ident, arguments.join(", "))
                }
                PathArguments::None => last.ident.to_string(),
                PathArguments::Parenthesized(_) => ty.to_token_stream().to_string(),
            }
        }
        other => other.to_token_stream().to_string(),
    }
}
