//! The types of the static registry that generated code fills in.
//!
//! An [`Entry`] can only be written with the function it names, so an entry whose code is not in the
//! binary does not link.
//!
//! Handles call these functions with buffers of the sizes that the registry states, so a false statement would let safe
//! code write behind a slice. What states them is therefore made in two steps: facts, which are plain data that anybody may
//! write ([`EntryFacts`], [`FormatFacts`], [`PackFacts`], [`RegistryFacts`]), and the values that handles believe
//! ([`Entry`], [`FormatInfo`], [`PackInfo`], [`Registry`]), which only an `unsafe` function makes of them and which nobody
//! can change. All other types here are plain data too: a handle reads them out of a [`Registry`] and from nowhere else.

mod check;
mod lookup;
mod vouched;

pub use vouched::{Entry, FormatInfo, PackInfo, Registry};

use crate::abi::{
    DequantizeFn, EmbedFn, MatmulFn, PackFn, QuantizeActivationsFn, QuantizeFn, StepFn, UnpackFn,
};
use crate::gpu::CudaVersion;
use gristmill_spec::vocab::{CudaArch, DType, DeviceKind, FeatureSet, Isa, Op, Precision};
use std::sync::atomic::AtomicU64;

/// What a [`Registry`] is made of: formats, kernels, and what was described but not compiled.
#[derive(Clone, Copy, Debug)]
pub struct RegistryFacts {
    /// The crate that was built.
    pub package: &'static str,
    /// Weight formats, sorted by name.
    pub formats: &'static [FormatInfo],
    /// Activation formats, sorted by name.
    pub activations: &'static [ActivationInfo],
    /// Every kernel whose code is in this binary.
    pub entries: &'static [Entry],
    /// The entries (as indices, in order of preference) for an op, a format (index into `formats`, or
    /// into `activations` for `quantize_activations`), an input type and a kind of device.
    /// Generated as a match without a wildcard.
    pub candidates: fn(Op, usize, DType, DeviceKind) -> &'static [u16],
    /// Import layouts of these formats, sorted by name.
    pub imports: &'static [ImportInfo],
    /// Formats and import layouts that were described but left out of this build.
    pub left_out: &'static [LeftOut],
    /// Whether CUDA kernels were built, by what and for which architectures.
    pub cuda: CudaBuild,
    /// CUDA kernels that are described for formats of this build, but have no image in it.
    pub without_image: &'static [WithoutImage],
    /// Conversions between f32, f16 and bf16 on a GPU, where products there need them and an image of them was built.
    pub convert: Option<CudaCode>,
    /// The specs this build was made from, so that tools can show and re-read them.
    pub sources: &'static [Source],
}

/// How another program interleaves the rows of a format: panels of rows, in which tiles of a block of each row follow one
/// another.
#[derive(Clone, Copy, Debug)]
pub struct ImportInfo {
    /// Name: the file's stem.
    pub name: &'static str,
    /// One line for people.
    pub doc: &'static str,
    /// The spec file.
    pub source: &'static str,
    /// Index of the format that the rows have once they are apart.
    pub format: usize,
    /// Rows of a panel.
    pub rows: usize,
    /// Where each bit of a tile goes.
    pub moves: &'static [Move],
}

/// Some neighbouring bits of a tile, bit 0 the lowest of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// First bit in the tile.
    pub from: u32,
    /// Row of the panel.
    pub row: u32,
    /// First bit in that row's block.
    pub to: u32,
    /// How many, 1 to 32.
    pub bits: u32,
}

/// A format or import layout that is described but not compiled.
#[derive(Clone, Copy, Debug)]
pub struct LeftOut {
    /// The format, or the import layout.
    pub format: &'static str,
    /// The cargo feature that would compile it.
    pub feature: &'static str,
    /// GGUF type id.
    pub gguf: Option<u32>,
}

/// What the build did about CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaBuild {
    /// The cargo feature `cuda` is off.
    FeatureOff,
    /// The feature is on, but no compiler was found.
    NoToolchain {
        /// The places looked at, each with what was wrong there.
        looked: &'static [&'static str],
    },
    /// Images were compiled.
    Built {
        /// The compiler and its version.
        compiler: &'static str,
        /// The architectures that images were asked for, machine code first.
        architectures: &'static [CudaArch],
    },
}

