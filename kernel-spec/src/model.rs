//! Checked specs: what the parser hands to the compiler. Nothing in here can be wrong in a way that
//! a user could have written; every name is resolved to an index or a word of the vocabulary.

mod format;
mod fp4;
mod ident;
mod kernel;
mod origin;
mod packing;
mod quantizer;

pub use format::*;
pub use fp4::*;
pub use ident::*;
pub use kernel::*;
pub use origin::*;
pub use packing::*;
pub use quantizer::*;

use crate::vocab::Serves;

/// Everything that was read and checked together.
#[derive(Clone, Debug, Default)]
pub struct SpecSet {
    /// Weight formats, sorted by name.
    pub formats: Vec<Format>,
    /// Activation formats, sorted by name.
    pub activations: Vec<Activations>,
    /// Packings, sorted by name.
    pub packings: Vec<Packing>,
    /// Kernel families in the order of [`Kernel::precedence`].
    pub kernels: Vec<Kernel>,
    /// Import layouts, sorted by name.
    pub imports: Vec<Import>,
    /// Formats of which coverage files require kernels.
    pub required: Vec<Required>,
    /// What CUDA kernels are compiled for.
    pub cuda: CudaTargets,
    /// Every file that was read, for `rerun-if-changed`.
    pub files: Vec<std::path::PathBuf>,
}

/// A format (or activation format) of which a coverage file requires kernels, which the checks have found described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Required {
    /// The coverage file.
    pub file: String,
    /// The format's name.
    pub name: String,
}

impl SpecSet {
    /// Keeps the formats whose place in `keep` is true, in kernels too, and the import layouts of those formats.
    pub fn retain_formats(&mut self, keep: &[bool]) {
        let kept = |index: usize| keep.get(index).copied().unwrap_or(true);
        let moved: Vec<usize> =
            (0..self.formats.len()).map(|i| (0..i).filter(|&earlier| kept(earlier)).count()).collect();
        for kernel in self.kernels.iter_mut().filter(|k| k.op.info().serves == Serves::Formats) {
            let cpu = kernel.cpu.iter_mut().map(|variant| &mut variant.formats);
            let cuda = kernel.cuda.iter_mut().filter_map(|variant| variant.formats.as_mut());
            for formats in cpu.chain(cuda).chain([&mut kernel.formats]) {
                formats.retain(|&i| kept(i));
                for index in formats {
                    *index = moved[*index];
                }
            }
        }
        self.imports.retain(|import| kept(import.format));
        for import in &mut self.imports {
            import.format = moved[import.format];
        }
        let mut index = 0;
        self.formats.retain(|_| {
            index += 1;
            kept(index - 1)
        });
    }
}
