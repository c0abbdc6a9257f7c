//! Facts, and those that somebody answers for: what handles believe, and what only `unsafe` functions make.
//!
//! Facts are plain data. A value made of them can be read like them (`entry.name`), and neither be put together from parts
//! nor changed: its field is private, nothing hands out `&mut` to it, and no trait makes one from outside data.

use super::image::CudaImage;
use super::lists::Joined;
use super::{
    ActivationInfo, Counters, CudaBuild, CudaRowsQuantizer, CudaSplit, CudaStep, ImportInfo, KernelId,
    LeftOut, OuterType, ShapeRules, Source, Unit, WithoutImage,
};
use crate::abi::{
    DequantizeFn, EmbedFn, MatmulFn, PackFn, PrologueFn, QuantizeActivationsFn, QuantizeFn, StepFn, UnpackFn,
};
use gristmill_spec::vocab::{CudaAlgorithm, DType, DeviceKind, FeatureSet, Isa, Op, Precision};

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
pub struct Registry(RegistryFacts, Option<&'static Joined>);

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
    ///   [`scale_words`](PackInfo::scale_words) and [`min_words`](PackInfo::min_words) say.
    /// * Kernels that name the packing read no more than that. Any two packings with equal facts but for the functions have one
    ///   layout, since handles take weights of either.
    pub const unsafe fn new(facts: PackFacts) -> PackInfo {
        match facts.contradiction() {
            None => PackInfo(facts),
            Some(what) => panic!("{}", what),
        }
    }

    /// Words of four bytes that the scales of a panel take: a number of `scale_bytes` for each `span` units and row, row fastest; or
    /// super-block after super-block the number of each row and behind them the integers of its units (i8, or two rows to a byte), row
    /// fastest, and the flags of each row. Of two rows in a byte the one in the lower half of the panel has the low nibble, and a nibble is a
    /// code, of which [`meaning`](PackFacts::meaning) says the integer. `None` if there are too many.
    pub fn scale_words(&self, units: usize) -> Option<usize> {
        self.words(units, self.scale_bytes, self.scale_integer_bits, self.flag_bits)
    }

    /// The same for minimum terms, of `min_bytes` each; the bytes of two units lie side by side.
    pub fn min_words(&self, units: usize) -> Option<usize> {
        self.words(units, self.min_bytes, self.min_integer_bits, 0)
    }

    fn words(&self, units: usize, bytes: usize, integer_bits: usize, flag_bits: usize) -> Option<usize> {
        if bytes == 0 {
            return Some(0);
        }
        let superblocks = units.checked_div(self.runs)?;
        let shared = superblocks.div_ceil(self.span).checked_mul(self.rows)?.checked_mul(bytes)?.div_ceil(4);
        if self.runs == 1 {
            return Some(shared);
        }
        let integers = units.checked_mul(self.rows)?.checked_mul(integer_bits)?.div_ceil(32);
        let flags = superblocks.checked_mul(self.rows)?.checked_mul(flag_bits)?.div_ceil(32);
        shared.checked_add(integers)?.checked_add(flags)
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
    /// * The functions of `convert` and `experts` take the parameters that `docs/cuda.md` lists, and stay within the memory that these
    ///   name.
    pub const unsafe fn new(facts: RegistryFacts) -> Registry {
        match facts.contradiction() {
            None => Registry(facts, None),
            Some(what) => panic!("{}", what),
        }
    }

    /// The same with candidates that are tables instead of a function.
    ///
    /// # Safety
    /// As for [`new`](Registry::new).
    pub(super) unsafe fn with_lists(facts: RegistryFacts, lists: &'static Joined) -> Registry {
        Registry(facts, Some(lists))
    }

    /// What it was joined from, if it was.
    pub(super) fn joined_tables(&self) -> Option<&'static Joined> {
        self.1
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
    /// Bytes of a packed scale, of which packed weights have one for each `span` units or super-block: 1, 2 or 4; 0 where they have
    /// none. Four hold an f32, fewer what the format stores.
    pub scale_bytes: usize,
    /// The same for minimum terms.
    pub min_bytes: usize,
    /// Units of a super-block, which share a scale and minimum term and have an integer each; 1 where
    /// each unit has its own scale.
    pub runs: usize,
    /// Units that share a scale and minimum term without integers; 1 elsewhere. Rows are whole numbers of so many units.
    pub span: usize,
    /// Bits of the integer of a unit of a super-block that goes with its scale: 8, or 4 where two rows share a byte, half a
    /// panel apart.
    pub scale_integer_bits: usize,
    /// The same for minimum terms.
    pub min_integer_bits: usize,
    /// Bits that each row has behind the integers of a super-block's scales, as flags of its groups of weights: 0, 8 or 32.
    pub flag_bits: usize,
    /// What codes, scales and integers stand for beyond these sizes, as the compiler writes it: steps of codes, shifts that flags add, types,
    /// factors. Equal for packings that mean the same.
    pub meaning: &'static str,
    /// Integer value of operand 0.
    pub min: i32,
    /// Operand of each code, where codes are looked up.
    pub table: Option<&'static [u8; 16]>,
    /// Into the packing.
    pub pack: PackFn,
    /// And back.
    pub unpack: UnpackFn,
}

/// Functions of an image and their geometry; `docs/cuda.md` has the parameters of each.
#[derive(Clone, Copy, Debug)]
pub enum CudaLaunch {
    /// Values of blocks, one after the other or by rows: a thread does `per_thread` elements at a time.
    Elements {
        /// What they are: the op.
        op: Op,
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
    Activations {
        /// The op: with a prologue or without.
        op: Op,
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
        /// Bytes of shared memory that a launch gives each CUDA block.
        shared: u32,
        /// It takes floats, and each CUDA block quantizes its tokens for itself.
        fused: bool,
        /// Name in the image of the same kernel over tiles of tokens of several matrices, if there is one: one launch for experts.
        grouped: Option<&'static str>,
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
        /// The kernel in the same image that quantizes activations, where the product takes them so.
        quantizer: Option<CudaRowsQuantizer>,
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
    /// What experts need around their products.
    Experts {
        /// Name in the image of the kernel that sorts pairs of tokens and experts.
        route: &'static str,
        /// Name of the one that brings rows of quantized activations together.
        gather: &'static str,
        /// Name of the one that brings results to their places, or adds them up.
        combine: &'static str,
        /// Threads of a CUDA block of both.
        threads: u32,
    },
}

impl CudaLaunch {
    /// Threads of a CUDA block of the function that does the work, at most.
    pub fn threads(&self) -> u32 {
        match *self {
            CudaLaunch::Elements { threads, .. }
            | CudaLaunch::Quantize { threads, .. }
            | CudaLaunch::Activations { threads, .. }
            | CudaLaunch::Matmul { threads, .. }
            | CudaLaunch::Experts { threads, .. }
            | CudaLaunch::Rows { threads, .. }
            | CudaLaunch::Convert { threads, .. } => threads,
        }
    }

    /// The functions that it launches, in order, the one that does the work last, each with the bytes of shared memory that the launch gives a CUDA block beside the
    /// function's own.
    pub fn functions(&self) -> Vec<(&'static str, u32)> {
        match *self {
            CudaLaunch::Elements { function, .. }
            | CudaLaunch::Activations { function, .. }
            | CudaLaunch::Convert { function, .. } => vec![(function, 0)],
            CudaLaunch::Matmul { function, grouped, shared, .. } => {
                grouped.into_iter().map(|grouped| (grouped, 0)).chain([(function, shared)]).collect()
            }
            CudaLaunch::Experts { route, gather, combine, .. } => {
                vec![(route, 0), (gather, 0), (combine, 0)]
            }
            CudaLaunch::Quantize { function, step, .. } => {
                let step = step.into_iter().flat_map(|step| [(step.chunks, 0), (step.finish, 0)]);
                step.chain([(function, 0)]).collect()
            }
            CudaLaunch::Rows { function, check, shared, quantizer, .. } => {
                let quantizer = quantizer.map(|quantizer| (quantizer.function, 0));
                [(check, 0)].into_iter().chain(quantizer).chain([(function, shared)]).collect()
            }
        }
    }
}

/// A kernel of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct CudaCode {
    /// The images that hold it; machine code before PTX. Entries of one unit share the slice.
    pub images: &'static [CudaImage],
    /// The compute capability it needs.
    pub min_cc: (u8, u8),
    /// What its products are taken with.
    pub algorithm: CudaAlgorithm,
    /// Its functions wait for the launches in front of them, where the device has an instruction for that, so that they may be
    /// launched before those have ended.
    pub overlaps: bool,
    /// Its functions, and how they are launched.
    pub launch: CudaLaunch,
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
        /// It weighs errors by the importance of the weights, where that is given.
        weighs: bool,
    },
    /// Activations to int8.
    QuantizeActivations(QuantizeActivationsFn),
    /// Activations through the steps of a prologue to int8.
    Prologue(PrologueFn),
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
    /// The op that it is of; `None` for conversions and what experts need.
    pub(super) const fn op(&self) -> Option<Op> {
        Some(match self {
            Code::Dequantize(_) => Op::Dequantize,
            Code::Quantize { .. } => Op::Quantize,
            Code::QuantizeActivations(_) => Op::QuantizeActivations,
            Code::Prologue(_) => Op::Prologue,
            Code::Embed(_) => Op::Embed,
            Code::Matmul { .. } => Op::Matmul,
            Code::Cuda(CudaCode { launch, .. }) => match launch {
                CudaLaunch::Elements { op, .. } | CudaLaunch::Activations { op, .. } => *op,
                CudaLaunch::Quantize { .. } => Op::Quantize,
                CudaLaunch::Matmul { .. } | CudaLaunch::Rows { .. } => Op::Matmul,
                CudaLaunch::Convert { .. } | CudaLaunch::Experts { .. } => return None,
            },
        })
    }

    /// How weights are packed for it; `None` for what is no product, or reads the format's own rows.
    pub fn packing(&self) -> Option<&'static PackInfo> {
        match self {
            Code::Matmul { packing, .. } => *packing,
            Code::Cuda(CudaCode { launch: CudaLaunch::Matmul { packing, .. }, .. }) => Some(packing),
            _ => None,
        }
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
    /// What experts need around their products on a GPU, where an image of it was built.
    pub experts: Option<CudaCode>,
    /// The specs this build was made from, so that tools can show and re-read them.
    pub sources: &'static [Source],
}
