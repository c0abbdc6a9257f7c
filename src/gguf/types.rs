//! What the type numbers of files mean: the formats of a registry, and which of several that share a number.
//!
//! A number alone does not always tell. bitnet.cpp numbers TL2 as ggml numbers MXFP4 or Q2_0, published STQ1_0 files carry
//! Q2_0's number, and forks give 40 to 43 to types of their own. What decides then is what can be proven: a file is packed
//! tightly, so a tensor's bytes are those up to the next tensor, less padding, and only a format whose size is that can be
//! meant.

use super::read::Tensor;
use super::size::{Origin, SizeAnswer, SizeQuery, Unquantized, blocked_size, unquantized};
use gristmill_runtime::import::{TileSizes, Tiled};
use gristmill_runtime::registry::FormatInfo;
use gristmill_runtime::{Error, Registry};
use std::fmt::{Display, Formatter};
use std::ops::RangeInclusive;

/// Numbers that forks of llama.cpp give to types of their own: one of them is believed only where the size proves it.
const FORKS: RangeInclusive<u32> = 40..=43;

/// A meaning of a number beside that of the format whose spec states it.
struct Other {
    number: u32,
    name: &'static str,
    /// Whose numbering it is, where one program has it.
    origin: Option<Origin>,
    what: What,
}

/// What is known of such a type.
#[derive(Clone, Copy)]
enum What {
    /// A layout that depends on tile sizes.
    Tiled(Tiled),
    /// A format: elements and bytes of a block, for builds without it.
    Blocks(u64, u64),
}

const OTHERS: [Other; 4] = [
    // ggml gave the number up.
    Other { number: 38, name: Tiled::Tl1.name(), origin: None, what: What::Tiled(Tiled::Tl1) },
    Other {
        number: 39,
        name: Tiled::Tl2.name(),
        origin: Some(Origin::BitnetCpp),
        what: What::Tiled(Tiled::Tl2),
    },
    Other {
        number: 42,
        name: Tiled::Tl2.name(),
        origin: Some(Origin::BitnetCpp),
        what: What::Tiled(Tiled::Tl2),
    },
    // As in the files that its publisher released; later trees number it 43.
    Other { number: 42, name: "stq1_0", origin: None, what: What::Blocks(256, 42) },
];

/// Names of types, so that messages about those that a build has not can say more than a number.
const NAMES: [(u32, &str); 20] = [
    (9, "q8_1"),
    (15, "q8_k"),
    (16, "iq2_xxs"),
    (17, "iq2_xs"),
    (18, "iq3_xxs"),
    (19, "iq1_s"),
    (21, "iq3_s"),
    (22, "iq2_s"),
    (23, "iq4_xs"),
    (29, "iq1_m"),
    (34, "tq1_0"),
    (35, "tq2_0"),
    (36, "i2_s"),
    (37, "i8_s"),
    (43, "stq1_0"),
    (134, "iq1_bn"),
    (135, "iq2_bn"),
    (142, "pq2_0"),
    (143, "ptq1_0"),
    (335, "iq2_bn_r4"),
];

/// What a type number means to a build: its registry's formats, and what the caller says of numbers.
///
/// ```
/// use gristmill::gguf::{Gguf, GgufWriter, TensorType, TypeNumbers};
///
/// let mut writer = GgufWriter::new();
/// writer.tensor("norm", &[2], 0, 8)?;
/// let mut stream = writer.write_to(Vec::new())?;
/// stream.data("norm", &[0; 8])?;
///
/// let types = TypeNumbers::new(&gristmill::REGISTRY);
/// let file = Gguf::parse(stream.finish()?, &|query| types.size(query))?;
/// let norm = file.tensor("norm").ok_or("it was written")?;
/// assert!(matches!(types.of(&norm)?, TensorType::Plain(plain) if plain.name == "f32"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TypeNumbers {
    registry: &'static Registry,
    /// Numbers whose meaning the caller named.
    named: Vec<(u32, Meaning)>,
    /// Further numbers of formats, as the caller knows them.
    also: Vec<(u32, &'static FormatInfo)>,
    tiles: TileSizes,
}

