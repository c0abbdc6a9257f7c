//! Facts that somebody answers for: what handles believe, and what only `unsafe` functions make.
//!
//! A value can be read like its facts (`entry.name`), and neither be put together from parts nor changed: its field is
//! private, nothing hands out `&mut` to it, and no trait makes one from outside data.

use super::{Code, CudaCode, CudaLaunch, EntryFacts, FormatFacts, PackFacts, RegistryFacts};
use gristmill_spec::vocab::Precision;

/// A kernel whose code is in this binary. Its facts are its fields: `entry.name`, `entry.features`.
///
/// Generated code makes entries. No safe code can, whatever it takes from another one:
///
/// ```compile_fail,E0423
/// use gristmill_runtime::registry::{Entry, EntryFacts};
/// fn forged(real: &'static Entry) -> Entry {
///     Entry(EntryFacts { format: real.format + 1, ..*real.facts() })
/// }
/// ```
///
/// ```compile_fail,E0133
/// use gristmill_runtime::registry::{Entry, EntryFacts};
/// fn forged(real: &'static Entry) -> Entry {
///     Entry::new(EntryFacts { format: real.format + 1, ..*real.facts() })
/// }
/// ```
#[derive(Debug)]
pub struct Entry(EntryFacts);

/// A weight format, as far as the runtime needs it. Its facts are its fields: `format.elements`, `format.bytes`.
///
/// No safe code makes or changes one:
///
/// ```compile_fail,E0594
/// use gristmill_runtime::registry::FormatInfo;
/// fn forged(real: &'static FormatInfo) -> FormatInfo {
///     let mut copy = *real;
///     copy.elements = 1;
///     copy
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FormatInfo(FormatFacts);

/// How a format's rows go into a packing. Its facts are its fields: `packing.rows`, `packing.tile_bytes`.
#[derive(Clone, Copy, Debug)]
pub struct PackInfo(PackFacts);

/// Everything one build knows: formats, kernels, and what was described but not compiled. Its tables are its fields:
/// `registry.formats`, `registry.entries`.
#[derive(Debug)]
pub struct Registry(RegistryFacts);

/// Reading and making: the same for all four.
macro_rules! vouched {
    ($($vouched:ident: $facts:ident, $these:literal;)*) => {$(
        impl $vouched {
            #[doc = concat!("What is said of ", $these, ", where a constant is computed (elsewhere they are fields).")]
            pub const fn facts(&self) -> &$facts {
                &self.0
            }
        }

        // Not `DerefMut`: what was vouched for stays as it was.
        impl std::ops::Deref for $vouched {
            type Target = $facts;

            fn deref(&self) -> &$facts {
                &self.0
            }
        }
    )*};
}

vouched! {
    Entry: EntryFacts, "the kernel";
    FormatInfo: FormatFacts, "the format";
    PackInfo: PackFacts, "the packing";
    Registry: RegistryFacts, "the build";
}

impl Entry {
    /// The entry of which `facts` are true. Facts that contradict each other do not compile.
    ///
    /// # Safety
    ///
    /// Generated code proves this by writing the facts and the code from one plan; for a body written by hand, who marked it
    /// with `#[variant]` answers.
    ///
    /// * Each function of `code` does what its type in [`abi`](crate::abi) says, for buffers of the sizes that follow from the
    ///   format at index `format` of the registry in which the entry will stand (an activation format for
    ///   `quantize_activations`), from `code`'s packing and from its unit, for each shape that `shape` allows, whatever the
    ///   bytes of its operands.
    /// * It uses no feature of a processor that is not in `features`, but what every processor of its architecture has.
    /// * The functions of an image take the parameters that `docs/cuda.md` lists, and stay within the memory that these
    ///   name when launched with the geometry of `code`.
    pub const unsafe fn new(facts: EntryFacts) -> Entry {
        match facts.contradiction() {
            None => Entry(facts),
            Some(what) => panic!("{}", what),
        }
    }

    /// Whether it is a product that quantizes its activations itself: it takes floats alone.
    pub const fn quantizes_activations(&self) -> bool {
        matches!(self.0.code, Code::Cuda(CudaCode { launch: CudaLaunch::Matmul { fused: true, .. }, .. }))
    }

    /// What a product multiplies; `None` for what is no product.
    pub const fn precision(&self) -> Option<Precision> {
        match &self.0.code {
            Code::Cuda(CudaCode { launch: CudaLaunch::Rows { precision, .. }, .. }) => Some(*precision),
            _ if self.0.op.info().product => Some(Precision::Int8),
            _ => None,
        }
    }
}

impl FormatInfo {
    /// The format of which `facts` are true. Facts that contradict each other do not compile.
    ///
    /// # Safety
    ///
    /// Generated code proves this by writing the facts and the kernels from one spec.
    ///
    /// * Every kernel and every packing for this format reads and writes blocks of `bytes` bytes for `elements` elements, and
    ///   nothing else of a row behind its header.
    /// * Any two formats of one name and of equal sizes have blocks of one layout, since handles take weights of either.
    pub const unsafe fn new(facts: FormatFacts) -> FormatInfo {
        match facts.contradiction() {
            None => FormatInfo(facts),
            Some(what) => panic!("{}", what),
        }
    }
}

impl PackInfo {
    /// The packing of which `facts` are true. Facts that contradict each other do not compile.
    ///
    /// # Safety
    ///
    /// Generated code proves this by writing the facts, `pack`, `unpack` and the kernels that read the packing from one plan.
    ///
    /// * `pack` and `unpack` do what their types in [`abi`](crate::abi) say, on any processor, for panels of `rows` rows with
    ///   tiles of `tile_bytes` bytes for `tile_k` elements of each, and as many scales and minimum terms as
    ///   [`terms`](PackInfo::terms) says, where `scales` and `mins` say that there are any.
    /// * Kernels that name the packing read no more than that. Any two packings with equal facts but for the functions have one
    ///   layout, since handles take weights of either.
    pub const unsafe fn new(facts: PackFacts) -> PackInfo {
        match facts.contradiction() {
            None => PackInfo(facts),
            Some(what) => panic!("{}", what),
        }
    }

    /// Words of four bytes that the scales of a panel take, or its minimum terms: an f32 for each unit and row, row
    /// fastest; or super-block after super-block the f32 of each row and behind them the integers of its units (i8), for
    /// scales row fastest, for minimum terms two units side by side. `None` if there are too many.
    pub fn terms(&self, units: usize) -> Option<usize> {
        let shared = units.checked_div(self.runs)?.checked_mul(self.rows)?;
        if self.runs == 1 {
            return Some(shared);
        }
        shared.checked_add(units.checked_mul(self.rows)?.div_ceil(4))
    }
}

impl Registry {
    /// The registry of which `facts` are true. Tables that contradict each other do not compile;
    /// [`check`](Registry::check) finds what a compiler can't.
    ///
    /// # Safety
    ///
    /// Generated code proves this by writing all tables from one set of specs.
    ///
    /// * What [`Entry::new`] asks holds with this registry's `formats` and `activations`: an entry's index is that of the
    ///   format that its code is for.
    /// * The activation format at index `activations` of a weight format is the one whose scales the products of that format
    ///   read, and what quantizes to it writes a scale for each of its `block` elements.
    /// * The functions of `convert` take the parameters that `docs/cuda.md` lists, and stay within the memory that these
    ///   name.
    pub const unsafe fn new(facts: RegistryFacts) -> Registry {
        match facts.contradiction() {
            None => Registry(facts),
            Some(what) => panic!("{}", what),
        }
    }
}
