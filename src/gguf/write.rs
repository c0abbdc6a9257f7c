//! The writer: a header made of declarations, then the tensors' bytes as a stream.
//!
//! Sizes are declared first because the table stands before the data; so a model larger than memory can
//! be written, tensor by tensor and piece by piece.

use super::error::WriteError;
use super::file::Store;
use super::read::{Gguf, product};
use super::size::unquantized;
use super::value::{Value, encode_string};
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS};
use crate::replace::{ReplaceError, Replacement};
use std::collections::{HashSet, VecDeque};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Version that is written.
const VERSION: u32 = 3;
/// Largest metadata key in bytes.
const MAX_KEY: usize = 65535;

/// A GGUF file in the making: metadata and the list of tensors.
///
/// ```
/// use gristmill::gguf::{Gguf, GgufWriter, Value, unquantized_only};
///
/// let mut writer = GgufWriter::new();
/// writer.metadata("general.architecture", Value::String("llama"))?;
/// writer.tensor("norm", &[2], 0, 8)?;
/// let mut stream = writer.write_to(Vec::new())?;
/// stream.data("norm", &[0; 8])?;
/// let bytes = stream.finish()?;
///
/// let file = Gguf::parse(bytes, &unquantized_only)?;
/// assert_eq!(file.tensor("norm").map(|t| t.dims()), Some(&[2][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct GgufWriter {
    alignment: u32,
    keys: HashSet<String>,
    metadata: Vec<u8>,
    names: HashSet<String>,
    tensors: VecDeque<Declared>,
    table: Vec<u8>,
    /// Bytes of the data section so far, padding included.
    section: u64,
}

/// A tensor whose data is still to come.
#[derive(Clone, Debug)]
struct Declared {
    name: String,
    bytes: u64,
}

impl Default for GgufWriter {
    fn default() -> Self {
        GgufWriter::new()
    }
}

impl GgufWriter {
    /// A file without metadata and tensors, aligned to [`DEFAULT_ALIGNMENT`].
    pub fn new() -> GgufWriter {
        GgufWriter {
            alignment: DEFAULT_ALIGNMENT,
            keys: HashSet::new(),
            metadata: Vec::new(),
            names: HashSet::new(),
            tensors: VecDeque::new(),
            table: Vec::new(),
            section: 0,
        }
    }

    /// A file without metadata and tensors whose tensors start at multiples of `alignment` bytes.
    ///
    /// # Errors
    /// When `alignment` is not a power of two.
    pub fn with_alignment(alignment: u32) -> Result<GgufWriter, WriteError> {
        if !alignment.is_power_of_two() {
            return Err(WriteError::Alignment(alignment));
        }
        let mut writer = GgufWriter { alignment, ..GgufWriter::new() };
        if alignment != DEFAULT_ALIGNMENT {
            writer.entry(ALIGNMENT_KEY, &Value::U32(alignment))?;
        }
        Ok(writer)
    }

    /// Adds a metadata entry.
    ///
    /// # Errors
    /// When the key is set already, is empty or longer than 65535 bytes, or is `general.alignment`.
    pub fn metadata(&mut self, key: &str, value: Value<'_>) -> Result<(), WriteError> {
        if key == ALIGNMENT_KEY {
            return Err(WriteError::AlignmentKey);
        }
        self.entry(key, &value)
    }

