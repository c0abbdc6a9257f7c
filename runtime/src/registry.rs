//! The types of the static registry that generated code fills in.
//!
//! An [`Entry`] can only be written with the function it names, so an entry whose code is not in the
//! binary does not link.

use crate::abi::{DequantizeFn, MatmulFn, PackFn, QuantizeActivationsFn, QuantizeFn, StepFn, UnpackFn};
use crate::decide::Candidate;
use crate::error::Error;
use crate::names;
use gristmill_spec::vocab::{DType, DeviceKind, FeatureSet, Isa, Op};
use std::sync::atomic::AtomicU64;

/// Everything one build knows: formats, kernels, and what was described but not compiled.
#[derive(Debug)]
pub struct Registry {
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
    /// Formats that were described but left out of this build.
    pub left_out: &'static [LeftOut],
    /// The specs this build was made from, so that tools can show and re-read them.
    pub sources: &'static [Source],
}

/// A format that is described but not compiled.
#[derive(Clone, Copy, Debug)]
pub struct LeftOut {
    /// The format.
    pub format: &'static str,
    /// The cargo feature that would compile it.
    pub feature: &'static str,
    /// GGUF type id.
    pub gguf: Option<u32>,
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

/// A weight format, as far as the runtime needs it.
#[derive(Clone, Copy, Debug)]
pub struct FormatInfo {
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

/// A kernel whose code is in this binary.
#[derive(Debug)]
pub struct Entry {
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
    /// Instruction set.
    pub isa: Isa,
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
    /// Matrix product.
    Matmul {
        /// The product.
        run: MatmulFn,
        /// How weights are packed for it; `None`: it reads the format's own rows.
        packing: Option<&'static PackInfo>,
        /// How a row of activations is divided for it.
        unit: Unit,
    },
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
    /// (elements, padded elements, units) of a row of `k`.
    pub fn of_row(&self, k: usize) -> (usize, usize, usize) {
        let elements = if self.elements == 0 { k.max(1) } else { self.elements };
        (elements, elements.next_multiple_of(self.multiple), k.div_ceil(elements).max(1))
    }
}

/// How a format's rows go into a packing.
#[derive(Clone, Copy, Debug)]
pub struct PackInfo {
    /// Name of the packing.
    pub name: &'static str,
    /// Rows of a panel.
    pub rows: usize,
    /// Bits of a packed code.
    pub bits: usize,
    /// Packed weights have scales per unit.
    pub scales: bool,
    /// Packed weights have minimum terms per unit.
    pub mins: bool,
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

impl Registry {
    /// The weight format of this name, with its index.
    ///
    /// # Errors
    /// [`Error::NotCompiled`] if it was left out of this build, else [`Error::UnknownFormat`].
    pub fn format(&'static self, name: &str) -> Result<(usize, &'static FormatInfo), Error> {
        if let Some(found) = self.formats.iter().enumerate().find(|(_, format)| format.name == name) {
            return Ok(found);
        }
        if let Some(left_out) = self.left_out.iter().find(|left_out| left_out.format == name) {
            return Err(Error::NotCompiled { format: left_out.format, feature: left_out.feature });
        }
        let known: Vec<&'static str> = self.formats.iter().map(|format| format.name).collect();
        let nearest = names::nearest(name, known.iter().copied());
        Err(Error::UnknownFormat { name: name.to_owned(), nearest, known })
    }

    /// The entry of this name.
    pub(crate) fn entry(&'static self, name: &str) -> Result<Candidate, Error> {
        self.entries
            .iter()
            .enumerate()
            .find(|(_, entry)| entry.name == name)
            .map(|(index, entry)| Candidate { index, entry })
            .ok_or_else(|| Error::UnknownKernel {
                name: name.to_owned(),
                nearest: names::nearest(name, self.entries.iter().map(|entry| entry.name)),
            })
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
