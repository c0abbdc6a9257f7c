//! Checked specs: what the parser hands to the compiler. Nothing in here can be wrong in a way that
//! a user could have written; every name is resolved to an index or a word of the vocabulary.

use crate::vocab::{CudaAlgorithm, CudaArch, DType, Feature, Isa, Op, Strategy};

/// Everything that was read and checked together.
#[derive(Clone, Debug, Default)]
pub struct SpecSet {
    /// Weight formats, sorted by name.
    pub formats: Vec<Format>,
    /// Activation formats, sorted by name.
    pub activations: Vec<Activations>,
    /// Packings, sorted by name.
    pub packings: Vec<Packing>,
    /// Kernel families, sorted by name.
    pub kernels: Vec<Kernel>,
    /// Import layouts, sorted by name.
    pub imports: Vec<Import>,
    /// What CUDA kernels are compiled for.
    pub cuda: CudaTargets,
    /// Every file that was read, for `rerun-if-changed`.
    pub files: Vec<std::path::PathBuf>,
}

impl SpecSet {
    /// Keeps the formats whose place in `keep` is true, in kernels too, and the import layouts of those formats.
    pub fn retain_formats(&mut self, keep: &[bool]) {
        let kept = |index: usize| keep.get(index).copied().unwrap_or(true);
        let moved: Vec<usize> =
            (0..self.formats.len()).map(|i| (0..i).filter(|&earlier| kept(earlier)).count()).collect();
        for kernel in self.kernels.iter_mut().filter(|k| k.op != Op::QuantizeActivations) {
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

impl Format {
    /// The codebook its values come from, if they do.
    pub fn codebook(&self) -> Option<&str> {
        match &self.value.map {
            ValueMap::Codebook { name, .. } => Some(name),
            ValueMap::Affine { .. } | ValueMap::Levels(_) => None,
        }
    }
}

/// Where something was described.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Origin {
    /// File as the reader should see it, for example `kernel-spec/kernels/matmul.toml`.
    pub file: String,
    /// 1-based line.
    pub line: u32,
}

/// Scalar types that scales and other single numbers may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE binary32.
    F32,
    /// 8-bit exponent: 2^(e - 128), so half of OCP E8M0 (for doubled tables); 0 and 1 are subnormal f32.
    E8m0Half,
    /// Unsigned e4m3 times 0.5; bit 7 ignored, 0x7f is zero.
    Ue4m3Half,
}

impl Scalar {
    /// Width in bits.
    pub const fn bits(self) -> u32 {
        match self {
            Scalar::E8m0Half | Scalar::Ue4m3Half => 8,
            Scalar::F16 | Scalar::Bf16 => 16,
            Scalar::F32 => 32,
        }
    }
}

/// Type of one value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// Unsigned integer of this many bits (1..=16).
    Unsigned(u32),
    /// Two's complement integer of this many bits (2..=16).
    Signed(u32),
    /// A floating-point number.
    Scalar(Scalar),
    /// A base-3 digit, several to a byte (see [`FieldLayout::Digits`]).
    Trit,
}

/// A block format: what the bytes of quantized weights mean.
#[derive(Clone, Debug)]
pub struct Format {
    /// File stem: the format's name everywhere.
    pub name: String,
    /// One line for people.
    pub doc: String,
    /// Cargo feature family that compiles it (`bitnet`, `ggml`, ...); empty: always compiled.
    pub family: String,
    /// Where it is described.
    pub origin: Origin,
    /// GGUF type id, if the format has one.
    pub gguf: Option<u32>,
    /// Elements of one block.
    pub elements: u32,
    /// Bytes of one block.
    pub bytes: u32,
    /// Scalar that stands before the blocks of each row.
    pub row_header: Option<Scalar>,
    /// Scalar that stands behind all blocks of a tensor, and the size of that tail in bytes.
    pub tensor_tail: Option<(Scalar, u32)>,
    /// The fields of a block.
    pub fields: Vec<Field>,
    /// How fields become weights.
    pub value: Value,
    /// Named ways to make this format from f32; the first is the default.
    pub quantizers: Vec<Quantizer>,
    /// Index into [`SpecSet::activations`]: what activations are quantized to for matmul.
    pub activations: usize,
}