    /// Adds every metadata entry of `file` for which `keep` holds, except the alignment, in its order.
    ///
    /// # Errors
    /// As [`GgufWriter::metadata`].
    pub fn copy_metadata<B: Store>(
        &mut self,
        file: &Gguf<B>,
        mut keep: impl FnMut(&str) -> bool,
    ) -> Result<(), WriteError> {
        for (key, value) in file.metadata() {
            if key != ALIGNMENT_KEY && keep(key) {
                self.entry(key, &value)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, key: &str, value: &Value<'_>) -> Result<(), WriteError> {
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(WriteError::KeyLength(key.len()));
        }
        if !self.keys.insert(key.to_owned()) {
            return Err(WriteError::DuplicateKey(key.to_owned()));
        }
        encode_string(key, &mut self.metadata);
        self.metadata.extend(value.value_type().id().to_le_bytes());
        value.encode(&mut self.metadata);
        Ok(())
    }

    /// Declares a tensor: dimensions with the contiguous one first, type id, and the bytes of its data
    /// (with the format's tail, without padding). Data follows in the order of the declarations.
    ///
    /// # Errors
    /// When the name is declared already, there are more than four dimensions, sizes overflow, or the
    /// type is an unquantized one and `bytes` is not what the dimensions take.
    pub fn tensor(&mut self, name: &str, dims: &[u64], type_id: u32, bytes: u64) -> Result<(), WriteError> {
        if dims.len() > MAX_DIMS as usize {
            return Err(WriteError::Dimensions { tensor: name.to_owned(), dims: dims.len() });
        }
        let overflow = || WriteError::Overflow(name.to_owned());
        let elements = product(dims).ok_or_else(overflow)?;
        if let Some(known) = unquantized(type_id) {
            let expected = elements.checked_mul(known.bytes).ok_or_else(overflow)?;
            if expected != bytes {
                return Err(WriteError::Size {
                    tensor: name.to_owned(),
                    dims: dims.to_vec(),
                    name: known.name,
                    expected,
                    declared: bytes,
                });
            }
        }
        let offset = self.section;
        let end = offset
            .checked_add(bytes)
            .and_then(|end| end.checked_next_multiple_of(u64::from(self.alignment)))
            .ok_or_else(overflow)?;
        if !self.names.insert(name.to_owned()) {
            return Err(WriteError::DuplicateTensor(name.to_owned()));
        }
        self.section = end;
        encode_string(name, &mut self.table);
        self.table.extend((dims.len() as u32).to_le_bytes());
        for dim in dims {
            self.table.extend(dim.to_le_bytes());
        }
        self.table.extend(type_id.to_le_bytes());
        self.table.extend(offset.to_le_bytes());
        self.tensors.push_back(Declared { name: name.to_owned(), bytes });
        Ok(())
    }

    /// Writes the header to `sink`; the data goes through the stream that is returned.
    ///
    /// # Errors
    /// When the sink refuses the bytes.
    pub fn write_to<W: Write>(self, sink: W) -> Result<TensorStream<W>, WriteError> {
        self.begin(sink, None)
    }

    /// The same; `path` is the file that the sink is, for errors.
    fn begin<W: Write>(self, sink: W, path: Option<PathBuf>) -> Result<TensorStream<W>, WriteError> {
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.keys.len() as u64).to_le_bytes());
        header.extend(&self.metadata);
        header.extend(&self.table);
        let (alignment, pending) = (self.alignment, self.tensors);
        let mut stream = TensorStream { sink, path, alignment, pending, written: 0 };
        stream.put(&header)?;
        stream.pad(header.len() as u64)?;
        Ok(stream)
    }

    /// Writes the file at `path`: `fill` gives the data of every tensor in the order of the declarations.
    ///
    /// The bytes go to a temporary file beside `path`, which takes its place only when all of them are on
    /// the disk ([`Replacement`]): whoever reads `path` sees the old file or the whole new one.
    ///
    /// # Errors
    /// When the file cannot be made, when data is missing or out of order, and every error of `fill`. The
    /// temporary file is removed and `path` is untouched.
    pub fn create<E: From<WriteError>>(
        self,
        path: &Path,
        fill: impl FnOnce(&mut TensorStream<BufWriter<&mut std::fs::File>>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut new = Replacement::begin(path).map_err(WriteError::from)?;
        let mut stream = self.begin(BufWriter::with_capacity(1 << 20, new.file()), Some(path.to_owned()))?;
        fill(&mut stream)?;
        let flushed = stream.finish()?.into_inner();
        flushed.map_err(|error| WriteError::Io {
            path: path.to_owned(),
            action: "write",
            source: error.into_error(),
        })?;
        Ok(new.finish().map_err(WriteError::from)?)
    }
}

impl From<ReplaceError> for WriteError {
    fn from(error: ReplaceError) -> WriteError {
        let ReplaceError { path, action, source } = error;
        WriteError::Io { path, action, source }
    }
}

/// Takes the data of the declared tensors, in their order.
#[derive(Debug)]
pub struct TensorStream<W> {
    sink: W,
    /// The file that it is.
    path: Option<PathBuf>,
    alignment: u32,
    pending: VecDeque<Declared>,
    /// Bytes of the first pending tensor that are written.
    written: u64,
}

impl<W: Write> TensorStream<W> {
    /// Appends a piece of the data of `tensor`: as many pieces as is convenient, in order.
    ///
    /// # Errors
    /// When it is another tensor's turn, when there is more than was declared, and when the sink refuses.
    pub fn data(&mut self, tensor: &str, piece: &[u8]) -> Result<(), WriteError> {
        self.skip_empty(tensor);
        let Some(declared) = self.pending.front().filter(|declared| declared.name == tensor) else {
            let expected = self.pending.front().map(|declared| declared.name.clone());
            return Err(WriteError::Order { found: tensor.to_owned(), expected });
        };
        let (bytes, given) = (declared.bytes, piece.len() as u64);
        let left = bytes - self.written;
        if given > left {
            return Err(WriteError::TooLong { tensor: tensor.to_owned(), given, left, declared: bytes });
        }
        self.put(piece)?;
        self.written += given;
        if self.written == bytes {
            self.pad(bytes)?;
            self.pending.pop_front();
            self.written = 0;
        }
        Ok(())
    }

    /// Passes over tensors without data, which need no call.
    fn skip_empty(&mut self, until: &str) {
        while self.pending.front().is_some_and(|declared| declared.bytes == 0 && declared.name != until) {
            self.pending.pop_front();
        }
    }

    /// Zeros from the end of `bytes` bytes of data up to the alignment.
    fn pad(&mut self, bytes: u64) -> Result<(), WriteError> {
        let alignment = u64::from(self.alignment);
        let mut left = (alignment - bytes % alignment) % alignment;
        let zeros = [0; 4096];
        while left > 0 {
            let piece = left.min(zeros.len() as u64) as usize;
            self.put(&zeros[..piece])?;
            left -= piece as u64;
        }
        Ok(())
    }

    /// Checks that all data is there, and hands back the sink, flushed.
    ///
    /// # Errors
    /// When data is missing, and when the sink refuses.
    pub fn finish(mut self) -> Result<W, WriteError> {
        while self.pending.front().is_some_and(|declared| declared.bytes == 0) {
            self.pending.pop_front();
        }
        if let Some(declared) = self.pending.pop_front() {
            return Err(WriteError::Incomplete {
                left: declared.bytes - self.written,
                declared: declared.bytes,
                tensor: declared.name,
            });
        }
        if let Err(source) = self.sink.flush() {
            return Err(self.refused(source));
        }
        Ok(self.sink)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.sink.write_all(bytes).map_err(|source| self.refused(source))
    }

    /// Why the sink took no more, with the file where it is one.
    fn refused(&self, source: std::io::Error) -> WriteError {
        match &self.path {
            Some(path) => WriteError::Io { path: path.clone(), action: "write", source },
            None => WriteError::Sink(source),
        }
    }
}
