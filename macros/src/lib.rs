//! The macros of gristmill: tokens in, tokens out, through the same compiler that build scripts use.
//!
//! Use them through the facade (`gristmill::kernel!`): what they write names things as `::gristmill::...`.
//!
//! | macro | what it does |
//! |---|---|
//! | [`include_kernels!`] | includes what a build script compiled |
//! | [`kernel!`] | compiles one format in place, from a file or from TOML between the lines |
//! | [`#[variant]`](macro@variant) | binds a hand-written function to the variant of a spec that names it |
//! | [`require!`] | fails compilation where a build holds no kernel for something |
//!
//! ```
//! // A format and its kernels, in one file without a build script.
//! mod pair {
//!     gristmill::kernel!(pair, r#"
//!         doc   = "2 bits a weight"
//!         block = { elements = 4, bytes = 1 }
//!
//!         [[field]]
//!         name   = "q"
//!         type   = "u2"
//!         layout = { shape = [4], stride = [2], offset = 0 }
//!
//!         [value]
//!         code = "q"
//!         zero = 1
//!     "#);
//! }
//! gristmill::require!(pair, matmul, pair, f32, cpu);
//!
//! use gristmill::{Dequantizer, QuantizedMatrix, Request};
//! # fn main() -> Result<(), gristmill::Error> {
//! let (_, format) = pair::REGISTRY.format("pair")?;
//! let matrix = QuantizedMatrix::new(format, 1, 4, &[0b11_10_01_00])?;
//! let prepared = pair::REGISTRY.prepare(&Request::dequantize("pair", 1, 4))?;
//! let mut values = [0.0; 4];
//! Dequantizer::new(&prepared.decide_as_asked())?.run(&matrix, &mut values)?;
//! assert_eq!(values, [-1.0, 0.0, 1.0, 2.0]);
//! # Ok(())
//! # }
//! ```
//!
//! Generated code is unsafe code, so a crate that says `#![forbid(unsafe_code)]` can't use the first two.

use proc_macro::TokenStream;
use syn::parse_macro_input;

mod include;
mod kernel;
mod require;
mod signature;
mod variant;
mod words;

/// Includes what `gristmill_codegen::Builder` wrote in this crate's build script: a module for each format,
/// and `REGISTRY`.
///
/// ```ignore
/// // build.rs
/// fn main() {
///     gristmill_codegen::Builder::new("kernels").with_shipped(["i2_s"]).build();
/// }
///
/// // src/lib.rs
/// pub mod kernels {
///     gristmill::include_kernels!();
/// }
/// ```
///
/// # Errors
///
/// Where the crate has no build script, or one that did not run a `Builder`.
#[proc_macro]
pub fn include_kernels(input: TokenStream) -> TokenStream {
    finish(include::expand(input.into(), |name| std::env::var_os(name).is_some()))
}

/// Compiles one format in place: its module, and a `REGISTRY` that holds it with every shipped kernel family
/// on every ISA.
///
/// `kernel!("specs/my_format.toml")` reads one file, relative to the package; cargo builds again when it
/// changes. Files that follow add to it: `kernel!("specs/my_format.toml", "specs/kernels/mine.toml")`, with kernels in
/// a folder `kernels`, packings in `packings` and import layouts in `imports`. `kernel!(my_format, r#"..."#)` takes the TOML as it
/// stands. No other file is read and no process is started, so a spec that needs another compiler is refused here and belongs into a build script.
/// Two expansions go into two modules, for each brings its own `REGISTRY`.
///
/// ```
/// mod nibble {
///     gristmill::kernel!(nibble, r#"
///         doc   = "4 bits a weight, one f16 scale for 32"
///         block = { elements = 32, bytes = 18 }
///
///         [[field]]
///         name = "d"
///         type = "f16"
///
///         [[field]]
///         name   = "q"
///         type   = "u4"
///         layout = { shape = [32], stride = [4], offset = 16 }
///
///         [value]                         # w = d * (q - 8)
///         code  = "q"
///         zero  = 8
///         scale = ["d"]
///
///         [[quantize]]
///         name   = "absmax"
///         scale  = "absmax"
///         levels = 7
///         round  = "half-even"
///         clamp  = [-8, 7]
///     "#);
/// }
///
/// use gristmill::{Dequantizer, QuantizedMatrix, Quantizer, Request};
/// # fn main() -> Result<(), gristmill::Error> {
/// let registry = &nibble::REGISTRY;
/// let (_, format) = registry.format("nibble")?;
///
/// let weights: Vec<f32> = (0..64).map(|i| (i % 16 - 8) as f32 * 0.5).collect();
/// let quantize = registry.prepare(&Request::quantize("nibble", None, 2, 32))?;
/// let mut bytes = vec![0; format.tensor_bytes(2, 32)?];
/// Quantizer::new(&quantize.decide_as_asked())?.run(&weights, 2, 32, &mut bytes)?;
///
/// let dequantize = registry.prepare(&Request::dequantize("nibble", 2, 32))?;
/// let mut back = vec![0.0; weights.len()];
/// let matrix = QuantizedMatrix::new(format, 2, 32, &bytes)?;
/// Dequantizer::new(&dequantize.decide_as_asked())?.run(&matrix, &mut back)?;
/// assert!(weights.iter().zip(&back).all(|(a, b)| (a - b).abs() <= 0.3), "{weights:?} {back:?}");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The spec's own, rendered as a build script would print them; a file that can't be read; a spec that
/// describes no format.
#[proc_macro]
pub fn kernel(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as kernel::Input);
    let variable = |name| std::env::var(name).unwrap_or_default();
    finish(kernel::expand(&input, variable("CARGO_MANIFEST_DIR").as_ref(), variable("CARGO_PKG_NAME")))
}

