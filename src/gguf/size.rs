//! How many bytes a tensor takes: the part of GGUF that is not in the file.

use super::error::NoDataReason;

/// What is known of a tensor when its size is asked for.
#[derive(Clone, Copy, Debug)]
pub struct SizeQuery<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Type id as stored. Ids of unquantized types are never asked for.
    pub type_id: u32,
    /// Dimensions, contiguous one first; their product fits 64 bits.
    pub dims: &'a [u64],
    /// Bytes from the tensor's start to the next one's, or to the end of the file: the size with its
    /// padding in a tightly packed file, an upper bound in any valid one. Confirms a guess between
    /// formats that share an id.
    pub room: u64,
    /// Alignment of tensor data in bytes, a power of two: padding is shorter than this.
    pub alignment: u32,
    /// `general.architecture`.
    pub architecture: Option<&'a str>,
    /// `general.file_type`.
    pub file_type: Option<u64>,
    /// Whose numbering the type ids follow.
    pub origin: Option<Origin>,
}

/// Whose numbering of types a file follows. Ids 39 and 42 mean different types in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// ggml's: 39 is MXFP4, 42 is Q2_0.
    Ggml,
    /// bitnet.cpp's: 38 is TL1, 39 (later 42) is TL2.
    BitnetCpp,
}

impl Origin {
    /// Whose numbering follows from `general.architecture` and `general.file_type`.
    ///
    /// `None` where they do not tell: ggml knows a `bitnet` architecture too, so that string alone
    /// proves nothing.
    pub fn of(architecture: Option<&str>, file_type: Option<u64>) -> Option<Origin> {
        match (architecture?.starts_with("bitnet"), file_type) {
            (false, _) => Some(Origin::Ggml),
            // TL1, TL2, I2_S as bitnet.cpp numbers its file types.
            (true, Some(38..=40)) => Some(Origin::BitnetCpp),
            (true, _) => None,
        }
    }
}

/// Answer to a [`SizeQuery`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizeAnswer {
    /// Bytes of the tensor's data, with a tail if the format has one, without padding.
    Bytes(u64),
    /// No format with this id is described. The tensor is listed; its data cannot be had.
    Unknown,
    /// Several formats have this id, and the file does not tell which (say which). The tensor is
    /// listed; its data cannot be had.
    Ambiguous(String),
    /// The format cannot have this shape (say why). The tensor is listed; its data cannot be had.
    BadShape(String),
}

impl SizeAnswer {
    pub(super) fn into_result(self) -> Result<u64, NoDataReason> {
        match self {
            SizeAnswer::Bytes(bytes) => Ok(bytes),
            SizeAnswer::Unknown => Err(NoDataReason::UnknownType),
            SizeAnswer::Ambiguous(which) => Err(NoDataReason::Ambiguous(which)),
            SizeAnswer::BadShape(why) => Err(NoDataReason::BadShape(why)),
        }
    }
}

/// The lookup of a caller who wants unquantized tensors only.
pub fn unquantized_only(_: &SizeQuery<'_>) -> SizeAnswer {
    SizeAnswer::Unknown
}

/// Size of a tensor of blocks: rows of `row_header` bytes and `dims[0] / elements` blocks of `bytes`
/// each, then `tail` bytes behind the whole tensor (32 for i2_s).
///
/// Answers [`SizeAnswer::BadShape`] where the row is not a whole number of blocks or the size does not
/// fit 64 bits.
pub fn blocked_size(dims: &[u64], elements: u64, bytes: u64, row_header: u64, tail: u64) -> SizeAnswer {
    let row = dims.first().copied().unwrap_or(1);
    let Some(0) = row.checked_rem(elements) else {
        return SizeAnswer::BadShape(format!(
            "rows of {row} elements are not a whole number of blocks of {elements}"
        ));
    };
    let rows = dims.iter().skip(1).try_fold(1u64, |rows, &dim| rows.checked_mul(dim));
    let size = (row / elements)
        .checked_mul(bytes)
        .and_then(|blocks| blocks.checked_add(row_header))
        .and_then(|row| row.checked_mul(rows?))
        .and_then(|size| size.checked_add(tail));
    match size {
        Some(size) => SizeAnswer::Bytes(size),
        None => SizeAnswer::BadShape(format!("the size of dimensions {dims:?} does not fit 64 bits")),
    }
}

/// A type without blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unquantized {
    /// Its type id.
    pub type_id: u32,
    /// Its name.
    pub name: &'static str,
    /// Bytes of an element.
    pub bytes: u64,
}

const UNQUANTIZED: [Unquantized; 8] = [
    Unquantized { type_id: 0, name: "f32", bytes: 4 },
    Unquantized { type_id: 1, name: "f16", bytes: 2 },
    Unquantized { type_id: 24, name: "i8", bytes: 1 },
    Unquantized { type_id: 25, name: "i16", bytes: 2 },
    Unquantized { type_id: 26, name: "i32", bytes: 4 },
    Unquantized { type_id: 27, name: "i64", bytes: 8 },
    Unquantized { type_id: 28, name: "f64", bytes: 8 },
    Unquantized { type_id: 30, name: "bf16", bytes: 2 },
];

/// The unquantized type with this id, if it is one.
pub fn unquantized(type_id: u32) -> Option<Unquantized> {
    UNQUANTIZED.into_iter().find(|known| known.type_id == type_id)
}