/// What a number was said to mean.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    Format(&'static FormatInfo),
    Tiled(Tiled),
}

/// What a tensor is.
#[derive(Clone, Copy, Debug)]
pub enum TensorType {
    /// Numbers without blocks.
    Plain(Unquantized),
    /// Blocks of a format.
    Format(Resolved),
    /// A layout that depends on tile sizes, which becomes a format when it is [imported](TypeNumbers::import).
    Tiled(TiledType),
}

/// The format that a number means for a tensor.
#[derive(Clone, Copy, Debug)]
pub struct Resolved {
    /// The format.
    pub format: &'static FormatInfo,
    /// Bytes of the tensor, its tail included, without padding.
    pub bytes: u64,
    /// How it was told.
    pub by: DecidedBy,
}

/// A tensor in a layout that depends on tile sizes. Its bytes are no rows of a format: [`TypeNumbers::import`] reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TiledType {
    /// The layout.
    pub layout: Tiled,
    /// Bytes of the tensor, scale and padding included.
    pub bytes: u64,
    /// How it was told.
    pub by: DecidedBy,
}

/// How it was told which format a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// No other type is known to have the number.
    Number,
    /// The file says whose numbering it follows, and there the number means one thing.
    Origin,
    /// Of all that have the number, this one alone takes the bytes that the tensor has.
    Size,
    /// The caller named it ([`TypeNumbers::named`]).
    Name,
}

impl DecidedBy {
    /// One word: `number`, `origin`, `size`, `name`.
    pub const fn name(self) -> &'static str {
        match self {
            DecidedBy::Number => "number",
            DecidedBy::Origin => "origin",
            DecidedBy::Size => "size",
            DecidedBy::Name => "name",
        }
    }
}

/// Something that a number may mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Name of the format.
    pub name: &'static str,
    /// Bytes that the tensor would have in it; `None` where that is not known.
    pub bytes: Option<u64>,
}

impl Display for Candidate {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.bytes {
            Some(bytes) => write!(f, "{} ({bytes} bytes)", self.name),
            None => write!(f, "{} (size not known)", self.name),
        }
    }
}

/// Why it is not known which format a number means.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// Nothing in this build has the number, or what has it by this file's numbering.
    #[error("no spec of this build describes this type")]
    Unknown {
        /// The number.
        number: u32,
        /// What the number is elsewhere.
        name: Option<&'static str>,
    },
    /// The format is described, but this build left it out.
    #[error("not compiled: build with the cargo feature `{feature}`")]
    NotCompiled {
        /// The format.
        format: &'static str,
        /// The cargo feature.
        feature: &'static str,
    },
    /// Sizes do not tell what the number means.
    #[error(
        "type number {number} is ambiguous: {}; the tensor has room for {room} bytes, which {}: name the format",
        Either(candidates),
        if *several { "fits several" } else { "none is proven to fit" }
    )]
    Undecided {
        /// The number.
        number: u32,
        /// Bytes from the tensor to the next one, or to the end of the file.
        room: u64,
        /// All that it may mean.
        candidates: Vec<Candidate>,
        /// Whether the sizes of several fit; else none does.
        several: bool,
    },
    /// The format cannot have this shape.
    #[error("{0}")]
    BadShape(String),
}

/// `a (1 bytes) or b (2 bytes)`; one alone may be a type of a fork.
struct Either<'a>(&'a [Candidate]);

impl Display for Either<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        for (index, candidate) in self.0.iter().enumerate() {
            let or = if index == 0 { "" } else { " or " };
            write!(f, "{or}{candidate}")?;
        }
        if self.0.len() == 1 { f.write_str(" or a fork's own type") } else { Ok(()) }
    }
}

/// A candidate with what is behind it.
struct Contender {
    name: &'static str,
    format: Option<&'static FormatInfo>,
    tiled: Option<Tiled>,
    origin: Option<Origin>,
    /// `None`: no rule is known.
    size: Option<SizeAnswer>,
}

