//! What can be wrong with a GGUF file, and where.

use super::value_type::ValueType;
use crate::text::Printable;
use gristmill_runtime::ErrorClass;
use std::path::{Path, PathBuf};

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried: `open`, `read`, `map`.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file became shorter while it was read.
    #[error("{}: the file had {expected} bytes and ended after {found}: it became shorter while it was read", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its length when it was opened.
        expected: u64,
        /// Bytes up to where it ended.
        found: u64,
    },
    /// There is no memory for the header, or for the lists of what stands in it.
    #[error("{}no memory for a header of {bytes} bytes", in_front(path))]
    Memory {
        /// The file; empty where the bytes came from none.
        path: PathBuf,
        /// Bytes of the header that were to be read, or were read.
        bytes: u64,
    },
    /// The bytes are not a GGUF file that can be trusted.
    #[error(transparent)]
    Malformed(Box<Malformed>),
}

/// A defect in a file, with its place.
#[derive(Debug)]
pub struct Malformed {
    /// The file, if the bytes came from one.
    pub path: Option<PathBuf>,
    /// Byte offset, from the start of the file, of what is wrong.
    pub offset: u64,
    /// The metadata entry or tensor it belongs to.
    pub within: Option<String>,
    /// What is wrong.
    pub problem: Problem,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.display())?;
        }
        write!(f, "byte {}: ", self.offset)?;
        if let Some(within) = &self.within {
            write!(f, "{}: ", Printable(within))?;
        }
        self.problem.fmt(f)
    }
}

impl std::error::Error for Malformed {}

/// A file in front of what is said of it.
fn in_front(path: &Path) -> String {
    if path.as_os_str().is_empty() { String::new() } else { format!("{}: ", path.display()) }
}

impl GgufError {
    /// A defect at byte `offset`.
    pub(super) fn at(offset: u64, problem: Problem) -> GgufError {
        GgufError::Malformed(Box::new(Malformed { path: None, offset, within: None, problem }))
    }

    /// The same error, with the metadata entry or tensor it belongs to.
    pub(super) fn within(mut self, place: impl FnOnce() -> String) -> GgufError {
        if let GgufError::Malformed(malformed) = &mut self {
            malformed.within.get_or_insert_with(place);
        }
        self
    }

    /// The same error, with the file it was found in.
    pub(crate) fn in_file(mut self, file: &Path) -> GgufError {
        match &mut self {
            GgufError::Malformed(malformed) => {
                malformed.path.get_or_insert_with(|| file.to_owned());
            }
            GgufError::Memory { path, .. } if path.as_os_str().is_empty() => file.clone_into(path),
            GgufError::Memory { .. } | GgufError::Io { .. } | GgufError::Changed { .. } => {}
        }
        self
    }

    /// What kind of error it is: [`ErrorClass::Memory`] or [`ErrorClass::File`].
    pub fn class(&self) -> ErrorClass {
        match self {
            GgufError::Memory { .. } => ErrorClass::Memory,
            GgufError::Io { source, .. } => of_system(source.kind()),
            GgufError::Changed { .. } | GgufError::Malformed(_) => ErrorClass::File,
        }
    }

    /// What is wrong with the bytes; `None` where it is not they that are wrong.
    pub fn problem(&self) -> Option<&Problem> {
        self.malformed().map(|malformed| &malformed.problem)
    }

    /// Byte offset of the defect; `None` where it is not the bytes that are wrong.
    pub fn offset(&self) -> Option<u64> {
        self.malformed().map(|malformed| malformed.offset)
    }

    fn malformed(&self) -> Option<&Malformed> {
        match self {
            GgufError::Malformed(malformed) => Some(malformed),
            GgufError::Io { .. } | GgufError::Changed { .. } | GgufError::Memory { .. } => None,
        }
    }

    /// Where the bytes end that were needed, if the file has them and only its beginning was looked at.
    pub(super) fn needs(&self) -> Option<u64> {
        match self.problem() {
            Some(Problem::Truncated { needed, left, .. }) if needed <= left => {
                self.offset()?.checked_add(*needed)
            }
            Some(_) | None => None,
        }
    }
}

/// The kind of an error of the system about a file: one that can't be mapped for want of memory is not at fault.
fn of_system(kind: std::io::ErrorKind) -> ErrorClass {
    match kind {
        std::io::ErrorKind::OutOfMemory => ErrorClass::Memory,
        _ => ErrorClass::File,
    }
}

