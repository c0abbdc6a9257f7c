//! The compiler: checked specs in, Rust out.
//!
//! [`Builder`] is for build scripts: it reads spec folders, checks them, writes one Rust file into
//! `OUT_DIR` and tells cargo what to watch. [`compile`] is the same without files, for the macros and
//! the command. The stages are plans ([`plan`]) and text ([`emit`]); neither can meet a mistake that the
//! spec package could have refused, except where a plan can't be proven exact.

pub mod builder;
pub mod cuda;
pub mod emit;
pub mod plan;

pub use builder::Builder;
use gristmill_spec::SourceFile;
use gristmill_spec::model::{Format, Origin, SpecSet};
use gristmill_spec::vocab::{CudaArch, Strategy};

/// What the compiler can refuse.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No exact plan exists for what the spec asks.
    #[error("{file}:{line}: format `{format}`: {reason}")]
    Plan {
        /// The format.
        format: String,
        /// The file: the format's, or that of the kernel whose variant can't serve it.
        file: String,
        /// Line in it.
        line: u32,
        /// Why.
        reason: String,
    },
    /// A packing that no loop skeleton can read.
    #[error("{file}:{line}: packing `{packing}`, tile of {code}: strategy `{strategy}` {}", wanted(*strategy))]
    Packing {
        /// The packing.
        packing: String,
        /// Its file.
        file: String,
        /// Line of the packing.
        line: u32,
        /// Width of the tile's codes.
        code: gristmill_spec::model::TileCode,
        /// The strategy that was to read it.
        strategy: Strategy,
    },
    /// A packing that no CUDA skeleton can read.
    #[error("{file}:{line}: packing `{packing}`: `{algorithm}` needs {needs}")]
    CudaPacking {
        /// The packing.
        packing: String,
        /// Its file.
        file: String,
        /// Line of the packing.
        line: u32,
        /// The algorithm.
        algorithm: gristmill_spec::vocab::CudaAlgorithm,
        /// What it needs.
        needs: String,
    },
    /// The emitted text is not Rust: a defect of the compiler, never of a spec.
    #[error(
        "the compiler emitted text that is not Rust ({message}); please report this with the spec that caused it"
    )]
    Emitted {
        /// What the parser said.
        message: String,
    },
}

/// What the loops of a strategy need of a packing.
fn wanted(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Multiply => {
            "needs one row to a 32-bit lane (row stride 32), four k to its bytes (innermost k of 4 with stride 8) and \
             the other k in the fields of a byte"
        }
        Strategy::Lookup => {
            "needs one row to a byte (row stride 8) and codes of 1, 2 or 4 bits one after the other in it (k stride: \
             their bits)"
        }
    }
}

impl Error {
    fn plan(format: &Format, reason: &str) -> Error {
        Error::Plan {
            format: format.name.clone(),
            file: format.origin.file.clone(),
            line: format.origin.line,
            reason: reason.to_string(),
        }
    }

    /// What stops a variant from serving a format is told where the variant stands.
    fn of_variant(self, origin: &Origin) -> Error {
        match self {
            Error::Plan { format, reason, .. } => {
                Error::Plan { format, file: origin.file.clone(), line: origin.line, reason }
            }
            other => other,
        }
    }
}

/// What a compilation needs to know besides the specs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The crate that is built, for the registry.
    pub package: String,
    /// Compiler, target and flags, as they go into kernel identities.
    pub compiler: String,
    /// Formats and import layouts that were described but not selected.
    pub left_out: Vec<LeftOut>,
    /// Path of the runtime as the built crate can name it; empty: [`RUNTIME`].
    pub runtime: String,
    /// What there is for GPUs.
    pub cuda: CudaImages,
}

/// Compiled CUDA images, as the registry is to hold them.
#[derive(Clone, Debug, Default)]
pub enum CudaImages {
    /// CUDA was not asked for.
    #[default]
    Off,
    /// It was, but there is no compiler.
    NoToolchain {
        /// The places looked at, each with what was wrong there.
        looked: Vec<String>,
    },
    /// Images were compiled, all or some.
    Built {
        /// The compiler and its version.
        compiler: String,
        /// The architectures asked for.
        architectures: Vec<CudaArch>,
        /// The images, machine code before PTX.
        images: Vec<CudaImageFile>,
        /// Unit, architecture and the compiler's words, where an image could not be made.
        failures: Vec<(String, CudaArch, String)>,
    },
}

/// An image in a file that the generated code includes.
#[derive(Clone, Debug)]
pub struct CudaImageFile {
    /// Name of its [`cuda::Unit`].
    pub unit: String,
    /// Its architecture.
    pub arch: CudaArch,
    /// PTX text and not machine code.
    pub ptx: bool,
    /// The CUDA that a driver must support to load it, major and minor.
    pub driver: (u32, u32),
    /// Bytes of the image.
    pub size: usize,
    /// Absolute path of the file, which holds it deflated (RFC 1951).
    pub path: std::path::PathBuf,
}

/// Path of the runtime in generated code, for crates that depend on `gristmill`.
pub const RUNTIME: &str = "::gristmill::runtime";

/// A format or import layout that is left out, and the cargo feature that would bring it in.
#[derive(Clone, Debug)]
pub struct LeftOut {
    /// The format, or the import layout.
    pub format: String,
    /// The feature.
    pub feature: String,
    /// GGUF type id.
    pub gguf: Option<u32>,
}

/// A compiled set.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Formatted Rust.
    pub code: String,
    /// What is listed in the registry.
    pub kernels: Vec<emit::Listed>,
}

/// Compiles a checked set.
pub fn compile(set: &SpecSet, sources: &[SourceFile], options: &Options) -> Result<Compiled, Vec<Error>> {
    let (text, kernels) = emit::emit(set, sources, options)?;
    let code = format_rust(&text).map_err(|error| vec![error])?;
    Ok(Compiled { code, kernels })
}

/// Formats emitted text.
fn format_rust(text: &str) -> Result<String, Error> {
    let file = syn::parse_file(text).map_err(|error| {
        let line = error.span().start().line;
        let near = text.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
        Error::Emitted { message: format!("{error} near `{near}`") }
    })?;
    Ok(format!(
        "// @generated by gristmill-codegen {}. Change the specs, not this file.\n\n{}",
        env!("CARGO_PKG_VERSION"),
        prettyplease::unparse(&file)
    ))
}