/// A field of a block.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name in the spec.
    pub name: String,
    /// Type of one value.
    pub ty: FieldType,
    /// How many values the field holds. Value `e / (elements / count)` belongs to element `e`.
    pub count: u32,
    /// Where its bits are.
    pub layout: FieldLayout,
    /// Integer fields used as factors count as `times * raw + plus` (1 and 0 by default).
    pub times: i32,
    /// See `times`.
    pub plus: i32,
}

/// Where the bits of a field are.
#[derive(Clone, Debug)]
pub enum FieldLayout {
    /// Bit slices, concatenated from the lowest bits to the highest. Usually one.
    Bits(Vec<Slice>),
    /// Base-3 digits in bytes: a byte holds `ceil(256 * v / 243)` of a five-digit number v.
    Digits {
        /// Digit 0 is the most significant (TQ1_0) or the least significant one (IQ1_BN).
        most_significant_first: bool,
        /// Which element is which digit of which byte.
        segments: Vec<Segment>,
    },
}

/// `bits` bits of each value: value i starts at bit `offset + sum(digit_d(i) * stride_d)`, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Width of the slice.
    pub bits: u32,
    /// Bit address of value 0.
    pub offset: i64,
    /// Mixed-radix digits of the value's index, outermost first.
    pub digits: Vec<Digit>,
}

/// One digit of a mixed-radix index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digit {
    /// How many values the digit takes.
    pub extent: u32,
    /// What one step adds to the bit address.
    pub stride: i64,
}

impl Slice {
    /// Bit address of value `index`.
    pub fn address(&self, index: u32) -> i64 {
        let mut rest = index;
        let mut address = self.offset;
        for digit in self.digits.iter().rev() {
            address += i64::from(rest % digit.extent) * digit.stride;
            rest /= digit.extent;
        }
        address
    }
}

/// A run of base-3 digits: all index tuples of `digits`, each naming an element, a byte and a digit.
#[derive(Clone, Debug)]
pub struct Segment {
    /// First element.
    pub first: u32,
    /// First bit (a multiple of 8).
    pub offset: u32,
    /// Nested loops, outermost first.
    pub digits: Vec<SegmentDigit>,
}

/// One loop of a [`Segment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentDigit {
    /// How many steps.
    pub extent: u32,
    /// What a step adds to the element index.
    pub element: u32,
    /// What a step adds to the bit address (a multiple of 8).
    pub stride: i64,
    /// What a step adds to the digit's number within the byte.
    pub digit: u32,
}

/// How the fields of a block become weights:
/// `w = product(scale) * unit * v + product(add) - product(subtract)`, evaluated left to right in f32,
/// where v is the integer `map(code) (negated by signs) (+ shift)`.
#[derive(Clone, Debug)]
pub struct Value {
    /// Index of the field that holds the codes.
    pub code: usize,
    /// Elements that one code stands for (more than 1 only with a codebook).
    pub group: u32,
    /// Code to integer.
    pub map: ValueMap,
    /// Signs kept apart from the code.
    pub signs: Option<Signs>,
    /// An integer added after signs.
    pub shift: Option<Shift>,
    /// A constant factor, 1 unless stated; a power of two, so that it never rounds.
    pub unit: f32,
    /// Factors of the weight, first applied first; empty means 1.
    pub scale: Vec<Factor>,
    /// Factors of a term that is added; empty: none.
    pub add: Vec<Factor>,
    /// Factors of a term that is subtracted; empty: none.
    pub subtract: Vec<Factor>,
}