/// Kinds of defects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Other first four bytes.
    #[error("not a GGUF file: it starts with {found:02x?}, a GGUF file starts with \"GGUF\"")]
    Magic {
        /// Its first bytes (fewer than four in a shorter file).
        found: Vec<u8>,
    },
    /// Written for a big-endian machine.
    #[error(
        "the file is big-endian (version {0} in that byte order); only little-endian files are read: \
         convert it with gguf's gguf_convert_endian.py"
    )]
    BigEndian(u32),
    /// A version other than 2 and 3.
    #[error("GGUF version {version}; versions 2 and 3 are read: {help}", version = .0, help = unread(*.0))]
    Version(u32),
    /// The file ends too early.
    #[error(
        "the file ends inside the {what}: {needed} bytes are needed, {left} are left (incomplete download?)"
    )]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes it takes.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// Metadata and table do not end where headers do.
    #[error("the header is longer than {most} bytes, which is the most that is read")]
    HeaderLength {
        /// The most that is read.
        most: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error("the {what} is {count}, but the {left} bytes that are left hold at most {most}")]
    Count {
        /// Which count.
        what: &'static str,
        /// As stored.
        count: u64,
        /// Bytes left behind it.
        left: u64,
        /// Upper bound that follows from them.
        most: u64,
    },
    /// A string that is longer than the rest of the file.
    #[error("the {what} is {length} bytes long, but only {left} bytes are left")]
    StringLength {
        /// Which string.
        what: &'static str,
        /// As stored.
        length: u64,
        /// Bytes left behind the length.
        left: u64,
    },
    /// A string that is not UTF-8.
    #[error("the {what} is not valid UTF-8")]
    Utf8 {
        /// Which string.
        what: &'static str,
    },
    /// A value type outside 0..=12.
    #[error("unknown metadata value type {0}; types are 0 to 12")]
    ValueType(u32),
    /// A bool stored as something else than 0 or 1.
    #[error("a bool is stored as {0}; expected 0 or 1")]
    Bool(u8),
    /// An array of arrays.
    #[error("an array of arrays; elements of an array must be scalars or strings")]
    NestedArray,
    /// The same metadata key twice.
    #[error("the metadata key occurs twice")]
    DuplicateKey,
    /// `general.alignment` is not a u32.
    #[error("general.alignment has the type {0}; it must be a u32")]
    AlignmentType(ValueType),
    /// `general.alignment` is zero or not a power of two.
    #[error("general.alignment is {0}; it must be a power of two")]
    Alignment(u32),
    /// More dimensions than ggml has.
    #[error("{0} dimensions; at most 4 are allowed")]
    Dimensions(u32),
    /// The number of elements or bytes does not fit 64 bits.
    #[error("dimensions {dims:?} overflow: the number of {what} does not fit 64 bits")]
    Overflow {
        /// As stored.
        dims: Vec<u64>,
        /// `elements` or `bytes`.
        what: &'static str,
    },
    /// The same tensor name twice.
    #[error("the tensor name occurs twice")]
    DuplicateTensor,
    /// A tensor that does not start at a multiple of the alignment.
    #[error("its data offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// Offset in the data section.
        offset: u64,
        /// Alignment in force.
        alignment: u32,
    },
    /// A tensor that reaches beyond the end of the file.
    #[error(
        "its data, {size} bytes at offset {offset} of the data section, reaches beyond the section's end at \
         {section} (incomplete download, or another type than was named?)"
    )]
    BeyondEnd {
        /// Offset in the data section.
        offset: u64,
        /// Bytes it occupies at least.
        size: u64,
        /// Bytes of the data section.
        section: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "its data at offset {offset} lies inside that of tensor `{}`, which ends at {end}",
        Printable(other)
    )]
    Overlap {
        /// Offset in the data section.
        offset: u64,
        /// The tensor before it.
        other: String,
        /// Where that one ends.
        end: u64,
    },
}

/// What helps against a version that is not read.
fn unread(version: u32) -> &'static str {
    match version {
        0..=3 => "convert the model again with a current converter",
        4.. => "a newer gristmill may read it; or let the converter write version 3",
    }
}

/// Why the bytes of a listed tensor cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor `{}` (type id {type_id}, dimensions {dims:?}): {reason}", Printable(tensor))]
pub struct NoData {
    /// Name of the tensor.
    pub tensor: String,
    /// Its type id.
    pub type_id: u32,
    /// Its dimensions, contiguous one first.
    pub dims: Vec<u64>,
    /// Why.
    pub reason: NoDataReason,
}

