//! Random formats: drawn from a seed, written as TOML, and decoded from what the draw itself knows.
//!
//! [`places`] says where each bit of a block lies before any word of the language describes it; [`text`] then describes
//! what was placed; [`decode`] reads blocks by those places and by the sentences of docs/spec-reference.md. Nothing here
//! shares code with the checker, the compiler, the runtime or the oracle. A name (`rf_SEED_INDEX`) is all that is needed
//! to draw a format again.
#![allow(dead_code, unused_imports, reason = "each program that takes this in uses a part of it")]

mod breakages;
mod decode;
mod draw;
mod places;
mod quantizers;
mod text;

pub use breakages::broken;
pub use decode::Data;

/// Type of one value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unsigned(u32),
    Signed(u32),
    Float(Float),
    Trit,
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
    /// Bit addresses of each value, its lowest bit first; empty for trits.
    pub bits: Vec<Vec<usize>>,
    /// Byte of each trit, and how many digits of the byte's number are less significant.
    pub trits: Vec<(usize, u32)>,
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
    /// The format of this seed and index.
    pub fn new(seed: u64, index: usize) -> Drawn {
        draw::draw(seed, index)
    }

    /// The format of a name that one was given.
    pub fn of_name(name: &str) -> Option<Drawn> {
        let (seed, index) = name.strip_prefix("rf_")?.split_once('_')?;
        Some(Drawn::new(u64::from_str_radix(seed, 16).ok()?, index.parse().ok()?))
    }

    /// All factors of all terms.
    pub fn factors(&self) -> impl Iterator<Item = Factor> {
        self.scale.iter().chain(&self.add).chain(&self.subtract).copied()
    }

    /// The files that describe it: a path below a spec folder, and content.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut files = vec![(format!("formats/{}.toml", self.name), text::format(self).into_bytes())];
        if let Map::Book(book) = &self.map {
            let path = format!("codebooks/{}_book", self.name);
            files.push((format!("{path}.toml"), text::book(book).into_bytes()));
            if !book.inside {
                let (word, bytes) =
                    if book.width * book.bits as usize <= 16 { ("u16", 2) } else { ("u32", 4) };
                let table = book.entries.iter().flat_map(|entry| entry.to_le_bytes().into_iter().take(bytes));
                files.push((format!("{path}.{word}.bin"), table.collect()));
            }
        }
        files
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
    /// Width of a value in bits; none for trits.
    pub fn bits(self) -> u32 {
        match self {
            Kind::Unsigned(bits) | Kind::Signed(bits) => bits,
            Kind::Float(float) => float.bits(),
            Kind::Trit => 0,
        }
    }

    pub fn name(self) -> String {
        match self {
            Kind::Unsigned(bits) => format!("u{bits}"),
            Kind::Signed(bits) => format!("i{bits}"),
            Kind::Float(float) => float.name().to_owned(),
            Kind::Trit => "trit".to_owned(),
        }
    }

    /// Raw codes.
    pub fn codes(self) -> u32 {
        match self {
            Kind::Trit => 3,
            other => 1 << other.bits(),
        }
    }

    /// A raw value as an integer.
    pub fn integer(self, raw: u32) -> i64 {
        match self {
            Kind::Signed(bits) if raw >= 1 << (bits - 1) => i64::from(raw) - (1 << bits),
            _ => i64::from(raw),
        }
    }
}