impl Contender {
    fn bytes(&self) -> Option<u64> {
        match self.size {
            Some(SizeAnswer::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// Whether it takes just the bytes that there are, with or without padding behind it.
    fn fits(&self, query: &SizeQuery<'_>) -> bool {
        let padded = |bytes: u64| bytes.checked_next_multiple_of(u64::from(query.alignment.max(1)));
        self.bytes().is_some_and(|bytes| bytes == query.room || padded(bytes) == Some(query.room))
    }
}

impl TypeNumbers {
    /// As the formats of `registry` are numbered, and where else they are known to be.
    pub fn new(registry: &'static Registry) -> TypeNumbers {
        TypeNumbers { registry, named: Vec::new(), also: Vec::new(), tiles: TileSizes::new() }
    }

    /// The same with the tile sizes of tensors in layouts that depend on them.
    pub fn with_tiles(mut self, tiles: TileSizes) -> TypeNumbers {
        self.tiles = tiles;
        self
    }

    /// Tile sizes of tensors.
    pub fn tiles(&self) -> &TileSizes {
        &self.tiles
    }

    /// The formats that numbers may mean.
    pub fn registry(&self) -> &'static Registry {
        self.registry
    }

    /// Reads `number` as `format` (or as `tl1` or `tl2`), whatever else has the number. What the format takes must still be in the file. Numbers of
    /// types without blocks (f32 and so on) keep their meaning.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`], [`Error::NotCompiled`].
    pub fn named(mut self, number: u32, format: &str) -> Result<TypeNumbers, Error> {
        let meaning = match Tiled::from_name(format) {
            Some(layout) => Meaning::Tiled(layout),
            None => Meaning::Format(self.registry.format(format)?.1),
        };
        self.named.retain(|(known, _)| *known != number);
        self.named.push((number, meaning));
        Ok(self)
    }

    /// Says that files use `number` for `format` too: where others have the number, sizes decide.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`], [`Error::NotCompiled`].
    pub fn also(mut self, number: u32, format: &str) -> Result<TypeNumbers, Error> {
        let (_, format) = self.registry.format(format)?;
        self.also.push((number, format));
        Ok(self)
    }

    /// The answer that [`Gguf::open`](super::Gguf::open) asks for: `&|query| types.size(query)`.
    pub fn size(&self, query: &SizeQuery<'_>) -> SizeAnswer {
        match self.find(query) {
            Ok(TensorType::Plain(_)) | Err(TypeError::Unknown { .. } | TypeError::NotCompiled { .. }) => {
                SizeAnswer::Unknown
            }
            Ok(TensorType::Format(resolved)) => SizeAnswer::Bytes(resolved.bytes),
            Ok(TensorType::Tiled(tiled)) => SizeAnswer::Bytes(tiled.bytes),
            Err(TypeError::BadShape(why)) => SizeAnswer::BadShape(why),
            Err(error @ TypeError::Undecided { .. }) => SizeAnswer::Ambiguous(error.to_string()),
        }
    }

    /// What a tensor of a checked file is.
    ///
    /// # Errors
    /// Why that is not known.
    pub fn of(&self, tensor: &Tensor<'_>) -> Result<TensorType, TypeError> {
        self.find(&tensor.query())
    }

    /// What a tensor is, by what is known of it.
    ///
    /// # Errors
    /// Why that is not known.
    pub fn find(&self, query: &SizeQuery<'_>) -> Result<TensorType, TypeError> {
        let number = query.type_id;
        if let Some(plain) = unquantized(number) {
            return Ok(TensorType::Plain(plain));
        }
        match self.named.iter().find(|(known, _)| *known == number) {
            Some((_, Meaning::Format(format))) => {
                return resolved(format, size_of(format, query.dims), DecidedBy::Name);
            }
            Some((_, Meaning::Tiled(layout))) => {
                return tiled(*layout, tiled_size(*layout, query.dims), DecidedBy::Name);
            }
            None => {}
        }
        let mut all = self.contenders(query);
        let shared = all.len() > 1;
        if let Some(origin) = query.origin {
            all.retain(|contender| contender.origin.is_none_or(|of| of == origin));
            // Where the numbering that the file follows gives the number a meaning of its own, that is meant.
            if all.iter().any(|contender| contender.origin == Some(origin)) {
                all.retain(|contender| contender.origin == Some(origin));
            }
        }
        match all.as_slice() {
            [] => return Err(self.unknown(number)),
            [Contender { tiled: Some(layout), size: Some(size), .. }] => {
                let by = if shared { DecidedBy::Origin } else { DecidedBy::Number };
                return tiled(*layout, size.clone(), by);
            }
            [Contender { format: Some(format), size: Some(size), .. }] if !FORKS.contains(&number) => {
                let by = if shared { DecidedBy::Origin } else { DecidedBy::Number };
                return resolved(format, size.clone(), by);
            }
            _ => {}
        }
        self.by_size(query, &all)
    }

    /// The one of several whose size is that of the tensor.
    fn by_size(&self, query: &SizeQuery<'_>, all: &[Contender]) -> Result<TensorType, TypeError> {
        let number = query.type_id;
        let mut fitting = all.iter().filter(|contender| contender.fits(query));
        match (fitting.next(), fitting.next()) {
            (Some(Contender { format: Some(format), size: Some(size), .. }), None) => {
                return resolved(format, size.clone(), DecidedBy::Size);
            }
            (Some(Contender { tiled: Some(layout), size: Some(size), .. }), None) => {
                return tiled(*layout, size.clone(), DecidedBy::Size);
            }
            (Some(foreign), None) => return Err(TypeError::Unknown { number, name: Some(foreign.name) }),
            (None, _) if all.iter().all(|contender| contender.format.is_none()) => {
                return Err(self.unknown(number));
            }
            (_, _) => {}
        }
        // A shape that none can have is the better reason.
        let impossible = |contender: &&Contender| matches!(contender.size, Some(SizeAnswer::BadShape(_)));
        if let Some(Contender { size: Some(SizeAnswer::BadShape(why)), .. }) = all.first()
            && all.iter().all(|contender| impossible(&contender))
        {
            return Err(TypeError::BadShape(why.clone()));
        }
        let several = all.iter().any(|contender| contender.fits(query));
        let candidates = all.iter().map(|c| Candidate { name: c.name, bytes: c.bytes() }).collect();
        Err(TypeError::Undecided { number, room: query.room, candidates, several })
    }

    /// All that a number is known to mean.
    fn contenders(&self, query: &SizeQuery<'_>) -> Vec<Contender> {
        let number = query.type_id;
        let mut all: Vec<Contender> = Vec::new();
        let mut add = |name, format: Option<&'static FormatInfo>, origin, what: Option<What>| {
            if !all.iter().any(|known| known.name == name) {
                let (size, tiled) = match (format, what) {
                    (Some(format), _) => (Some(size_of(format, query.dims)), None),
                    (None, Some(What::Blocks(elements, bytes))) => {
                        (Some(blocked_size(query.dims, elements, bytes, 0, 0)), None)
                    }
                    (None, Some(What::Tiled(layout))) => (Some(tiled_size(layout, query.dims)), Some(layout)),
                    (None, None) => (None, None),
                };
                all.push(Contender { name, format, tiled, origin, size });
            }
        };
        for format in self.registry.formats.iter().filter(|format| format.gguf == Some(number)) {
            add(format.name, Some(format), None, None);
        }
        for left_out in self.registry.left_out.iter().filter(|left_out| left_out.gguf == Some(number)) {
            add(left_out.format, None, None, None);
        }
        for (_, format) in self.also.iter().filter(|(known, _)| *known == number) {
            add(format.name, Some(format), None, None);
        }
        for other in OTHERS.iter().filter(|other| other.number == number) {
            let format = self.registry.formats.iter().find(|format| format.name == other.name);
            add(other.name, format, other.origin, Some(other.what));
        }
        all
    }

    /// Why a number means nothing here.
    fn unknown(&self, number: u32) -> TypeError {
        match self.registry.left_out.iter().find(|left_out| left_out.gguf == Some(number)) {
            Some(left_out) => TypeError::NotCompiled { format: left_out.format, feature: left_out.feature },
            None => TypeError::Unknown { number, name: known_name(number) },
        }
    }

    /// Formats of the registry and types known from elsewhere that have `number`; the first is the registry's own.
    pub fn candidates(&self, number: u32) -> Vec<&'static str> {
        let query = SizeQuery {
            name: "",
            type_id: number,
            dims: &[],
            room: 0,
            alignment: 1,
            architecture: None,
            file_type: None,
            origin: None,
        };
        self.contenders(&query).iter().map(|contender| contender.name).collect()
    }