/// A CUDA kernel that is described, but that nothing can launch: no image of it was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithoutImage {
    /// Facts in order: `matmul.i2_s.cuda.mma`.
    pub name: &'static str,
    /// What it computes.
    pub op: Op,
    /// Index of the format, or of the activation format.
    pub format: usize,
    /// `file:line` of the variant.
    pub source: &'static str,
    /// What the compiler said for each architecture, where there was one; the first lines of it.
    pub failures: &'static [(CudaArch, &'static str)],
}

/// Code for a GPU in this binary.
#[derive(Clone, Copy)]
pub struct CudaImage {
    /// The architecture it was compiled for.
    pub arch: CudaArch,
    /// PTX text, which the driver compiles for devices from `arch` up, and not machine code.
    pub ptx: bool,
    /// The oldest CUDA of drivers that load it.
    pub driver: CudaVersion,
    /// Bytes of the image.
    pub size: usize,
    /// The image, deflated (RFC 1951).
    pub packed: &'static [u8],
}

impl CudaImage {
    /// The image itself, `size` bytes. `None` where what is packed is no image of that size, which no build makes.
    #[cfg(feature = "cuda")]
    pub fn unpacked(&self) -> Option<Vec<u8>> {
        let bytes = miniz_oxide::inflate::decompress_to_vec_with_limit(self.packed, self.size).ok()?;
        (bytes.len() == self.size).then_some(bytes)
    }
}

impl std::fmt::Debug for CudaImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.ptx { "compute" } else { "sm" };
        write!(f, "{kind}_{} ({} bytes)", self.arch, self.size)
    }
}

/// A kernel of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct CudaCode {
    /// The images that hold it; machine code before PTX. Entries of one unit share the slice.
    pub images: &'static [CudaImage],
    /// The compute capability it needs.
    pub min_cc: (u8, u8),
    /// Its functions wait for the launches in front of them, where the device has an instruction for that, so that they may be
    /// launched before those have ended.
    pub overlaps: bool,
    /// Its functions, and how they are launched.
    pub launch: CudaLaunch,
}

/// A product whose k may be divided over CUDA blocks, the layers of a grid: its rows are one integer sum each. How the
/// number of layers follows from this is in `docs/cuda.md`.
#[derive(Clone, Copy, Debug)]
pub struct CudaSplit {
    /// Elements of k that a CUDA block takes at a time.
    pub stage: u32,
    /// Cycles that a multiprocessor takes for them, as an estimate.
    pub cycles: u32,
    /// CUDA blocks of a multiprocessor that take a stage in the time of one.
    pub together: u32,
}

/// Functions of an image and their geometry; `docs/cuda.md` has the parameters of each.
#[derive(Clone, Copy, Debug)]
pub enum CudaLaunch {
    /// Blocks to f32: a thread does `per_thread` elements.
    Dequantize {
        /// Name in the image.
        function: &'static str,
        /// Threads of a CUDA block.
        threads: u32,
        /// Elements of a thread.
        per_thread: u32,
    },
    /// Rows by index to f32, f16 or bf16: a thread does `per_thread` elements of a row at a time.
    Embed {
        /// Name in the image.
        function: &'static str,
        /// Threads of a CUDA block.
        threads: u32,
        /// Elements of a thread.
        per_thread: u32,
    },
    /// f32 to blocks: a warp, or a CUDA block for searches, does one block of the format.
    Quantize {
        /// Name in the image.
        function: &'static str,
        /// Threads of a CUDA block.
        threads: u32,
        /// Blocks of the format that a CUDA block makes.
        blocks: u32,
        /// The scale of a row or tensor, where it covers more than a block.
        step: Option<CudaStep>,
    },
    /// Activations to int8: a CUDA block does a row.
    QuantizeActivations {
        /// Name in the image.
        function: &'static str,
        /// Threads of a CUDA block.
        threads: u32,
    },
    /// Matrix product.
    Matmul {
        /// Name in the image.
        function: &'static str,
        /// Most threads of a CUDA block.
        threads: u32,
        /// Fewest threads of a CUDA block; any whole number of warps from there to the most will do.
        fewest: u32,
        /// Rows of the weights that a CUDA block does.
        rows: u32,
        /// Tokens that a CUDA block does.
        tokens: u32,
        /// How weights are packed for it.
        packing: &'static PackInfo,
        /// How a row of activations is divided for it.
        unit: Unit,
        /// Whether k may be divided over CUDA blocks, and what that takes.
        split: Option<CudaSplit>,
        /// It takes floats, and each CUDA block quantizes its tokens for itself.
        fused: bool,
    },
    /// Matrix product that multiplies floats and reads the format's own rows.
    Rows {
        /// Name in the image.
        function: &'static str,
        /// The kernel in the same image that looks whether all weights can be used.
        check: &'static str,
        /// Threads of a CUDA block of that.
        check_threads: u32,
        /// What is multiplied.
        precision: Precision,
        /// Most threads of a CUDA block.
        threads: u32,
        /// Fewest threads of a CUDA block; any whole number of warps from there to the most will do.
        fewest: u32,
        /// Rows of the weights that a CUDA block does.
        rows: u32,
        /// Tokens that a CUDA block does.
        tokens: u32,
        /// Bytes of shared memory that a launch gives each CUDA block.
        shared: u32,
    },
    /// f32, f16 or bf16 to another of these.
    Convert {
        /// Name in the image.
        function: &'static str,
        /// Threads of a CUDA block.
        threads: u32,
        /// Elements of a thread.
        per_thread: u32,
    },
}

