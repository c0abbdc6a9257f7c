//! Source tensors for quantization: f32, f16 and bf16 weights from a safetensors or GGUF file.
//!
//! Both containers look the same from here: names, shapes in the order of NumPy and PyTorch (rows first),
//! and values as f32. Tensors of other types are listed with their type's name and refuse to be converted.

use crate::StoredFloat;
use crate::gguf::{self, FileBytes, Gguf, GgufError, NoData, NoDataReason, SizeAnswer, SizeQuery, Store};
use crate::text::Printable;
use gristmill_runtime::vocab::DType;
use safetensors::tensor::{Dtype, Metadata};
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Bytes in front of a safetensors header: its length.
const LENGTH_BYTES: usize = 8;
/// Longest safetensors header that is read, in bytes; the limit of the format's own library.
const MAX_HEADER: u64 = 100_000_000;

/// Values that are converted at a time.
const PIECE: usize = 1 << 18;

/// A file of weights, whose header is in memory and whose tensors are read where they are asked for.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    container: Container,
}

#[derive(Debug)]
enum Container {
    Safetensors(Safetensors),
    Gguf(Box<gguf::GgufFile>),
}

/// A checked safetensors file.
#[derive(Debug)]
struct Safetensors {
    bytes: FileBytes,
    /// Where the data starts in the file.
    data_start: u64,
    metadata: Metadata,
    /// Names by offset, so that reading in order reads the file in order; those of one offset in the order of the alphabet.
    names: Vec<String>,
    /// Places in `names`, by name.
    by_name: Vec<usize>,
}

/// Why weights could not be read.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    /// The file could not be opened, or is a GGUF file with a defect.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Neither container.
    #[error("{}: neither safetensors nor GGUF: {what}", path.display())]
    Container {
        /// The file.
        path: PathBuf,
        /// What it seems to be, and what would help.
        what: String,
    },
    /// A safetensors file with a defect in its header.
    #[error("{}: byte 8: the safetensors header is not valid: {}", path.display(), Printable(reason))]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A safetensors file of another length than its header says.
    #[error("{}: the safetensors header describes {expected} bytes, the file has {found} ({})",
        path.display(), if u128::from(*found) < *expected { "incomplete download?" } else { "what stands behind the last tensor is none of its" })]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes that header and tensors take.
        expected: u128,
        /// Bytes of the file.
        found: u64,
    },
    /// A tensor that is not f32, f16 or bf16.
    #[error(
        "tensor `{}` is of type {found}; weights to be quantized must be f32, f16 or bf16",
        Printable(tensor)
    )]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },
    /// Elements outside the tensor were asked for.
    #[error("tensor `{}` has {elements} elements; {count} from {start} on were asked for", Printable(tensor))]
    Range {
        /// The tensor.
        tensor: String,
        /// Elements it has.
        elements: u64,
        /// First one asked for.
        start: u64,
        /// How many were asked for.
        count: u64,
    },
    /// More elements than memory has room for.
    #[error("tensor `{}`: no memory for {elements} values of 4 bytes", Printable(tensor))]
    Memory {
        /// The tensor.
        tensor: String,
        /// Elements it has.
        elements: u64,
    },
    /// The bytes of a tensor cannot be had.
    #[error(transparent)]
    NoData(#[from] NoData),
    /// The bytes of a tensor of a safetensors file cannot be had.
    #[error("tensor `{}`: {reason}", Printable(tensor))]
    Read {
        /// The tensor.
        tensor: String,
        /// Why.
        reason: NoDataReason,
    },
}

impl WeightFile {
    /// Opens the file at `path` and checks its header; its first bytes say which container it is. Tensors are read when their
    /// values are asked for.
    ///
    /// # Errors
    /// When the file cannot be opened or read, is neither safetensors nor GGUF, or has a defect.
    pub fn open(path: &Path) -> Result<WeightFile, WeightError> {
        WeightFile::open_with(path, &gguf::unquantized_only)
    }