    /// The name of a tensor's type, for people: of the format, if it is known, else what is known of the number.
    pub fn name_of(&self, tensor: &Tensor<'_>) -> String {
        match self.of(tensor) {
            Ok(TensorType::Plain(plain)) => plain.name.to_owned(),
            Ok(TensorType::Format(resolved)) => resolved.format.name.to_owned(),
            Ok(TensorType::Tiled(tiled)) => tiled.layout.name().to_owned(),
            Err(TypeError::NotCompiled { format, .. }) => format.to_owned(),
            Err(TypeError::Unknown { name: Some(name), .. }) => name.to_owned(),
            Err(TypeError::Undecided { candidates, .. }) => {
                let names: Vec<&str> = candidates.iter().map(|candidate| candidate.name).collect();
                let unless = if names.len() == 1 { " or a fork's own" } else { "" };
                names.join(" or ") + unless
            }
            Err(_) => match self.candidates(tensor.type_id()).first() {
                Some(name) => (*name).to_owned(),
                None => format!("type id {}", tensor.type_id()),
            },
        }
    }
}

fn size_of(format: &FormatInfo, dims: &[u64]) -> SizeAnswer {
    let header = format.row_header.map_or(0, |outer| outer.bytes() as u64);
    let tail = format.tensor_tail.map_or(0, |(_, bytes)| bytes as u64);
    blocked_size(dims, format.elements as u64, format.bytes as u64, header, tail)
}

