//! `kernel!`: one format, compiled in place.

use gristmill_codegen::Builder;
use gristmill_codegen::builder::BuildError;
use gristmill_spec::model::{CBody, CpuBody, CpuVariant, SpecSet};
use gristmill_spec::{ReadError, SourceFile, read_path};
use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use std::path::{Component, Path};
use syn::parse::{Parse, ParseStream};
use syn::{Error, Ident, LitStr, Result, Token};

/// The shipped specs: shown path and bytes.
static SHIPPED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

/// Goes into kernel identities. Target and flags are not known to a macro.
const COMPILER: &str = concat!(env!("GRISTMILL_RUSTC"), ";kernel!");

/// Arguments of `kernel!`.
pub enum Input {
    /// A format's file, and perhaps kernels and packings for it; all relative to the package.
    Files(Vec<LitStr>),
    /// A name and TOML.
    Inline(Ident, LitStr),
}

impl Parse for Input {
    fn parse(input: ParseStream<'_>) -> Result<Input> {
        let forms = "write `kernel!(\"specs/my_format.toml\")` or `kernel!(my_format, r#\"...TOML...\"#)`";
        let wrong = |span| Error::new(span, forms);
        let parsed = if input.peek(LitStr) {
            let mut files: Vec<LitStr> = vec![input.parse()?];
            while input.peek(Token![,]) && input.peek2(LitStr) {
                input.parse::<Token![,]>()?;
                files.push(input.parse()?);
            }
            Input::Files(files)
        } else {
            let name: Ident = input.parse().map_err(|error: Error| wrong(error.span()))?;
            input.parse::<Token![,]>().map_err(|error| wrong(error.span()))?;
            Input::Inline(name, input.parse().map_err(|error: Error| wrong(error.span()))?)
        };
        input.parse::<Option<Token![,]>>()?;
        if input.is_empty() { Ok(parsed) } else { Err(wrong(input.span())) }
    }
}

/// What lints leave alone in generated code, whichever a user's package has on: it passes those of gristmill.
pub fn lints() -> TokenStream {
    quote! {
        #[allow(
            unused, clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks,
            reason = "generated code"
        )]
    }
}

