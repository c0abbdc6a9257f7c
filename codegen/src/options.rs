//! What a compilation needs to know besides the specs.

use crate::cuda::compile::Usage;
use gristmill_spec::vocab::CudaArch;

/// What a compilation needs to know besides the specs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The crate that is built, for the registry.
    pub package: String,
    /// Compiler, target and flags, as they go into kernel identities.
    pub compiler: String,
    /// The same for the compilers of bodies in C and C++; empty where none was compiled.
    pub c_compiler: String,
    /// Formats and import layouts that were described but not selected.
    pub left_out: Vec<LeftOut>,
    /// Path of the runtime as the built crate can name it; empty: [`RUNTIME`].
    pub runtime: String,
    /// What there is for GPUs.
    pub cuda: CudaImages,
}

impl Options {
    /// The path of the runtime.
    pub(crate) fn runtime_path(&self) -> &str {
        if self.runtime.is_empty() { RUNTIME } else { &self.runtime }
    }
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
    /// Name of its [`cuda::Unit`](crate::cuda::Unit).
    pub unit: String,
    /// Its architecture.
    pub arch: CudaArch,
    /// PTX text and not machine code.
    pub ptx: bool,
    /// The CUDA that a driver must support to load it, major and minor.
    pub driver: (u32, u32),
    /// What its functions use; empty for PTX.
    pub usage: Vec<Usage>,
    /// Bytes of the image.
    pub size: usize,
    /// Absolute path of the file, which holds it deflated (RFC 1951).
    pub path: std::path::PathBuf,
}

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

/// Path of the runtime in generated code, for crates that depend on `gristmill`.
pub const RUNTIME: &str = "::gristmill::runtime";