/// Binds a hand-written function to the variant of a kernel spec that names it.
///
/// The spec says which function stands in for the generated body:
///
/// ```toml
/// # kernels/fast_dequantize.toml
/// op      = "dequantize"
/// formats = ["q3_seq"]
///
/// [[cpu]]
/// isa      = "avx2"
/// requires = ["ssse3"]            # more special than the generated variant for AVX2, so it comes first
/// body     = "rust"
/// function = "crate::dequantize_q3_seq"
/// ```
///
/// and the attribute, in the words of the spec, which variant the function is:
///
/// ```
/// use gristmill::abi::Fault;
///
/// /// # Safety
/// ///
/// /// As `gristmill::abi::DequantizeFn` says; the processor has AVX2 and SSSE3.
/// #[gristmill::variant(op = dequantize, kernel = fast_dequantize, format = q3_seq, isa = avx2, requires = [ssse3])]
/// pub unsafe fn dequantize_q3_seq(
///     src: *const u8,
///     dst: *mut f32,
///     blocks: usize,
///     outer: f32,
/// ) -> Result<(), Fault> {
///     // ...
/// #   let _ = (src, dst, blocks, outer);
///     Ok(())
/// }
/// # #[cfg(target_arch = "x86_64")]
/// assert_eq!(dequantize_q3_seq::VARIANT, "fast_dequantize.q3_seq.avx2.ssse3");
/// ```
///
/// | word | what |
/// |---|---|
/// | `op` | what it computes: the signature follows from it (`gristmill::abi`) |
/// | `format` | the format (for `quantize_activations` the activation format) |
/// | `isa` | the instruction set; write `"sse4.1"` as a string |
/// | `kernel` | stem of the kernel file, where that is not the op's name |
/// | `quantizer` | for `quantize` only: which one |
/// | `requires` | further CPU features, in the order of the spec |
/// | `name` | the variant's `name`, if it has one |
///
/// The attribute checks the signature, adds `#[target_feature]` and `#[cfg(target_arch)]` from the vocabulary,
/// and leaves the variant's name in a module named like the function, where the generated registry compares
/// it with the spec: a function can't be taken for another variant, nor run where its features are missing. Beside it stands a
/// hash of the function's text, which is part of the kernel's id: receipts and tunings notice a changed body, though not a change in
/// what it calls.
///
/// # Safety
///
/// That the function does what its type in `gristmill::abi` says can't be checked, and handles call it from safe code: for
/// this, and for staying within the buffers that follow from the format, who marks a function answers, as generated code
/// does for its own (`gristmill::registry::Entry::new`). Therefore it must be an `unsafe fn`, which a crate that says
/// `#![forbid(unsafe_code)]` can't have.
#[proc_macro_attribute]
pub fn variant(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let arguments = parse_macro_input!(arguments as variant::Arguments);
    finish(variant::expand(&arguments, item.into()))
}

/// Fails compilation where a build holds no kernel for something, in the words of a decision.
///
/// `require!(crate::kernels, matmul, i2_s, f32, cpu)` asks the registry that
/// [`include_kernels!`] or [`kernel!`] put into that module for (op, format, type, device). Without the
/// module it asks gristmill's own registry. A yes says that the build holds a kernel; which shapes it takes
/// and whether a machine has the features is for `decide` to say.
///
/// ```
/// mod two_bits {
///     gristmill::kernel!(two_bits, r#"
///         doc   = "2 bits a weight"
///         block = { elements = 4, bytes = 1 }
///
///         [[field]]
///         name   = "q"
///         type   = "u2"
///         layout = { shape = [4], stride = [2], offset = 0 }
///
///         [value]
///         code = "q"
///         zero = 1
///     "#);
/// }
///
/// gristmill::require!(two_bits, dequantize, two_bits, f32, cpu);
/// ```
#[proc_macro]
pub fn require(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as require::Input);
    require::expand(&input).into()
}

fn finish(result: syn::Result<proc_macro2::TokenStream>) -> TokenStream {
    result.unwrap_or_else(|error| error.to_compile_error()).into()
}