/// The two kernels that find a scale over many blocks: a statistic of each chunk, then the scale of all chunks.
#[derive(Clone, Copy, Debug)]
pub struct CudaStep {
    /// Statistic of each chunk.
    pub chunks: &'static str,
    /// From the chunks' statistics to the step.
    pub finish: &'static str,
    /// Threads of a CUDA block of the first; a block of the second is one warp.
    pub threads: u32,
    /// Values of a chunk.
    pub chunk: u32,
}

/// A spec file as it was when the build ran.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// For example `kernel-spec/formats/i2_s.toml`.
    pub path: &'static str,
    /// Its bytes.
    pub bytes: &'static [u8],
}

/// A number type outside blocks (row header, tensor tail).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OuterType {
    /// Two bytes, IEEE binary16.
    F16,
    /// Two bytes, bfloat16.
    Bf16,
    /// Four bytes, IEEE binary32.
    F32,
}

/// What a [`FormatInfo`] says of a weight format.
#[derive(Clone, Copy, Debug)]
pub struct FormatFacts {
    /// Name.
    pub name: &'static str,
    /// One line for people.
    pub doc: &'static str,
    /// Where it is described.
    pub source: &'static str,
    /// GGUF type id.
    pub gguf: Option<u32>,
    /// Elements of a block.
    pub elements: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// Scalar before the blocks of each row.
    pub row_header: Option<OuterType>,
    /// Scalar behind all blocks of a tensor, and the bytes of that tail.
    pub tensor_tail: Option<(OuterType, usize)>,
    /// Names of its quantizers, the default first.
    pub quantizers: &'static [&'static str],
    /// Index of its activation format.
    pub activations: usize,
}

/// An activation format, as far as the runtime needs it.
#[derive(Clone, Copy, Debug)]
pub struct ActivationInfo {
    /// Name.
    pub name: &'static str,
    /// One line for people.
    pub doc: &'static str,
    /// Where it is described.
    pub source: &'static str,
    /// Elements that share a scale; `None`: the whole row.
    pub block: Option<usize>,
    /// Values are `q / scale` (true) or `q * scale` (false).
    pub keeps_multiplier: bool,
}

/// Identity of a kernel: a hash of its spec, variant, compiler and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(pub u64);

impl std::fmt::Display for KernelId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What an [`Entry`] says of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct EntryFacts {
    /// Identity, for receipts and caches.
    pub id: KernelId,
    /// Facts in order: `matmul.i2_s.avx512.avx512vnni.decode`.
    pub name: &'static str,
    /// What it computes.
    pub op: Op,
    /// Index of the format.
    pub format: usize,
    /// Index of the quantizer in the format's list (quantize only).
    pub quantizer: usize,
    /// Kind of device it runs on.
    pub device: DeviceKind,
    /// Instruction set of the processor; `None` for kernels of other devices.
    pub isa: Option<Isa>,
    /// CPU features it uses: those of the ISA and those it requires besides.
    pub features: FeatureSet,
    /// Shapes it takes.
    pub shape: ShapeRules,
    /// `file:line` of the variant.
    pub source: &'static str,
    /// What the compiler chose, in words.
    pub plan: &'static str,
    /// The code.
    pub code: Code,
    /// What its launches did.
    pub counters: &'static Counters,
}