    /// As [`WeightFile::open`]; `sizes` is asked for the sizes of quantized tensors of a GGUF file, so that
    /// their bounds are checked too.
    ///
    /// # Errors
    /// As [`WeightFile::open`].
    pub fn open_with(
        path: &Path,
        sizes: &dyn Fn(&SizeQuery<'_>) -> SizeAnswer,
    ) -> Result<WeightFile, WeightError> {
        WeightFile::of(path, FileBytes::open(path)?, sizes)
    }

    /// As [`WeightFile::open_with`], but maps the file into memory, so that nothing of it is copied before it is converted.
    ///
    /// # Errors
    /// As [`WeightFile::open`].
    ///
    /// # Safety
    /// As for [`Gguf::map`]: nobody changes the file or makes it shorter for as long as the returned value lives.
    pub unsafe fn map_with(
        path: &Path,
        sizes: &dyn Fn(&SizeQuery<'_>) -> SizeAnswer,
    ) -> Result<WeightFile, WeightError> {
        // SAFETY: passed on to the caller.
        WeightFile::of(path, unsafe { FileBytes::map(path) }?, sizes)
    }

    fn of(
        path: &Path,
        mut bytes: FileBytes,
        sizes: &dyn Fn(&SizeQuery<'_>) -> SizeAnswer,
    ) -> Result<WeightFile, WeightError> {
        bytes.read_head(path, LENGTH_BYTES as u64 + 1)?;
        let container = if bytes.head().starts_with(&gguf::MAGIC) {
            Container::Gguf(Box::new(Gguf::parse_file(bytes, path, sizes)?))
        } else if is_safetensors(bytes.head()) {
            Container::Safetensors(Safetensors::check(path, bytes)?)
        } else {
            return Err(WeightError::Container { path: path.to_owned(), what: guess(bytes.head()) });
        };
        Ok(WeightFile { path: path.to_owned(), container })
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The GGUF file, if it is one: for its metadata and its quantized tensors.
    pub fn gguf(&self) -> Option<&gguf::GgufFile> {
        match &self.container {
            Container::Gguf(file) => Some(file),
            Container::Safetensors(_) => None,
        }
    }

    /// Every tensor, of whatever type, in the order of the file's data (safetensors) or table (GGUF).
    pub fn tensors(&self) -> Box<dyn Iterator<Item = SourceTensor<'_>> + '_> {
        match &self.container {
            Container::Gguf(file) => Box::new(file.tensors().map(SourceTensor::of_gguf)),
            Container::Safetensors(file) => Box::new(file.names.iter().filter_map(|name| file.tensor(name))),
        }
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<SourceTensor<'_>> {
        match &self.container {
            Container::Gguf(file) => file.tensor(name).map(SourceTensor::of_gguf),
            Container::Safetensors(file) => {
                let found = file.by_name.binary_search_by(|&at| file.names[at].as_str().cmp(name)).ok()?;
                file.tensor(&file.names[file.by_name[found]])
            }
        }
    }
}

/// A safetensors file starts with the length of its header, which is a JSON object.
fn is_safetensors(bytes: &[u8]) -> bool {
    bytes.get(LENGTH_BYTES) == Some(&b'{')
}

/// A key that a JSON object has twice: of its values a reader may take the first or the last.
fn twice(json: &[u8]) -> Result<Option<String>, serde_json::Error> {
    struct Keys;
    impl<'de> Visitor<'de> for Keys {
        type Value = Option<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object of tensors")
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Option<String>, M::Error> {
            let (mut known, mut twice) = (HashSet::new(), None);
            while let Some((key, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                if let Some(key) = known.replace(key) {
                    twice.get_or_insert(key);
                }
            }
            Ok(twice)
        }
    }
    serde_json::Deserializer::from_slice(json).deserialize_map(Keys)
}

/// What a file that is neither container seems to be.
fn guess(bytes: &[u8]) -> String {
    let start = bytes.get(..8).unwrap_or(bytes);
    if start.is_empty() {
        "it is empty".to_owned()
    } else if start.starts_with(b"PK\x03\x04") || start.starts_with(&[0x80, 0x02]) {
        "it looks like a PyTorch checkpoint; save its tensors with safetensors.torch.save_file".to_owned()
    } else {
        format!("it starts with {start:02x?}")
    }
}

impl Safetensors {
    fn check(path: &Path, mut bytes: FileBytes) -> Result<Safetensors, WeightError> {
        let invalid = |reason: String| WeightError::Header { path: path.to_owned(), reason };
        let found = bytes.length();
        let Some(length) = bytes.head().first_chunk::<LENGTH_BYTES>() else {
            return Err(invalid(format!("the file has only {found} bytes")));
        };
        let length = u64::from_le_bytes(*length);
        if length > MAX_HEADER {
            return Err(invalid(format!("it is {length} bytes long; at most {MAX_HEADER} are read")));
        }
        let data_start = LENGTH_BYTES as u64 + length;
        if data_start > found {
            let expected = u128::from(data_start);
            return Err(WeightError::Length { path: path.to_owned(), expected, found });
        }
        bytes.read_head(path, data_start)?;
        // The limit on `length` fits any `usize`.
        let header = bytes.head().get(LENGTH_BYTES..data_start as usize).unwrap_or_default();
        // Not `SafeTensors::read_metadata`: it adds the header's length to offsets from the file without
        // a check, which a crafted file makes overflow. The checks of the tensors themselves are in
        // `Metadata`'s own deserialization: contiguous from 0, and each as long as its shape and type say.
        if let Some(twice) = twice(header).map_err(|e| invalid(e.to_string()))? {
            return Err(invalid(format!("`{twice}` stands in it twice")));
        }
        let metadata: Metadata = serde_json::from_slice(header).map_err(|e| invalid(e.to_string()))?;
        let expected = u128::from(data_start) + metadata.data_len() as u128;
        if expected != u128::from(found) {
            return Err(WeightError::Length { path: path.to_owned(), expected, found });
        }
        let mut names = metadata.offset_keys();
        // Tensors without elements begin where others do. Of these the header's own order is lost, and the library's is another one in each run.
        let place = |name: &str| metadata.info(name).map(|info| info.data_offsets);
        names.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.cmp(b)));
        let mut by_name: Vec<usize> = (0..names.len()).collect();
        by_name.sort_unstable_by_key(|&at| names[at].as_str());
        Ok(Safetensors { names, by_name, bytes, data_start, metadata })
    }

    fn tensor<'a>(&'a self, name: &'a str) -> Option<SourceTensor<'a>> {
        let info = self.metadata.info(name)?;
        let (start, end) = info.data_offsets;
        Some(SourceTensor {
            name,
            shape: info.shape.iter().map(|&dim| dim as u64).collect(),
            dtype: match info.dtype {
                Dtype::F32 => Some(DType::F32),
                Dtype::F16 => Some(DType::F16),
                Dtype::BF16 => Some(DType::Bf16),
                // The type is open for additions; whatever is not one of the three is not a weight.
                _ => None,
            },
            type_name: info.dtype.to_string(),
            // `check` holds this sum within the length that the file had.
            data: Data::File {
                bytes: self.bytes.contents(),
                at: self.data_start.saturating_add(start as u64),
                size: end.saturating_sub(start) as u64,
            },
        })
    }
}

/// A tensor of a [`WeightFile`].
#[derive(Clone, Debug)]
pub struct SourceTensor<'a> {
    name: &'a str,
    shape: Vec<u64>,
    dtype: Option<DType>,
    type_name: String,
    data: Data<'a>,
}

#[derive(Clone, Debug)]
enum Data<'a> {
    /// `size` bytes from a byte of the file on.
    File {
        bytes: gguf::Contents<'a>,
        at: u64,
        size: u64,
    },
    Gguf(gguf::Tensor<'a>),
}

impl<'a> SourceTensor<'a> {
    fn of_gguf(tensor: gguf::Tensor<'a>) -> SourceTensor<'a> {
        let type_id = tensor.type_id();
        let (dtype, type_name) = match gguf::unquantized(type_id) {
            Some(known) => (DType::from_name(known.name).filter(is_float), known.name.to_owned()),
            None => (None, format!("id {type_id}")),
        };
        let shape = tensor.dims().iter().rev().copied().collect();
        SourceTensor { name: tensor.name(), shape, dtype, type_name, data: Data::Gguf(tensor) }
    }

    /// Name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Shape, rows first and the contiguous dimension last, for GGUF files too.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        // Both containers were refused if the product overflows.
        self.shape.iter().product()
    }

    /// Its type if it is a source of weights (f32, f16, bf16); `None` for any other.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// The container's name of its type: `F8_E4M3`, `bf16`, `id 36`.
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// The tensor as a GGUF file has it, if it is of one.
    pub fn gguf(&self) -> Option<gguf::Tensor<'a>> {
        match &self.data {
            Data::Gguf(tensor) => Some(*tensor),
            Data::File { .. } => None,
        }
    }

    /// How many bytes it has in the file, of whatever type.
    ///
    /// # Errors
    /// When that of a tensor of a GGUF file is not known.
    pub fn size(&self) -> Result<u64, NoData> {
        match &self.data {
            Data::File { size, .. } => Ok(*size),
            Data::Gguf(tensor) => tensor.size(),
        }
    }

    /// All values as f32; f16 and bf16 convert exactly.
    ///
    /// # Errors
    /// When the tensor is not f32, f16 or bf16, when there is no memory for its values, and when they cannot be read.
    pub fn to_f32(&self) -> Result<Vec<f32>, WeightError> {
        let elements = self.elements();
        let no_memory = || WeightError::Memory { tensor: self.name.to_owned(), elements };
        self.float()?; // A wrong type is the better reason than a lack of memory.
        let count = usize::try_from(elements).map_err(|_| no_memory())?;
        let mut values = Vec::new();
        values.try_reserve_exact(count).map_err(|_| no_memory())?;
        values.resize(count, 0.0);
        self.read_f32(0, &mut values)?;
        Ok(values)
    }

    /// Fills `out` with the values from element `start` on (in the order of memory), so that a tensor can
    /// be converted piece by piece.
    ///
    /// # Errors
    /// When the tensor is not f32, f16 or bf16, when `out` reaches beyond its end, and when the values cannot be read: then
    /// `out` holds nothing of use.
    pub fn read_f32(&self, start: u64, out: &mut [f32]) -> Result<(), WeightError> {
        let float = self.float()?;
        let width = float.width() as u64;
        let (elements, count) = (self.elements(), out.len() as u64);
        if start.checked_add(count).is_none_or(|end| end > elements) {
            return Err(WeightError::Range { tensor: self.name.to_owned(), elements, start, count });
        }
        let mut first = start;
        for out in out.chunks_mut(PIECE) {
            // Below the bytes of the tensor, which fit 64 bits.
            let piece = self.part(first * width, out.len() as u64 * width)?;
            first += out.len() as u64;
            float.convert(&piece, out);
        }
        Ok(())
    }

    /// The type of a tensor that can be converted.
    fn float(&self) -> Result<StoredFloat, WeightError> {
        self.dtype.and_then(StoredFloat::of).ok_or_else(|| {
            let found = self.type_name.clone();
            WeightError::Type { tensor: self.name.to_owned(), found }
        })
    }

    /// `length` bytes of its data from byte `start` of it on, as they lie in the file, of whatever type.
    ///
    /// # Errors
    /// When they reach beyond its end or can't be read.
    pub fn part(&self, start: u64, length: u64) -> Result<Cow<'a, [u8]>, WeightError> {
        match &self.data {
            Data::Gguf(tensor) => Ok(tensor.part(start, length)?),
            Data::File { bytes, at, size } => {
                let read = match start.checked_add(length) {
                    Some(end) if end <= *size => bytes.get(at.saturating_add(start), length),
                    _ => Err(NoDataReason::Range { start, length, size: *size }),
                };
                read.map_err(|reason| WeightError::Read { tensor: self.name.to_owned(), reason })
            }
        }
    }
}

/// Whether weights can be converted from it: int8 is a word of the vocabulary, but needs a scale.
fn is_float(dtype: &DType) -> bool {
    match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => true,
        DType::I8 => false,
    }
}