impl NoData {
    /// What kind of error it is: of the file, of a request for more than the tensor has, or of memory.
    pub fn class(&self) -> ErrorClass {
        match self.reason {
            NoDataReason::Memory(_) => ErrorClass::Memory,
            NoDataReason::Range { .. } => ErrorClass::Shape,
            NoDataReason::UnknownType
            | NoDataReason::Ambiguous(_)
            | NoDataReason::BadShape(_)
            | NoDataReason::Changed
            | NoDataReason::Read(_) => ErrorClass::File,
        }
    }
}

/// Why the size of a tensor is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDataReason {
    /// No described format has this type id.
    #[error("no described format has this type id, so its size is unknown")]
    UnknownType,
    /// Several formats have it, and the file does not tell which is meant.
    #[error("the type id is ambiguous: {0}")]
    Ambiguous(String),
    /// The format cannot have this shape.
    #[error("{0}")]
    BadShape(String),
    /// The bytes under the file changed since it was checked.
    #[error("the file has become shorter since it was opened")]
    Changed,
    /// The system could not read them.
    #[error("its data cannot be read: {0}")]
    Read(String),
    /// There is no memory for them.
    #[error("no memory for its {0} bytes of data")]
    Memory(u64),
    /// More was asked for than the tensor has.
    #[error("it has {size} bytes of data; {length} from byte {start} on were asked for")]
    Range {
        /// Bytes that it has.
        size: u64,
        /// First one asked for.
        start: u64,
        /// How many were asked for.
        length: u64,
    },
}

/// Why a file could not be written. The target is untouched.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The target.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The sink refused the bytes.
    #[error("cannot write: {0}")]
    Sink(#[source] std::io::Error),
    /// The key is set twice.
    #[error("metadata key `{}` is set twice", Printable(.0))]
    DuplicateKey(String),
    /// The key has no or too many bytes.
    #[error("a metadata key of {0} bytes; keys have 1 to 65535")]
    KeyLength(usize),
    /// `general.alignment` belongs to [`super::GgufWriter::with_alignment`].
    #[error("general.alignment is set by GgufWriter::with_alignment, not as metadata")]
    AlignmentKey,
    /// Not a power of two.
    #[error("alignment {0}; it must be a power of two")]
    Alignment(u32),
    /// Two tensors of one name.
    #[error("tensor `{}` is declared twice", Printable(.0))]
    DuplicateTensor(String),
    /// More dimensions than ggml has.
    #[error("tensor `{}` has {dims} dimensions; at most 4 are allowed", Printable(tensor))]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// As given.
        dims: usize,
    },
    /// Sizes that do not fit 64 bits.
    #[error("tensor `{}`: sizes overflow 64 bits", Printable(.0))]
    Overflow(String),
    /// An unquantized type whose size contradicts its dimensions.
    #[error(
        "tensor `{}`: {dims:?} of {name} take {expected} bytes, {declared} were declared",
        Printable(tensor)
    )]
    Size {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        dims: Vec<u64>,
        /// Its type.
        name: &'static str,
        /// What they take.
        expected: u64,
        /// What was declared.
        declared: u64,
    },
    /// Data of another tensor than the one whose turn it is.
    #[error("data of tensor `{}` was given where {} is expected", Printable(found), match expected {
        Some(name) => format!("that of `{}`", Printable(name)),
        None => "no more".to_owned(),
    })]
    Order {
        /// As given.
        found: String,
        /// Whose turn it is.
        expected: Option<String>,
    },
    /// More data than declared.
    #[error(
        "tensor `{}`: {given} bytes were given, {left} of {declared} are still to be written",
        Printable(tensor)
    )]
    TooLong {
        /// The tensor.
        tensor: String,
        /// Bytes of this piece.
        given: u64,
        /// Bytes that were still missing.
        left: u64,
        /// Bytes of the whole tensor.
        declared: u64,
    },
    /// Less data than declared.
    #[error("tensor `{}` is incomplete: {left} of {declared} bytes were never written", Printable(tensor))]
    Incomplete {
        /// The tensor.
        tensor: String,
        /// Bytes missing.
        left: u64,
        /// Bytes of the whole tensor.
        declared: u64,
    },
}