/// The code of an entry.
#[derive(Clone, Copy, Debug)]
pub enum Code {
    /// Blocks to f32.
    Dequantize(DequantizeFn),
    /// f32 to blocks; with `step` where the scale covers more than a block.
    Quantize {
        /// Scale of a row or tensor.
        step: Option<StepFn>,
        /// The blocks.
        blocks: QuantizeFn,
    },
    /// Activations to int8.
    QuantizeActivations(QuantizeActivationsFn),
    /// Rows to values of a type.
    Embed(EmbedFn),
    /// Matrix product.
    Matmul {
        /// The product.
        run: MatmulFn,
        /// How weights are packed for it; `None`: it reads the format's own rows.
        packing: Option<&'static PackInfo>,
        /// How a row of activations is divided for it.
        unit: Unit,
    },
    /// A kernel of a GPU.
    Cuda(CudaCode),
}

impl Code {
    /// How weights are packed for it; `None` for what is no product, or reads the format's own rows.
    pub fn packing(&self) -> Option<&'static PackInfo> {
        match self {
            Code::Matmul { packing, .. } => *packing,
            Code::Cuda(CudaCode { launch: CudaLaunch::Matmul { packing, .. }, .. }) => Some(packing),
            _ => None,
        }
    }
}

/// The run of elements along k over which sums are integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Elements; 0: the whole row.
    pub elements: usize,
    /// A unit's size in packed weights and activations is a multiple of this.
    pub multiple: usize,
}

impl Unit {
    /// The whole row, of any length.
    pub(crate) const ROW: Unit = Unit { elements: 0, multiple: 1 };

    /// (elements, padded elements, units) of a row of `k`.
    pub fn of_row(&self, k: usize) -> (usize, usize, usize) {
        let elements = if self.elements == 0 { k.max(1) } else { self.elements };
        (elements, elements.next_multiple_of(self.multiple), k.div_ceil(elements).max(1))
    }
}

/// What a [`PackInfo`] says of a format's rows in a packing.
#[derive(Clone, Copy, Debug)]
pub struct PackFacts {
    /// Name of the packing.
    pub name: &'static str,
    /// Rows of a panel.
    pub rows: usize,
    /// Elements of a row in a tile.
    pub tile_k: usize,
    /// Bytes of a tile: all rows of a panel, `tile_k` elements each.
    pub tile_bytes: usize,
    /// Packed weights have scales per unit.
    pub scales: bool,
    /// Packed weights have minimum terms per unit.
    pub mins: bool,
    /// Units of a super-block, which share an f32 scale and minimum term and have an integer each; 1 where
    /// each unit has its own f32.
    pub runs: usize,
    /// Integer value of operand 0.
    pub min: i32,
    /// Operand of each code, where codes are looked up.
    pub table: Option<&'static [u8; 16]>,
    /// Into the packing.
    pub pack: PackFn,
    /// And back.
    pub unpack: UnpackFn,
}

/// Bounds on one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DimRule {
    /// Smallest allowed.
    pub min: u64,
    /// Largest allowed.
    pub max: u64,
    /// Must be a multiple of this.
    pub multiple_of: u64,
}

/// Bounds on a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeRules {
    /// Tokens.
    pub m: DimRule,
    /// Outputs.
    pub n: DimRule,
    /// Inner dimension.
    pub k: DimRule,
}

/// What launches of one kernel did. Written only by the launch path of this package.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) launches: AtomicU64,
    /// Launches whose time was taken; the others are in no time sum.
    pub(crate) timed: AtomicU64,
    pub(crate) nanoseconds: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
}

impl Counters {
    /// Counters at zero.
    pub const fn new() -> Counters {
        Counters {
            launches: AtomicU64::new(0),
            timed: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
        }
    }
}

/// Whether two names are equal, at compile time: how a hand-written body is held to its variant.
pub const fn same_name(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}
