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
mod image;
mod joined;
mod lists;
mod lookup;
mod tier;
mod vouched;

#[cfg(feature = "cuda")]
pub(crate) use image::images_for;
pub use image::{CudaImage, CudaUsage};
pub(crate) use image::{NoImage, image_for};
pub use tier::Tier;
pub use vouched::{
    Code, CudaCode, CudaLaunch, Entry, EntryFacts, FormatFacts, FormatInfo, PackFacts, PackInfo, Registry,
    RegistryFacts,
};

use gristmill_spec::Fnv;
use gristmill_spec::vocab::{CudaArch, Op, PrologueStep};
use std::sync::atomic::{AtomicU32, AtomicU64};

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

/// A product whose k may be divided over CUDA blocks (split-K), the layers of a grid: its rows are one integer sum each. How the
/// number of layers follows from this is in `docs/cuda.md`.
#[derive(Clone, Copy, Debug)]
pub struct CudaSplit {
    /// Elements of k that a CUDA block takes at a time.
    pub stage: u32,
    /// Cycles that a multiprocessor takes for them, as an estimate.
    pub cycles: u32,
    /// Occupancy that pays: CUDA blocks of a multiprocessor that take a stage in the time of one.
    pub blocks_per_sm: u32,
}

/// The kernel in front of a product of floats that takes activations in stages of some bytes: FP4 with its scales.
#[derive(Clone, Copy, Debug)]
pub struct CudaRowsQuantizer {
    /// Name in the image.
    pub function: &'static str,
    /// Threads of a CUDA block.
    pub threads: u32,
    /// Elements of a stage; rows are whole ones.
    pub elements: u32,
    /// Bytes of a stage.
    pub bytes: u32,
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
    /// What kernels of the op `prologue` may do to a row before, in this order.
    pub prologue: &'static [PrologueStep],
}

/// Identity of a kernel: a hash of its spec, variant, compiler and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(pub u64);

impl KernelId {
    /// The identity of a kernel with a body by hand: of what is generated around it, and of the body's text (`BODY`, which
    /// `#[variant]` leaves beside the function). 64-bit FNV-1a of both.
    pub const fn with_body(self, body: u64) -> KernelId {
        KernelId(Fnv::EMPTY.with(&self.0.to_le_bytes()).with(&body.to_le_bytes()).get())
    }
}

impl std::fmt::Display for KernelId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
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

    /// (elements, padded elements, units) of a row of `k`; `usize::MAX` padded elements for a multiple that there is not.
    pub fn of_row(&self, k: usize) -> (usize, usize, usize) {
        let elements = if self.elements == 0 { k.max(1) } else { self.elements };
        let padded = elements.checked_next_multiple_of(self.multiple).unwrap_or(usize::MAX);
        (elements, padded, k.div_ceil(elements).max(1))
    }
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
    /// Classes of shapes that it has run in while first runs were marked, a bit for each.
    pub(crate) tried: AtomicU32,
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
            tried: AtomicU32::new(0),
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
