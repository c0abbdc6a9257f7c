//! Kernel families and their variants.

use super::Origin;
use crate::comments::without_comments;
use crate::read::is_shipped;
use crate::vocab::{CudaActivations, CudaAlgorithm, CudaArch, CudaSums, DType, Feature, Isa, Op, Strategy};

/// A kernel family: one op, and the variants that are built for it.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// File stem.
    pub name: String,
    /// One line for people.
    pub doc: String,
    /// What it computes.
    pub op: Op,
    /// Where it is described.
    pub origin: Origin,
    /// Indices into [`SpecSet::formats`](super::SpecSet::formats) (or [`SpecSet::activations`](super::SpecSet::activations) for `quantize_activations`).
    pub formats: Vec<usize>,
    /// Accepted input types (matmul, quantize).
    pub input: Vec<DType>,
    /// Output type (matmul, dequantize).
    pub output: DType,
    /// CPU variants in the order of the file.
    pub cpu: Vec<CpuVariant>,
    /// CUDA variants in the order of the file.
    pub cuda: Vec<CudaVariant>,
}

impl Kernel {
    /// What families are in order by: those of a user's own files before the shipped ones, each by name. Where nothing else decides
    /// between variants, that of the earlier family is chosen, and in a family the earlier one.
    pub fn precedence(&self) -> (bool, &str) {
        (self.is_shipped(), &self.name)
    }

    /// Whether it is one of the shipped specs.
    pub fn is_shipped(&self) -> bool {
        is_shipped(&self.origin.file)
    }
}

/// One CPU variant of a kernel family.
#[derive(Clone, Debug)]
pub struct CpuVariant {
    /// Instruction set.
    pub isa: Isa,
    /// Features beyond those of the ISA.
    pub requires: Vec<Feature>,
    /// Name that tells it from a sibling of the same ISA and features (`decode`, `prefill`); may be empty.
    pub label: String,
    /// Serves formats whose codes take at most so many bits in a packing; `None`: whatever they take.
    pub code_bits: Option<u32>,
    /// Serves formats whose weights take exactly these integers; `None`: whatever they take.
    pub levels: Option<Vec<i32>>,
    /// Chosen untuned without being asked for; else it comes after all others.
    pub by_default: bool,
    /// The formats of the family that this leaves, as [`Kernel::formats`].
    pub formats: Vec<usize>,
    /// Index into [`SpecSet::packings`](super::SpecSet::packings); `None`: reads the format's own blocks.
    pub packing: Option<usize>,
    /// How a product with a packing is computed.
    pub strategy: Strategy,
    /// Rows computed at once; 0 where it does not apply.
    pub rows: u32,
    /// Tokens computed at once; 0 where it does not apply.
    pub tokens: u32,
    /// Shapes it takes.
    pub shape: ShapeRules,
    /// A hand-written function that stands in for the generated body.
    pub body: Option<CpuBody>,
    /// Where it is described.
    pub origin: Origin,
}

impl CpuVariant {
    /// Whether it leaves those of its formats to other variants that do not go with its strategy. Which these are only a plan can tell.
    pub fn leaves_formats(&self) -> bool {
        match self.strategy {
            Strategy::Staged | Strategy::Tiles => true,
            Strategy::Lookup => self.code_bits.is_some(),
            Strategy::Multiply => false,
        }
    }
}

/// One CUDA variant of a kernel family.
#[derive(Clone, Debug)]
pub struct CudaVariant {
    /// The skeleton its code is written by.
    pub algorithm: CudaAlgorithm,
    /// The lowest compute capability it runs on.
    pub min_cc: (u8, u8),
    /// Name that tells it from a sibling of the same algorithm; may be empty.
    pub label: String,
    /// The formats of the family that it serves; `None`: all of them.
    pub formats: Option<Vec<usize>>,
    /// Index into [`SpecSet::packings`](super::SpecSet::packings); `None`: works on the format's own blocks.
    pub packing: Option<usize>,
    /// Who quantizes the activations of a product of integers.
    pub activations: CudaActivations,
    /// Of the formats those that a product by warpgroups serves.
    pub sums: CudaSums,
    /// Tokens that a CUDA block computes at once; 0 where it does not apply.
    pub tokens: u32,
    /// Threads of a CUDA block, a multiple of 32; 0 where it does not apply.
    pub threads: u32,
    /// Shapes it takes.
    pub shape: ShapeRules,
    /// What its image may use.
    pub budget: CudaBudget,
    /// A hand-written kernel that stands in for the generated one.
    pub body: Option<CudaBody>,
    /// Where it is described.
    pub origin: Origin,
}