/// Code to integer value.
#[derive(Clone, Debug)]
pub enum ValueMap {
    /// `v = times * code - zero`; `code` signed if the field is.
    Affine {
        /// Factor, 1 by default.
        times: i32,
        /// Subtracted.
        zero: i32,
    },
    /// `v = levels[code]`; codes beyond the list mean nothing.
    Levels(Vec<i32>),
    /// `v[j] = times * entries[code][j]`, `group` values a code.
    Codebook {
        /// Name of the data file.
        name: String,
        /// Factor, 1 by default.
        times: i32,
        /// The table, entry by entry.
        entries: Vec<Vec<i32>>,
    },
}

/// Signs kept in a field of their own: bit j of a value negates element j of its run.
#[derive(Clone, Debug)]
pub struct Signs {
    /// Index of the field.
    pub field: usize,
    /// The field has one bit too few; the missing top bit makes the number of ones even.
    pub parity: bool,
}

/// An integer added to the value: `values[field]`.
#[derive(Clone, Debug)]
pub struct Shift {
    /// Index of the field.
    pub field: usize,
    /// What each value of the field adds.
    pub values: Vec<i32>,
}

/// One factor of a scale or offset term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// A field of the block (index).
    Field(usize),
    /// The row's header.
    Row,
    /// The tensor's tail.
    Tensor,
}

/// What a scale is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// max |x|.
    AbsMax,
    /// The first element of greatest magnitude, with its sign.
    SignedAbsMax,
    /// mean |x|, summed in f64 by 4096 values in sixteen interleaved partial sums (the same on every device).
    AbsMean,
}

/// How the step and its inverse come from the statistic s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// `step = s / levels`, codes from `x * (1 / step)` (0 if step is 0 or its inverse not finite).
    Step,
    /// `multiplier = levels / s`, codes from `x * multiplier`, step = 1 / multiplier.
    Multiplier,
    /// `step = s / levels`, codes from `x / step`.
    Divide,
}

/// Rounding of a scaled value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest, ties to even.
    HalfEven,
    /// To nearest, ties away from zero.
    HalfAway,
    /// To nearest, ties toward zero.
    HalfTowardZero,
    /// `trunc(x + zero + 0.5) - zero` in f32: ties up in code space (the ggml rule for Q4_0).
    HalfUp,
    /// No rounding: the sign of x, 0 where |x| is below `threshold`.
    Sign,
}

/// The scale of a quantizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleRule {
    /// What it is computed from, over the extent of the scale (block, row or tensor).
    pub of: Statistic,
    /// See [`Via`].
    pub levels: f32,
    /// See [`Via`].
    pub via: Via,
    /// Lower bound on the statistic, 0 for none.
    pub floor: f64,
    /// The division is done in f64 and then rounded to f32.
    pub f64_division: bool,
}

/// How f32 becomes a format.
#[derive(Clone, Debug)]
pub struct Quantizer {
    /// Name, unique in the format.
    pub name: String,
    /// Where it is described.
    pub origin: Origin,
    /// What it does.
    pub rule: QuantizeRule,
}

/// What a quantizer does.
#[derive(Clone, Debug)]
pub enum QuantizeRule {
    /// Computes one scale and rounds.
    Round(RoundRule),
    /// Searches for scales (and minima, and entries of a codebook) by a named algorithm.
    Search(Search),
}

/// One scale, and rounding.
#[derive(Clone, Copy, Debug)]
pub struct RoundRule {
    /// Step size.
    pub scale: ScaleRule,
    /// Rounding.
    pub round: Rounding,
    /// For [`Rounding::Sign`]: |x| below it (compared in f64) is 0.
    pub threshold: f64,
    /// Inclusive bounds of the rounded integer.
    pub clamp: (i32, i32),
}

