//! Formats: fields, where their bits are, and how they become weights.

use super::{Origin, Quantizer};

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
    /// All of them.
    pub const ALL: [Scalar; 5] =
        [Scalar::F16, Scalar::Bf16, Scalar::F32, Scalar::E8m0Half, Scalar::Ue4m3Half];

    /// Its name in specs.
    pub const fn name(self) -> &'static str {
        match self {
            Scalar::F16 => "f16",
            Scalar::Bf16 => "bf16",
            Scalar::F32 => "f32",
            Scalar::E8m0Half => "e8m0-half",
            Scalar::Ue4m3Half => "ue4m3-half",
        }
    }

    /// Its name as a part of identifiers.
    pub fn word(self) -> String {
        self.name().replace('-', "_")
    }

    /// Whether it has a sign, infinities and NaN, as f32 has: what a quantizer can round any scale to.
    pub const fn is_signed(self) -> bool {
        match self {
            Scalar::F16 | Scalar::Bf16 | Scalar::F32 => true,
            Scalar::E8m0Half | Scalar::Ue4m3Half => false,
        }
    }

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
    /// A digit, several to a byte (see [`FieldLayout::Digits`]).
    Digit(Radix),
}

impl FieldType {
    /// Bits that a value takes on its own.
    pub const fn bits(self) -> u32 {
        match self {
            FieldType::Digit(radix) => radix.code_bits(),
            FieldType::Unsigned(bits) | FieldType::Signed(bits) => bits,
            FieldType::Scalar(scalar) => scalar.bits(),
        }
    }

    /// The lowest and the highest integer that a value can be; none of floating-point numbers.
    pub const fn range(self) -> Option<(i64, i64)> {
        match self {
            FieldType::Digit(radix) => Some((0, radix.base() as i64 - 1)),
            FieldType::Unsigned(bits) => Some((0, (1 << bits) - 1)),
            FieldType::Signed(bits) => Some((-(1 << (bits - 1)), (1 << (bits - 1)) - 1)),
            FieldType::Scalar(_) => None,
        }
    }
}

/// The base of digits that share bytes: one of which at least two fit into a byte and that is no power of two, whose digits
/// are bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Radix(u32);

impl Radix {
    /// That of trits.
    pub const THREE: Radix = Radix(3);

    /// 3, 5, 6, 7 and 9 to 15.
    pub const fn new(base: u32) -> Option<Radix> {
        if base < 3 || base > 15 || base.is_power_of_two() { None } else { Some(Radix(base)) }
    }

    /// The base.
    pub const fn base(self) -> u32 {
        self.0
    }

    /// As many digits as fit into a byte: five of base 3, three of 5 and 6, two of the others.
    pub const fn digits(self) -> u32 {
        match self.0 {
            3 => 5,
            5 | 6 => 3,
            _ => 2,
        }
    }

    /// The numbers of so many digits, at most 243.
    pub const fn numbers(self) -> u32 {
        self.0.pow(self.digits())
    }

    /// Bits that a digit takes on its own.
    pub const fn code_bits(self) -> u32 {
        u32::BITS - (self.0 - 1).leading_zeros()
    }
}

/// What fields of such digits hold.
impl std::fmt::Display for Radix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Radix::THREE => f.write_str("trits"),
            Radix(base) => write!(f, "digits of base {base}"),
        }
    }
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
    /// Index into [`SpecSet::activations`](super::SpecSet::activations): what activations are quantized to for matmul.
    pub activations: usize,
}

/// Elements and bytes of the largest blocks that CUDA kernels over blocks take: one has room in shared memory with all its
/// factors, and four of them, one for each warp that quantizes, with their codes.
const CUDA_BLOCK: (u32, u32) = (2048, 8192);

impl Format {
    /// Why no CUDA kernel that goes over its blocks is generated, where none is.
    pub fn not_on_cuda(&self) -> Option<String> {
        let (elements, bytes) = CUDA_BLOCK;
        (self.elements > elements || self.bytes > bytes).then(|| {
            format!(
                "its blocks have {} elements in {} bytes, and such a kernel takes {elements} in {bytes} at most",
                self.elements, self.bytes
            )
        })
    }

    /// The codebook its values come from, if they do.
    pub fn codebook(&self) -> Option<&str> {
        match &self.value.map {
            ValueMap::Codebook { name, .. } => Some(name),
            ValueMap::Affine { .. } | ValueMap::Levels(_) => None,
        }
    }

    /// Whether nothing in a block scales or shifts its elements, so that a row's integers can be summed as they are.
    pub fn scales_stand_outside(&self) -> bool {
        let value = &self.value;
        let of_block = |factor: &Factor| matches!(factor, Factor::Field(_));
        !value.scale.iter().any(of_block) && value.add.is_empty() && value.subtract.is_empty()
    }
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

impl Field {
    /// What the lowest and the highest integer count as where they are a factor; none of floating-point numbers.
    pub fn range(&self) -> Option<(i64, i64)> {
        let number = |raw: i64| raw * i64::from(self.times) + i64::from(self.plus);
        self.ty.range().map(|(low, high)| (number(low), number(high)))
    }
}

/// Where the bits of a field are.
#[derive(Clone, Debug)]
pub enum FieldLayout {
    /// Bit slices, concatenated from the lowest bits to the highest. Usually one.
    Bits(Vec<Slice>),
    /// Digits in bytes: a byte holds `ceil(256 * v / radix.numbers())` of a number v of `radix.digits()` digits.
    Digits {
        /// Their base.
        radix: Radix,
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

/// A run of digits: all index tuples of `digits`, each naming an element, a byte and a digit.
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
/// `w = product(scale) * unit * v + product(add) - product(subtract)`, evaluated left to right in f32 (where both are there,
/// `product(subtract) - product(add)` is one number that is taken away),
/// where v is the integer `map(code) (negated by signs) (+ shift)`.
#[derive(Clone, Debug)]
pub struct Value {
    /// Index of the field that holds the codes.
    pub code: usize,
    /// Elements that one code stands for (more than 1 only with a codebook).
    pub group: u32,
    /// How far apart the elements of a code are; 1: neighbours. So many codes are interleaved in `group * stride` elements.
    pub stride: u32,
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

impl Value {
    /// The first element that code `index` of a block stands for.
    pub const fn first_element(&self, index: u32) -> u32 {
        index / self.stride * self.stride * self.group + index % self.stride
    }
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
    /// `v[j] = times * entries[code][j]`, `group` values a code, `stride` elements apart.
    Codebook {
        /// The codebook.
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