/// A tensor whose last dimensions are rows, all of one matrix.
fn tiled_size(layout: Tiled, dims: &[u64]) -> SizeAnswer {
    let k = dims.first().copied().unwrap_or(1);
    let n = dims.iter().skip(1).try_fold(1u64, |n, dim| n.checked_mul(*dim));
    match n.and_then(|n| layout.tensor_bytes(n, k)) {
        Some(bytes) => SizeAnswer::Bytes(bytes),
        None => {
            SizeAnswer::BadShape(format!("the layout {} has no tensor of dimensions {dims:?}", layout.name()))
        }
    }
}

fn tiled(layout: Tiled, size: SizeAnswer, by: DecidedBy) -> Result<TensorType, TypeError> {
    match size {
        SizeAnswer::Bytes(bytes) => Ok(TensorType::Tiled(TiledType { layout, bytes, by })),
        SizeAnswer::BadShape(why) | SizeAnswer::Ambiguous(why) => Err(TypeError::BadShape(why)),
        // `tiled_size` knows every size or says why there is none.
        SizeAnswer::Unknown => Err(TypeError::BadShape("its size is unknown".to_owned())),
    }
}

fn resolved(format: &'static FormatInfo, size: SizeAnswer, by: DecidedBy) -> Result<TensorType, TypeError> {
    match size {
        SizeAnswer::Bytes(bytes) => Ok(TensorType::Format(Resolved { format, bytes, by })),
        SizeAnswer::BadShape(why) | SizeAnswer::Ambiguous(why) => Err(TypeError::BadShape(why)),
        // `blocked_size` knows every size or says why there is none.
        SizeAnswer::Unknown => Err(TypeError::BadShape("its size is unknown".to_owned())),
    }
}

/// The name that a number has in llama.cpp and its relatives, of types that no spec may describe.
pub fn known_name(number: u32) -> Option<&'static str> {
    let named = NAMES.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
    named.or_else(|| OTHERS.iter().find(|other| other.number == number).map(|other| other.name))
}