/// A named algorithm with its parameters. The format has the structure that it fills in; `gristmill-runtime`'s
/// `search` module has the bodies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Search {
    /// Scale and minimum from the smallest and the largest value of the block.
    MinMax,
    /// Sign bits, and the mean magnitude as scale.
    Mean,
    /// Scale and minimum of each run by weighted least squares over several trials.
    KMin {
        /// Errors weigh |x| plus the root mean square of the run, and not |x| alone.
        rms: bool,
        /// Errors are squared.
        square: bool,
        /// What the first trial adds to the number of steps.
        start: f32,
        /// Trials after the first, each 0.1 further.
        steps: u32,
    },
    /// Scale of each run: single codes are moved as long as that helps, in at most so many passes.
    KRefine {
        /// Passes.
        steps: u32,
    },
    /// Scale of each run: so many larger and smaller ones are tried.
    KScan {
        /// Trials on either side.
        steps: u32,
    },
    /// Scale of a table of levels: so many larger and smaller ones are tried.
    LevelScan {
        /// Trials on either side.
        steps: u32,
    },
    /// Scale of each run from its largest magnitude, then the nearest level.
    NearestLevel,
    /// Entries of a codebook with signs, factors of runs and the scale of the block together.
    GridSearch {
        /// Trials on either side for the first guess of the scale.
        steps: u32,
    },
}

impl Search {
    /// The algorithm's name in specs.
    pub const fn name(&self) -> &'static str {
        match self {
            Search::MinMax => "min-max",
            Search::Mean => "mean",
            Search::KMin { .. } => "k-min",
            Search::KRefine { .. } => "k-refine",
            Search::KScan { .. } => "k-scan",
            Search::LevelScan { .. } => "level-scan",
            Search::NearestLevel => "nearest-level",
            Search::GridSearch { .. } => "grid-search",
        }
    }
}

impl Quantizer {
    /// Whether there is a CUDA version of what it does.
    pub const fn on_cuda(&self) -> bool {
        match &self.rule {
            QuantizeRule::Round(_) | QuantizeRule::Search(Search::KMin { .. }) => true,
            QuantizeRule::Search(
                Search::MinMax
                | Search::Mean
                | Search::KRefine { .. }
                | Search::KScan { .. }
                | Search::LevelScan { .. }
                | Search::NearestLevel
                | Search::GridSearch { .. },
            ) => false,
        }
    }
}

/// How activations are kept for a matmul: int8 with scales.
#[derive(Clone, Debug)]
pub struct Activations {
    /// File stem.
    pub name: String,
    /// One line for people.
    pub doc: String,
    /// Where it is described.
    pub origin: Origin,
    /// Elements that share a scale; `None`: the whole row.
    pub block: Option<u32>,
    /// Step size.
    pub scale: ScaleRule,
    /// The scale kept is the multiplier (values are `q / s`) and not the step (values are `q * d`).
    pub keeps_multiplier: bool,
    /// The kept step is rounded to f16.
    pub stored_f16: bool,
    /// Rounding.
    pub round: Rounding,
    /// Inclusive bounds of q.
    pub clamp: (i32, i32),
}

/// A packing: the same codes in the order a kernel wants them.
#[derive(Clone, Debug)]
pub struct Packing {
    /// File stem.
    pub name: String,
    /// One line for people.
    pub doc: String,
    /// Where it is described.
    pub origin: Origin,
    /// Rows of a tile (the same for all tiles of a packing).
    pub rows: u32,
    /// One layout for each kind of code, that for the fewest values first.
    pub tiles: Vec<Tile>,
}

/// One tile layout of a packing.
#[derive(Clone, Debug)]
pub struct Tile {
    /// What a code is.
    pub code: TileCode,
    /// Elements along k.
    pub k: u32,
    /// Bytes of a tile: rows * k codes, eight bits or five trits to a byte.
    pub bytes: u32,
    /// Digits, outermost first, each along one axis; within an axis outermost first too.
    pub digits: Vec<TileDigit>,
}

