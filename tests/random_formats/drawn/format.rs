//! A format that was drawn: its fields, with the place of each bit, and how codes become weights.

/// Type of one value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unsigned(u32),
    Signed(u32),
    Float(Float),
    /// A digit of this base, several to a byte.
    Digit(u32),
}

/// Floating-point types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    F16,
    Bf16,
    F32,
    E8m0Half,
    Ue4m3Half,
}

/// A field, with the place of each of its values.
#[derive(Clone, Debug)]
pub struct Field {
    pub name: String,
    pub kind: Kind,
    pub count: usize,
    /// An integer factor counts as `times * raw + plus`.
    pub times: i64,
    pub plus: i64,
    /// Bit addresses of each value, its lowest bit first; empty for digits.
    pub bits: Vec<Vec<usize>>,
    /// Byte of each digit, and how many digits of the byte's number are less significant.
    pub digits: Vec<(usize, u32)>,
    /// `layout`, `parts` or `digits` and `segments`, as TOML.
    pub text: String,
}

/// How a code becomes an integer.
#[derive(Clone, Debug)]
pub enum Map {
    Affine { times: i64, zero: i64 },
    Levels(Vec<i64>),
    Book(Book),
}

/// A codebook of the format's own.
#[derive(Clone, Debug)]
pub struct Book {
    pub times: i64,
    pub width: usize,
    pub bits: u32,
    pub values: Vec<i64>,
    pub entries: Vec<u32>,
    /// How far apart the elements of an entry are.
    pub stride: usize,
    /// The table stands in the codebook's file, not beside it.
    pub inside: bool,
}

/// A factor of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    Field(usize),
    Row,
    Tensor,
}

/// A format that was drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    pub name: String,
    pub elements: usize,
    pub bytes: usize,
    pub fields: Vec<Field>,
    /// First bit and number of bits of each gap.
    pub unused: Vec<(usize, usize)>,
    pub code: usize,
    pub map: Map,
    /// The field, and whether its top bit is left out.
    pub signs: Option<(usize, bool)>,
    pub shift: Option<(usize, Vec<i64>)>,
    /// Exponent of the constant factor.
    pub unit: Option<i32>,
    pub scale: Vec<Factor>,
    pub add: Vec<Factor>,
    pub subtract: Vec<Factor>,
    pub row: Option<Float>,
    /// The number behind the blocks, and the bytes of the tail where they are stated.
    pub tensor: Option<(Float, Option<usize>)>,
    pub activations: Option<&'static str>,
    pub quantizers: Vec<String>,
    /// Why the reference may not allow it, where it was drawn beyond what the reference says is allowed.
    pub doubt: Option<&'static str>,
}

impl Drawn {
    /// All factors of all terms.
    pub fn factors(&self) -> impl Iterator<Item = Factor> {
        self.scale.iter().chain(&self.add).chain(&self.subtract).copied()
    }
}

impl Float {
    pub fn bits(self) -> u32 {
        match self {
            Float::E8m0Half | Float::Ue4m3Half => 8,
            Float::F16 | Float::Bf16 => 16,
            Float::F32 => 32,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Float::F16 => "f16",
            Float::Bf16 => "bf16",
            Float::F32 => "f32",
            Float::E8m0Half => "e8m0-half",
            Float::Ue4m3Half => "ue4m3-half",
        }
    }
}

impl Kind {
    /// Width of a value in bits; none for digits.
    pub fn bits(self) -> u32 {
        match self {
            Kind::Unsigned(bits) | Kind::Signed(bits) => bits,
            Kind::Float(float) => float.bits(),
            Kind::Digit(_) => 0,
        }
    }

    pub fn name(self) -> String {
        match self {
            Kind::Unsigned(bits) => format!("u{bits}"),
            Kind::Signed(bits) => format!("i{bits}"),
            Kind::Float(float) => float.name().to_owned(),
            Kind::Digit(3) => "trit".to_owned(),
            Kind::Digit(base) => format!("base{base}"),
        }
    }

    /// Raw codes.
    pub fn codes(self) -> u32 {
        match self {
            Kind::Digit(base) => base,
            other => 1 << other.bits(),
        }
    }

    /// Digits of base `b` to a byte: the most for which `b` to that power is no more than the bytes that there are.
    pub fn to_a_byte(base: u32) -> u32 {
        (1..).take_while(|digits| base.pow(*digits) <= 256).last().unwrap_or(0)
    }

    /// A raw value as an integer.
    pub fn integer(self, raw: u32) -> i64 {
        match self {
            Kind::Signed(bits) if raw >= 1 << (bits - 1) => i64::from(raw) - (1 << bits),
            _ => i64::from(raw),
        }
    }
}

/// Every integer that a code can stand for.
pub fn mapped(drawn: &Drawn) -> Vec<i64> {
    let kind = drawn.fields[drawn.code].kind;
    let mut all: Vec<i64> = match &drawn.map {
        Map::Affine { times, zero } => {
            (0..kind.codes()).map(|raw| times * kind.integer(raw) - zero).collect()
        }
        Map::Levels(levels) => levels.clone(),
        Map::Book(book) => book
            .entries
            .iter()
            .flat_map(|entry| (0..book.width).map(|at| book.times * book.values[digit(book, *entry, at)]))
            .collect(),
    };
    all.sort_unstable();
    all.dedup();
    all
}

/// Digit `at` of a codebook's entry.
pub fn digit(book: &Book, entry: u32, at: usize) -> usize {
    (entry >> (book.bits as usize * at)) as usize & ((1 << book.bits) - 1)
}
