//! Source tensors for quantization: f32, f16 and bf16 weights from a safetensors or GGUF file.
//!
//! Both containers look the same from here: names, shapes in the order of NumPy and PyTorch (rows first),
//! and values as f32. Tensors of other types are listed with their type's name and refuse to be converted.

use crate::gguf::{self, Gguf, GgufError, NoData, SizeAnswer, SizeQuery};
use gristmill_runtime::vocab::DType;
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata};
use std::path::{Path, PathBuf};

/// Bytes in front of a safetensors header: its length.
const LENGTH_BYTES: usize = 8;
/// Longest safetensors header that is read, in bytes; the limit of the format's own library.
const MAX_HEADER: u64 = 100_000_000;

/// A file of weights, mapped into memory.
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
    map: Mmap,
    /// Where the data starts in the file.
    data_start: usize,
    metadata: Metadata,
    /// Names by offset, so that reading in order reads the file in order.
    names: Vec<String>,
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
    #[error("{}: byte 8: the safetensors header is not valid: {reason}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A safetensors file of another length than its header says.
    #[error("{}: the safetensors header describes {expected} bytes, the file has {found} (incomplete download?)",
        path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes that header and tensors take.
        expected: u128,
        /// Bytes of the file.
        found: u64,
    },
    /// A tensor that is not f32, f16 or bf16.
    #[error("tensor `{tensor}` is of type {found}; weights to be quantized must be f32, f16 or bf16")]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },
    /// Elements outside the tensor were asked for.
    #[error("tensor `{tensor}` has {elements} elements; {count} from {start} on were asked for")]
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
    #[error("tensor `{tensor}`: no memory for {elements} values of 4 bytes")]
    Memory {
        /// The tensor.
        tensor: String,
        /// Elements it has.
        elements: u64,
    },
    /// The bytes of a tensor cannot be had.
    #[error(transparent)]
    NoData(#[from] NoData),
    /// The mapped file has become shorter.
    #[error("tensor `{tensor}`: the file has become shorter since it was opened")]
    Changed {
        /// The tensor.
        tensor: String,
    },
}

impl WeightFile {
    /// Maps the file at `path` and checks it; its first bytes say which container it is.
    ///
    /// The file must not be changed while it is open, as with any mapped file.
    ///
    /// # Errors
    /// When the file cannot be opened, is neither safetensors nor GGUF, or has a defect.
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
        let map = gguf::map(path)?;
        let container = if map.starts_with(&gguf::MAGIC) {
            Container::Gguf(Box::new(Gguf::parse(map, sizes).map_err(|e| e.in_file(path))?))
        } else if is_safetensors(&map) {
            Container::Safetensors(Safetensors::check(path, map)?)
        } else {
            return Err(WeightError::Container { path: path.to_owned(), what: guess(&map) });
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
                let at = file.names.iter().position(|known| known == name)?;
                file.tensor(&file.names[at])
            }
        }
    }
}

/// A safetensors file starts with the length of its header, which is a JSON object.
fn is_safetensors(bytes: &[u8]) -> bool {
    bytes.get(LENGTH_BYTES) == Some(&b'{')
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
    fn check(path: &Path, map: Mmap) -> Result<Safetensors, WeightError> {
        let invalid = |reason: String| WeightError::Header { path: path.to_owned(), reason };
        let found = map.len() as u64;
        let mut length = [0; LENGTH_BYTES];
        match map.get(..LENGTH_BYTES) {
            Some(bytes) => length.copy_from_slice(bytes),
            None => return Err(invalid(format!("the file has only {found} bytes"))),
        }
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER {
            return Err(invalid(format!("it is {length} bytes long; at most {MAX_HEADER} are read")));
        }
        let data_start = LENGTH_BYTES + length as usize;
        let Some(header) = map.get(LENGTH_BYTES..data_start) else {
            let expected = data_start as u128;
            return Err(WeightError::Length { path: path.to_owned(), expected, found });
        };
        // Not `SafeTensors::read_metadata`: it adds the header's length to offsets from the file without
        // a check, which a crafted file makes overflow. The checks of the tensors themselves are in
        // `Metadata`'s own deserialization: contiguous from 0, and each as long as its shape and type say.
        let metadata: Metadata = serde_json::from_slice(header).map_err(|e| invalid(e.to_string()))?;
        let expected = data_start as u128 + metadata.data_len() as u128;
        if expected != u128::from(found) {
            return Err(WeightError::Length { path: path.to_owned(), expected, found });
        }
        Ok(Safetensors { names: metadata.offset_keys(), map, data_start, metadata })
    }

    fn tensor<'a>(&'a self, name: &'a str) -> Option<SourceTensor<'a>> {
        let info = self.metadata.info(name)?;
        let (start, end) = info.data_offsets;
        // `check` holds these sums within the length that the file had.
        let data = self.map.get(self.data_start.saturating_add(start)..self.data_start.saturating_add(end));
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
            data: Data::Bytes(data.unwrap_or_default()),
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
    Bytes(&'a [u8]),
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

    /// All values as f32; f16 and bf16 convert exactly.
    ///
    /// # Errors
    /// When the tensor is not f32, f16 or bf16, and when there is no memory for its values.
    pub fn to_f32(&self) -> Result<Vec<f32>, WeightError> {
        let elements = self.elements();
        let no_memory = || WeightError::Memory { tensor: self.name.to_owned(), elements };
        self.source()?; // A wrong type is the better reason than a lack of memory.
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
    /// When the tensor is not f32, f16 or bf16, and when `out` reaches beyond its end.
    pub fn read_f32(&self, start: u64, out: &mut [f32]) -> Result<(), WeightError> {
        let (dtype, data) = self.source()?;
        let (elements, count) = (self.elements(), out.len() as u64);
        if start.checked_add(count).is_none_or(|end| end > elements) {
            return Err(WeightError::Range { tensor: self.name.to_owned(), elements, start, count });
        }
        let width = dtype.width();
        let piece = usize::try_from(start)
            .ok()
            .and_then(|start| data.get(start.checked_mul(width)?..))
            .and_then(|rest| rest.get(..out.len().checked_mul(width)?))
            .ok_or_else(|| WeightError::Changed { tensor: self.name.to_owned() })?;
        match dtype {
            Float::F32 => convert(piece, out, f32::from_le_bytes),
            Float::F16 => convert(piece, out, |bytes| half::f16::from_le_bytes(bytes).to_f32()),
            Float::Bf16 => convert(piece, out, |bytes| half::bf16::from_le_bytes(bytes).to_f32()),
        }
        Ok(())
    }

    /// Type and bytes of a tensor that can be converted.
    fn source(&self) -> Result<(Float, &'a [u8]), WeightError> {
        let float = match self.dtype {
            Some(DType::F32) => Float::F32,
            Some(DType::F16) => Float::F16,
            Some(DType::Bf16) => Float::Bf16,
            Some(DType::I8) | None => {
                let found = self.type_name.clone();
                return Err(WeightError::Type { tensor: self.name.to_owned(), found });
            }
        };
        match &self.data {
            Data::Bytes(bytes) => Ok((float, bytes)),
            Data::Gguf(tensor) => Ok((float, tensor.data()?)),
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

/// A type that converts to f32 exactly.
#[derive(Clone, Copy)]
enum Float {
    F32,
    F16,
    Bf16,
}

impl Float {
    /// Bytes of an element.
    fn width(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::Bf16 => 2,
        }
    }
}

fn convert<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (out, element) in out.iter_mut().zip(elements) {
        *out = value(*element);
    }
}