/// The compiled format. `root` is the package's folder, `package` its name.
pub fn expand(input: &Input, root: &Path, package: String) -> Result<TokenStream> {
    let (sources, name, span, tracked) = match input {
        Input::Inline(name, toml) => {
            let source = SourceFile { path: format!("inline/{name}.toml"), bytes: toml.value().into_bytes() };
            (vec![source], name.to_string(), toml.span(), TokenStream::new())
        }
        Input::Files(paths) => {
            let sources = paths.iter().map(|path| read(path, root)).collect::<Result<Vec<SourceFile>>>()?;
            let name = sources.first().and_then(|source| Path::new(&source.path).file_stem());
            let name = name.map_or_else(String::new, |name| name.to_string_lossy().into());
            // The compiler learns which files this depends on.
            let tracked = paths.iter().map(|path| {
                quote_spanned! {path.span()=>
                    const _: &[u8] = ::core::include_bytes!(::core::concat!(::core::env!("CARGO_MANIFEST_DIR"), "/", #path));
                }
            });
            let span = paths.first().map_or_else(proc_macro2::Span::call_site, LitStr::span);
            (sources, name, span, tracked.collect())
        }
    };
    let module = syn::parse_str::<Ident>(&format!("gristmill_kernel_{name}")).map_err(|_| {
        let message = format!(
            "`{name}` is no name for a module, which is that of the first file: name the format's first"
        );
        Error::new(span, message)
    })?;
    let (code, warnings) = compile(sources, package).map_err(|message| Error::new(span, message))?;
    let code: TokenStream =
        code.parse().map_err(|error| Error::new(span, format!("generated text: {error}")))?;
    let lints = lints();
    // A use of something deprecated is the one warning that a macro can give.
    let warnings = warnings.iter().map(|warning| {
        quote_spanned! {span=>
            const _: () = { #[deprecated(note = #warning)] const SPEC: () = (); SPEC };
        }
    });
    // A module of its own, so that what generated code imports does not meet the caller's names.
    Ok(quote! {
        #lints
        mod #module { #code #tracked }
        pub use #module::*;
        #(#warnings)*
    })
}

fn read(path: &LitStr, root: &Path) -> Result<SourceFile> {
    let wrong = |message: String| Error::new(path.span(), message);
    let shown = path.value();
    let inside =
        Path::new(&shown).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !inside || shown.is_empty() {
        return Err(wrong(format!(
            "`{shown}` is not a path inside this package; name a file relative to its Cargo.toml"
        )));
    }
    let file = root.join(&shown);
    if file.is_dir() {
        return Err(wrong(format!(
            "`{shown}` is a folder; `kernel!` reads one file. A build script compiles folders: \
             gristmill_codegen::Builder::new({shown:?}).build()"
        )));
    }
    let error = match read_path(&file) {
        Ok(mut sources) if sources.len() == 1 => {
            let source = sources.remove(0);
            return Ok(SourceFile { path: shown, ..source });
        }
        Ok(_) => return Err(wrong(format!("`{shown}` is not one file"))),
        Err(error) => error,
    };
    Err(wrong(match error {
        ReadError::Missing(_) => {
            format!("there is no file `{shown}` in this package; paths start at its Cargo.toml")
        }
        ReadError::Unreadable { source, .. } => format!("can't read `{shown}`: {source}"),
        other => other.to_string(),
    }))
}

/// The same text that a build script would get for these sources, and warnings.
fn compile(sources: Vec<SourceFile>, package: String) -> std::result::Result<(String, Vec<String>), String> {
    let paths: Vec<&str> = sources.iter().map(|source| source.path.as_str()).collect();
    let path = paths.join(", ");
    let shipped =
        SHIPPED.iter().map(|(path, bytes)| SourceFile { path: (*path).to_owned(), bytes: bytes.to_vec() });
    let builder = Builder::from_memory(shipped.collect()).with_sources(sources);
    match builder.compile(Path::new(""), package, COMPILER.to_owned()) {
        Ok((_, set, _)) if set.formats.is_empty() => Err(format!(
            "{path} describes no format; `kernel!` compiles one format with the shipped kernels, and with those of \
             files named after it. Whole folders go through a build script (gristmill_codegen::Builder)"
        )),
        Ok((compiled, set, warnings)) => match c_body(&set) {
            None => Ok((compiled.code, warnings)),
            Some((body, variant)) => Err(format!(
                "{path} can't be compiled here: {}:{} has a body in C or C++, `{}`, and a macro starts no compiler; a build script \
                 does (gristmill_codegen::Builder)",
                variant.origin.file, variant.origin.line, body.file
            )),
        },
        Err(BuildError::Specs(report)) => Err(format!("{path} can't be compiled\n\n{}", report.trim_end())),
        Err(other) => Err(format!("{path} can't be compiled\n\n{other}")),
    }
}

/// A body in C or C++, and its variant.
fn c_body(set: &SpecSet) -> Option<(&CBody, &CpuVariant)> {
    set.kernels.iter().flat_map(|kernel| &kernel.cpu).find_map(|variant| match &variant.body {
        Some(CpuBody::C(body)) => Some((body, variant)),
        Some(CpuBody::Rust(_)) | None => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = env!("CARGO_MANIFEST_DIR");
    const NIBBLE: &str = include_str!("../tests/specs/formats/nibble.toml");

    fn built(package: &str) -> String {
        let built =
            Builder::new("tests/specs/formats").compile(ROOT.as_ref(), package.into(), COMPILER.into());
        built.expect("a sound spec").0.code
    }

    #[test]
    fn the_shipped_specs_are_all_there() {
        let mut shipped = gristmill_spec::shipped().expect("the package's files");
        shipped.retain(|source| source.path != "kernel-spec/coverage.toml");
        assert!(!shipped.is_empty());
        let held: Vec<(&str, &[u8])> =
            shipped.iter().map(|s| (s.path.as_str(), s.bytes.as_slice())).collect();
        assert_eq!(SHIPPED, held);
    }

    #[test]
    fn macro_and_build_script_write_the_same_text() {
        let built = built("somebody");
        let path = "tests/specs/formats/nibble.toml".to_owned();
        let source = SourceFile { path, bytes: NIBBLE.as_bytes().to_vec() };
        let (text, warnings) = compile(vec![source], "somebody".to_owned()).expect("a sound spec");
        assert_eq!(text, built);
        assert_eq!(warnings, [""; 0]);
        for needed in ["pub mod nibble", "pub static REGISTRY", "matmul.nibble.avx512.avx512vnni.prefill"] {
            assert!(built.contains(needed), "{needed}");
        }
    }

    #[test]
    fn a_body_in_c_needs_a_build_script() {
        let kernel = "doc = \"x\"\nop = \"dequantize\"\nformats = [\"nibble\"]\n\n[[cpu]]\nisa = \"avx2\"\nname = \"c\"\n\
            requires = [\"ssse3\"]\nbody = \"b.c\"\nfunction = \"mine\"\n";
        let source = |path: &str, text: &str| SourceFile { path: path.to_owned(), bytes: text.into() };
        let sources = vec![
            source("formats/nibble.toml", NIBBLE),
            source("kernels/k.toml", kernel),
            source("kernels/b.c", "static gm_fault mine();"),
        ];
        let refused = compile(sources, "somebody".to_owned()).expect_err("no compiler is started");
        let expected =
            "kernels/k.toml:5 has a body in C or C++, `kernels/b.c`, and a macro starts no compiler";
        assert!(refused.contains(expected), "{refused}");
    }

    #[test]
    fn the_expansion_is_that_text() {
        let path = syn::parse_quote!("tests/specs/formats/nibble.toml");
        let tokens =
            expand(&Input::Files(vec![path]), ROOT.as_ref(), "somebody".into()).expect("a sound spec");
        let text: TokenStream = built("somebody").parse().expect("Rust");
        let tokens = tokens.to_string();
        assert!(tokens.contains(&text.to_string()));
        assert!(tokens.contains("include_bytes"), "cargo must learn which file this depends on");
    }

    #[test]
    fn a_first_file_that_gives_no_name_is_refused() -> std::io::Result<()> {
        let root = std::env::temp_dir().join(format!("gristmill-macros-{}", std::process::id()));
        std::fs::create_dir_all(&root)?;
        std::fs::write(root.join("grid.u16.bin"), [])?;
        let input = Input::Files(vec![syn::parse_quote!("grid.u16.bin")]);
        let refused = expand(&input, &root, "somebody".into()).map(|_| ());
        std::fs::remove_dir_all(&root)?;
        let message = refused.expect_err("no module").to_string();
        assert!(message.contains("`grid.u16` is no name for a module"), "{message}");
        Ok(())
    }

    /// A folder of the same name as that of the shipped specs is still the user's.
    #[test]
    fn a_format_in_a_folder_named_like_the_shipped_ones_is_compiled() {
        let path = "kernel-spec/formats/nibble.toml".to_owned();
        let source = SourceFile { path, bytes: NIBBLE.as_bytes().to_vec() };
        let (text, _) = compile(vec![source], "somebody".to_owned()).expect("a sound spec");
        assert!(text.contains("./kernel-spec/formats/nibble.toml:1"), "{text}");
    }
}