/// A hand-written function for a processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuBody {
    /// The path of a Rust function, which `#[variant]` marks.
    Rust(String),
    /// A function in C or C++.
    C(CBody),
}

/// A hand-written function in C or C++.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CBody {
    /// The file, as people should see it.
    pub file: String,
    /// All of its text and that of the files that it includes in quotes, each behind its name.
    pub text: String,
    /// The function in there.
    pub function: String,
    /// Where the kernel's spec names the file.
    pub named: std::ops::Range<usize>,
}

impl CBody {
    /// Whether it is C++.
    pub fn is_cpp(&self) -> bool {
        !self.file.ends_with(".c")
    }
}

/// The header with what C bodies are given, which the compiler makes: the one file that they may include in quotes though it
/// does not lie beside them.
pub const C_HEADER: &str = "gristmill.h";

/// A hand-written CUDA kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaBody {
    /// The file, as people should see it.
    pub file: String,
    /// All of its text.
    pub text: String,
    /// The kernel in there.
    pub function: String,
}

impl CudaBody {
    /// Whether it says that it waits for the launches in front of it, and so may be launched before those have ended.
    pub fn waits(&self) -> bool {
        without_comments(&self.text).contains("gm_wait_for_previous();")
    }

    /// Whether it knows of the layers of a grid, over which k may be divided.
    pub fn divides_k(&self) -> bool {
        without_comments(&self.text).contains("gm_blocks_z()")
    }
}

/// What a kernel's image may use; more fails the build of the image by name. Spills are never allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaBudget {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory of a CUDA block.
    pub shared: u32,
}

impl Default for CudaBudget {
    /// The most that every architecture allows: 255 registers, 48 KiB.
    fn default() -> Self {
        CudaBudget { registers: 255, shared: 48 * 1024 }
    }
}

/// The architectures that CUDA images are compiled for (`cuda.toml`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaTargets {
    /// Machine code, ascending.
    pub architectures: Vec<CudaArch>,
    /// Machine code, ascending, of those kernels alone that no other architecture can run.
    pub specific: Vec<CudaArch>,
    /// PTX, ascending: what drivers compile that have no machine code for their device, or are too old for it.
    pub ptx: Vec<CudaArch>,
}

/// Rules on one dimension; a missing bound is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DimRule {
    /// Smallest allowed.
    pub min: u64,
    /// Largest allowed.
    pub max: u64,
    /// Must be a multiple of this.
    pub multiple_of: u64,
}

impl Default for DimRule {
    fn default() -> Self {
        DimRule { min: 0, max: u64::MAX, multiple_of: 1 }
    }
}

impl DimRule {
    /// Whether every number that follows this rule follows `outer` too.
    pub(crate) fn within(&self, outer: &DimRule) -> bool {
        self.min >= outer.min && self.max <= outer.max && self.multiple_of.is_multiple_of(outer.multiple_of)
    }
}

/// Rules on m, n and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ShapeRules {
    /// Rows of the activations (tokens).
    pub m: DimRule,
    /// Rows of the weights (outputs).
    pub n: DimRule,
    /// Inner dimension.
    pub k: DimRule,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_wait_and_divide_k_in_code_alone() {
        let of = |text: &str| {
            let body = CudaBody { file: String::new(), text: text.to_owned(), function: String::new() };
            (body.waits(), body.divides_k())
        };
        assert_eq!(of("gm_wait_for_previous(); u32 z = gm_blocks_z();"), (true, true));
        assert_eq!(of("// gm_wait_for_previous();\n/* gm_blocks_z() */"), (false, false));
    }
}