/// What the codes of a tile are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileCode {
    /// Numbers of so many bits.
    Bits(u32),
    /// Digits of base 3, five to a byte. Which byte stands for which five is the compiler's choice.
    Trit,
}

impl TileCode {
    /// Trits of a byte: 3^5 = 243 values.
    pub const TRITS: u32 = 5;

    /// Values that a code can take.
    pub const fn levels(self) -> u32 {
        match self {
            TileCode::Bits(bits) => 1 << bits,
            TileCode::Trit => 3,
        }
    }

    /// Bits of a code as a kernel handles it.
    pub const fn bits(self) -> u32 {
        match self {
            TileCode::Bits(bits) => bits,
            TileCode::Trit => 2,
        }
    }

    /// Bytes that so many codes fill; `None` if they don't fill whole ones.
    pub const fn bytes(self, codes: u64) -> Option<u64> {
        let (codes, to_a_byte) = match self {
            TileCode::Bits(bits) => (codes * bits as u64, 8),
            TileCode::Trit => (codes, TileCode::TRITS as u64),
        };
        if codes.is_multiple_of(to_a_byte) { Some(codes / to_a_byte) } else { None }
    }
}

impl std::fmt::Display for TileCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TileCode::Bits(1) => f.write_str("one bit"),
            TileCode::Bits(bits) => write!(f, "{bits} bits"),
            TileCode::Trit => f.write_str("trits"),
        }
    }
}

/// Axis of a tile's digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Output row n.
    Row,
    /// Input column k.
    K,
}

/// One digit of a tile's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileDigit {
    /// The axis it counts along.
    pub axis: Axis,
    /// How many values it takes.
    pub extent: u32,
    /// Bits that one step adds to the address.
    pub stride: u32,
    /// What one step adds to the number of the trit in its byte; 0 for codes of bits.
    pub trit: u32,
}

/// How another program interleaves the rows of a format: a bijection between the bits of some rows by one block and those
/// of a tile. Tiles follow one another along k, and such panels of rows along n; where rows have headers, those of a panel
/// stand before its tiles, one after the other. What stands behind the last row stays where it is.
#[derive(Clone, Debug)]
pub struct Import {
    /// The file's stem.
    pub name: String,
    /// One line for people.
    pub doc: String,
    /// Cargo feature family that compiles it; empty: always compiled.
    pub family: String,
    /// Where it was described.
    pub origin: Origin,
    /// Index into [`SpecSet::formats`]: what the tensor is once its rows are apart.
    pub format: usize,
    /// Rows of a panel.
    pub rows: u32,
    /// Where each bit of a tile goes.
    pub moves: Vec<Move>,
}

/// Some neighbouring bits of a tile that are neighbours in a block of the format, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// First bit in the tile.
    pub from: u32,
    /// Row whose block they belong to.
    pub row: u32,
    /// First bit in that block.
    pub to: u32,
    /// How many, 1 to 32.
    pub bits: u32,
}

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
    /// Indices into [`SpecSet::formats`] (or [`SpecSet::activations`] for `quantize_activations`).
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
    /// Index into [`SpecSet::packings`]; `None`: reads the format's own blocks.
    pub packing: Option<usize>,
    /// How a product with a packing is computed.
    pub strategy: Strategy,
    /// Rows computed at once; 0 where it does not apply.
    pub rows: u32,
    /// Tokens computed at once; 0 where it does not apply.
    pub tokens: u32,
    /// Shapes it takes.
    pub shape: ShapeRules,
    /// A hand-written function that stands in for the generated body: its Rust path.
    pub body: Option<String>,
    /// Where it is described.
    pub origin: Origin,
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
    /// Index into [`SpecSet::packings`]; `None`: works on the format's own blocks.
    pub packing: Option<usize>,
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
    /// The architecture of the PTX that newer devices compile for themselves.
    pub ptx: Option<CudaArch>,
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
