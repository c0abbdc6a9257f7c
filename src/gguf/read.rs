//! The reader: checks a file once, then hands out its metadata and tensors as they lie in it.

use super::cursor::Cursor;
use super::error::{GgufError, NoData, NoDataReason, Problem};
use super::file::{Contents, FileBytes, MAX_HEADER, Store};
use super::size::{Origin, SizeAnswer, SizeQuery, unquantized};
use super::value::{Array, Value};
use super::value_type::ValueType;
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

/// Bytes of the shortest metadata entry: an empty key, a type, one byte.
const LEAST_ENTRY: u64 = 8 + 4 + 1;
/// Bytes of the shortest tensor info: an empty name, no dimensions, type, offset.
const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;

/// Bytes that are read of a file at first: the whole header of most.
const FIRST: u64 = 1 << 20;

/// A checked GGUF file over its bytes: a slice, a vector, or a file on the disk ([`GgufFile`]).
#[derive(Debug)]
pub struct Gguf<B> {
    bytes: B,
    header: Header,
}

/// What stands in front of the data section.
#[derive(Debug)]
struct Header {
    version: u32,
    alignment: u32,
    data_start: u64,
    metadata: Vec<(Box<str>, Stored)>,
    tensors: Vec<Info>,
    /// Indices into `tensors`, by name.
    by_name: Vec<usize>,
}

/// A GGUF file on the disk.
pub type GgufFile = Gguf<FileBytes>;

/// A metadata value as far as it is kept outside the file's bytes.
#[derive(Debug)]
enum Stored {
    Scalar(Value<'static>),
    String(Box<str>),
    Array { element: ValueType, count: u64, at: Range<usize> },
}

/// An entry of the tensor table.
#[derive(Debug)]
struct Info {
    name: Box<str>,
    /// Where the entry stands, for errors.
    at: u64,
    dims: Vec<u64>,
    elements: u64,
    type_id: u32,
    /// Relative to the start of the data section.
    offset: u64,
    /// Bytes up to the next tensor, or to the end of the file.
    room: u64,
    size: Result<u64, NoDataReason>,
}

impl Gguf<FileBytes> {
    /// Reads and checks the header of the file at `path`; `sizes` is asked for the size of every tensor whose type is not an
    /// unquantized one. The data of a tensor is read when it is asked for, so a model may be larger than memory.
    ///
    /// A file that somebody writes to meanwhile gives old bytes, new ones or an error.
    ///
    /// # Errors
    /// When the file cannot be opened or read, when there is no memory for its header, and for every defect listed in
    /// [`Problem`].
    pub fn open(path: &Path, sizes: &dyn Fn(&SizeQuery<'_>) -> SizeAnswer) -> Result<GgufFile, GgufError> {
        Gguf::parse_file(FileBytes::open(path)?, path, sizes)
    }

    /// As [`Gguf::open`], but maps the file into memory: data is lent as it lies there, and nothing is copied.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    ///
    /// # Safety
    ///
    /// For as long as the returned value lives, nobody changes the file or makes it shorter, in this process or another: its
    /// bytes are lent as `&[u8]`, and reading behind the new end of a file ends the process. Nothing can check this; use
    /// [`Gguf::open`] where it is not certain.
    pub unsafe fn map(
        path: &Path,
        sizes: &dyn Fn(&SizeQuery<'_>) -> SizeAnswer,
    ) -> Result<GgufFile, GgufError> {
        // SAFETY: passed on to the caller.
        Gguf::parse_file(unsafe { FileBytes::map(path) }?, path, sizes)
    }

    /// Checks the header, of which more and more is read until it ends.
    pub(crate) fn parse_file(
        mut bytes: FileBytes,
        path: &Path,
        sizes: &dyn Fn(&SizeQuery<'_>) -> SizeAnswer,
    ) -> Result<GgufFile, GgufError> {
        let mut end = FIRST;
        loop {
            bytes.read_head(path, end)?;
            let read = bytes.head().len() as u64;
            match Header::parse(bytes.head(), bytes.length(), sizes) {
                Ok((header, end)) => {
                    bytes.keep_head(end);
                    return Ok(Gguf { header, bytes });
                }
                Err(error) => match error.needs() {
                    // Twice as much each time, so that all attempts together cost no more than two headers.
                    Some(needed) if needed > read => end = needed.max((2 * read).min(MAX_HEADER)),
                    Some(_) | None => return Err(error.in_file(path)),
                },
            }
        }
    }
}

impl<B: AsRef<[u8]>> Gguf<B> {
    /// Checks the bytes of a whole file; `sizes` is asked for the size of every tensor whose type is not
    /// an unquantized one.
    ///
    /// # Errors
    /// For every defect listed in [`Problem`], with its byte offset.
    pub fn parse(bytes: B, sizes: &dyn Fn(&SizeQuery<'_>) -> SizeAnswer) -> Result<Gguf<B>, GgufError> {
        let all = bytes.as_ref();
        let (header, _) = Header::parse(all, all.len() as u64, sizes)?;
        Ok(Gguf { header, bytes })
    }
}

impl Header {
    /// Checks the header at the beginning of a file of `length` bytes, of which `bytes` are the first. Also returns where it
    /// ends.
    fn parse(
        bytes: &[u8],
        length: u64,
        sizes: &dyn Fn(&SizeQuery<'_>) -> SizeAnswer,
    ) -> Result<(Header, u64), GgufError> {
        let mut cursor = Cursor::of_head(bytes, length);
        let (version, tensor_count, entry_count) = read_header(&mut cursor)?;
        let metadata = read_metadata(&mut cursor, entry_count)?;
        let alignment = alignment(&metadata)?;
        let mut tensors = read_tensors(&mut cursor, tensor_count)?;
        let end = cursor.offset();
        // Both are below the length of a slice plus 2^31, so the sum fits 64 bits.
        let data_start = end.next_multiple_of(u64::from(alignment));
        let by_name = sort_names(&cursor, &tensors)?;
        let section = length.saturating_sub(data_start);
        find_room(&cursor, &mut tensors, section)?;
        let mut header = Header { version, alignment, data_start, metadata, tensors: Vec::new(), by_name };
        header.place().check(section, &mut tensors, sizes)?;
        check_apart(&cursor, &tensors)?;
        header.tensors = tensors;
        Ok((header, end))
    }

    fn place(&self) -> Place<'_> {
        Place {
            alignment: self.alignment,
            architecture: find(&self.metadata, "general.architecture").and_then(|v| v.as_str()),
            file_type: find(&self.metadata, "general.file_type").and_then(|v| v.as_u64()),
        }
    }
}

impl<B: Store> Gguf<B> {
    /// Version of the container, 2 or 3.
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// Alignment of tensor data in bytes, a power of two.
    pub fn alignment(&self) -> u32 {
        self.header.alignment
    }

    /// Offset of the data section in the file, in bytes.
    pub fn data_start(&self) -> u64 {
        self.header.data_start
    }

    /// Every metadata entry, in the file's order.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.header.metadata.iter().map(|(key, stored)| (&**key, stored.value(self.bytes.contents().head())))
    }

    /// The metadata value of `key`.
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        self.header
            .metadata
            .iter()
            .find_map(|(name, stored)| (**name == *key).then(|| stored.value(self.bytes.contents().head())))
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> Option<&str> {
        self.value("general.architecture")?.as_str()
    }

    /// `general.file_type`.
    pub fn file_type(&self) -> Option<u64> {
        self.value("general.file_type")?.as_u64()
    }

    /// Whose numbering of types the file follows, if it tells.
    pub fn origin(&self) -> Option<Origin> {
        Origin::of(self.architecture(), self.file_type())
    }

    /// Every tensor, in the file's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.header.tensors.iter().map(|info| self.view(info))
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let Header { by_name, tensors, .. } = &self.header;
        let found = by_name.binary_search_by(|&i| (*tensors[i].name).cmp(name)).ok()?;
        Some(self.view(&tensors[by_name[found]]))
    }

    fn view<'a>(&'a self, info: &'a Info) -> Tensor<'a> {
        Tensor { info, file: self.bytes.contents(), header: &self.header }
    }
}

impl Stored {
    fn value<'a>(&'a self, file: &'a [u8]) -> Value<'a> {
        match self {
            Stored::Scalar(value) => *value,
            Stored::String(text) => Value::String(text),
            Stored::Array { element, count, at } => Value::Array(Array {
                element: *element,
                count: *count,
                // Empty only if the bytes became fewer since; `Elements` then says so.
                bytes: file.get(at.clone()).unwrap_or_default(),
                at: at.start as u64,
            }),
        }
    }
}

/// A tensor of a file.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    info: &'a Info,
    file: Contents<'a>,
    header: &'a Header,
}

impl<'a> Tensor<'a> {
    /// Name.
    pub fn name(&self) -> &'a str {
        &self.info.name
    }

    /// Dimensions, the contiguous one first: the reverse of NumPy's and PyTorch's order.
    pub fn dims(&self) -> &'a [u64] {
        &self.info.dims
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.info.elements
    }

    /// Type id as stored.
    pub fn type_id(&self) -> u32 {
        self.info.type_id
    }

    /// Offset of its data in the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.header.data_start.saturating_add(self.info.offset)
    }

    /// What was known of it when its size was asked for, so that the answer can be given again.
    pub fn query(&self) -> SizeQuery<'a> {
        self.header.place().query(self.info)
    }

    /// Bytes of its data, with the format's tail if it has one, without padding.
    ///
    /// # Errors
    /// When the size is not known: an undescribed or ambiguous type id, or a shape the format cannot have.
    pub fn size(&self) -> Result<u64, NoData> {
        self.info.size.clone().map_err(|reason| self.no_data(reason))
    }

    /// Its data, as it lies in the file: lent where the file is in memory or mapped, else read now. Who needs it more than once
    /// keeps it.
    ///
    /// # Errors
    /// As [`Tensor::size`]; when it cannot be read, there is no memory for it, or the file has become shorter.
    pub fn data(&self) -> Result<Cow<'a, [u8]>, NoData> {
        self.file.get(self.offset(), self.size()?).map_err(|reason| self.no_data(reason))
    }

    /// `length` bytes of its data from byte `start` of it on, so that a tensor can be read piece by piece.
    ///
    /// # Errors
    /// As [`Tensor::data`]; when the tensor has fewer.
    pub fn part(&self, start: u64, length: u64) -> Result<Cow<'a, [u8]>, NoData> {
        let size = self.size()?;
        if start.checked_add(length).is_none_or(|end| end > size) {
            return Err(self.no_data(NoDataReason::Range { size, start, length }));
        }
        self.file.get(self.offset().saturating_add(start), length).map_err(|reason| self.no_data(reason))
    }

    /// As [`Tensor::part`] into memory of the caller's, as many bytes as `out` has: allocates nothing. After an error `out` holds
    /// nothing of use.
    ///
    /// # Errors
    /// As [`Tensor::part`].
    pub fn read(&self, start: u64, out: &mut [u8]) -> Result<(), NoData> {
        let (size, length) = (self.size()?, out.len() as u64);
        if start.checked_add(length).is_none_or(|end| end > size) {
            return Err(self.no_data(NoDataReason::Range { size, start, length }));
        }
        self.file.fill(self.offset().saturating_add(start), out).map_err(|reason| self.no_data(reason))
    }

    fn no_data(&self, reason: NoDataReason) -> NoData {
        NoData { tensor: self.name().to_owned(), type_id: self.type_id(), dims: self.dims().to_vec(), reason }
    }
}

/// Version, number of tensors, number of metadata entries.
fn read_header(cursor: &mut Cursor<'_>) -> Result<(u32, u64, u64), GgufError> {
    let found = cursor.take(cursor.left().min(4), "magic")?;
    if found != MAGIC {
        return Err(GgufError::at(0, Problem::Magic { found: found.to_vec() }));
    }
    let at = cursor.offset();
    match cursor.u32("version")? {
        version @ 2..=3 => {
            let tensors_at = cursor.offset();
            let tensors = cursor.u64("tensor count")?;
            let entries_at = cursor.offset();
            let entries = cursor.u64("metadata count")?;
            cursor.check_count(tensors_at, tensors, LEAST_TENSOR, "tensor count")?;
            cursor.check_count(entries_at, entries, LEAST_ENTRY, "metadata count")?;
            Ok((version, tensors, entries))
        }
        // A small number with its bytes swapped: no version will ever be that large.
        swapped if swapped & 0xffff == 0 && swapped != 0 => {
            Err(GgufError::at(at, Problem::BigEndian(swapped.swap_bytes())))
        }
        version => Err(GgufError::at(at, Problem::Version(version))),
    }
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<(Box<str>, Stored)>, GgufError> {
    // Not allocated by `count`: an entry in memory is larger than the shortest in a file.
    let mut metadata = Vec::new();
    let mut keys = HashSet::new();
    for number in 0..count {
        let at = cursor.offset();
        let key = cursor
            .string("metadata key")
            .map_err(|e| e.within(|| format!("metadata entry {number} of {count}")))?;
        let place = || format!("metadata `{key}`");
        keys.try_reserve(1).map_err(|_| cursor.no_memory())?;
        if !keys.insert(key) {
            return Err(GgufError::at(at, Problem::DuplicateKey).within(place));
        }
        let stored = read_value(cursor, key).map_err(|e| e.within(place))?;
        metadata.try_reserve(1).map_err(|_| cursor.no_memory())?;
        metadata.push((cursor.own(key)?, stored));
    }
    Ok(metadata)
}

fn read_value(cursor: &mut Cursor<'_>, key: &str) -> Result<Stored, GgufError> {
    let at = cursor.offset();
    let id = cursor.u32("metadata value type")?;
    let value_type = ValueType::from_id(id).ok_or_else(|| GgufError::at(at, Problem::ValueType(id)))?;
    if key == ALIGNMENT_KEY && value_type != ValueType::U32 {
        return Err(GgufError::at(at, Problem::AlignmentType(value_type)));
    }
    let at = cursor.offset();
    let value = Value::read(cursor, value_type)?;
    Ok(match value {
        Value::U32(bytes) if key == ALIGNMENT_KEY && !bytes.is_power_of_two() => {
            return Err(GgufError::at(at, Problem::Alignment(bytes)));
        }
        Value::String(text) => Stored::String(cursor.own(text)?),
        Value::Array(Array { element, count, bytes, at }) => {
            // The array lies in the file's slice, so its offset is an index.
            let start = at as usize;
            Stored::Array { element, count, at: start..start + bytes.len() }
        }
        Value::U8(v) => Stored::Scalar(Value::U8(v)),
        Value::I8(v) => Stored::Scalar(Value::I8(v)),
        Value::U16(v) => Stored::Scalar(Value::U16(v)),
        Value::I16(v) => Stored::Scalar(Value::I16(v)),
        Value::U32(v) => Stored::Scalar(Value::U32(v)),
        Value::I32(v) => Stored::Scalar(Value::I32(v)),
        Value::F32(v) => Stored::Scalar(Value::F32(v)),
        Value::Bool(v) => Stored::Scalar(Value::Bool(v)),
        Value::U64(v) => Stored::Scalar(Value::U64(v)),
        Value::I64(v) => Stored::Scalar(Value::I64(v)),
        Value::F64(v) => Stored::Scalar(Value::F64(v)),
    })
}

fn find<'a>(metadata: &'a [(Box<str>, Stored)], key: &str) -> Option<Value<'a>> {
    // The values asked for here are scalars and strings, which are not in the file's bytes.
    metadata.iter().find_map(|(name, stored)| (**name == *key).then(|| stored.value(&[])))
}

fn alignment(metadata: &[(Box<str>, Stored)]) -> Result<u32, GgufError> {
    match find(metadata, ALIGNMENT_KEY) {
        Some(Value::U32(bytes)) => Ok(bytes),
        // `read_value` lets no other type pass under this key.
        Some(_) | None => Ok(DEFAULT_ALIGNMENT),
    }
}

fn read_tensors(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Info>, GgufError> {
    let mut tensors = Vec::new();
    for number in 0..count {
        let at = cursor.offset();
        let name =
            cursor.string("tensor name").map_err(|e| e.within(|| format!("tensor {number} of {count}")))?;
        tensors.try_reserve(1).map_err(|_| cursor.no_memory())?;
        tensors.push(read_tensor(cursor, name, at).map_err(|e| e.within(|| format!("tensor `{name}`")))?);
    }
    Ok(tensors)
}

fn read_tensor(cursor: &mut Cursor<'_>, name: &str, at: u64) -> Result<Info, GgufError> {
    let dims_at = cursor.offset();
    let n_dims = cursor.u32("number of dimensions")?;
    if n_dims > MAX_DIMS {
        return Err(GgufError::at(dims_at, Problem::Dimensions(n_dims)));
    }
    let mut dims = room(cursor, n_dims as usize)?;
    for _ in 0..n_dims {
        dims.push(cursor.u64("dimension")?);
    }
    let type_id = cursor.u32("tensor type")?;
    let offset = cursor.u64("tensor offset")?;
    let overflow = |what| GgufError::at(dims_at, Problem::Overflow { dims: dims.clone(), what });
    let elements = product(&dims).ok_or_else(|| overflow("elements"))?;
    let size = match unquantized(type_id) {
        Some(known) => Ok(elements.checked_mul(known.bytes).ok_or_else(|| overflow("bytes"))?),
        None => Err(NoDataReason::UnknownType), // Until `Place::check` has asked the caller.
    };
    let room = 0; // Until `find_room` has seen all of them.
    Ok(Info { name: cursor.own(name)?, at, dims, elements, type_id, offset, room, size })
}

/// Number of elements. Zero dimensions do not hide that the others overflow, so that no partial product
/// of a kernel's does.
pub(super) fn product(dims: &[u64]) -> Option<u64> {
    let sized = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim.max(1)))?;
    Some(if dims.contains(&0) { 0 } else { sized })
}

/// A vector with room for `count` items of what the cursor reads.
fn room<T>(cursor: &Cursor<'_>, count: usize) -> Result<Vec<T>, GgufError> {
    let mut room = Vec::new();
    room.try_reserve_exact(count).map_err(|_| cursor.no_memory())?;
    Ok(room)
}

fn sort_names(cursor: &Cursor<'_>, tensors: &[Info]) -> Result<Vec<usize>, GgufError> {
    let mut by_name: Vec<usize> = room(cursor, tensors.len())?;
    by_name.extend(0..tensors.len());
    // By place next, so that of two equal names the later one in the file is the one complained of. A stable sort would take memory, and
    // end the process where there is none.
    by_name.sort_unstable_by(|&a, &b| tensors[a].name.cmp(&tensors[b].name).then(a.cmp(&b)));
    for pair in by_name.windows(2) {
        let (first, second) = (&tensors[pair[0]], &tensors[pair[1]]);
        if first.name == second.name {
            return Err(GgufError::at(second.at, Problem::DuplicateTensor)
                .within(|| format!("tensor `{}`", second.name)));
        }
    }
    Ok(by_name)
}

/// Finds how far it is from each tensor to the next one, in a data section of so many bytes.
fn find_room(cursor: &Cursor<'_>, tensors: &mut [Info], section: u64) -> Result<(), GgufError> {
    let mut starts: Vec<u64> = room(cursor, tensors.len())?;
    starts.extend(tensors.iter().map(|info| info.offset));
    starts.sort_unstable();
    for info in tensors {
        let next = starts.partition_point(|&start| start <= info.offset);
        let end = starts.get(next).copied().unwrap_or(section).min(section);
        info.room = end.saturating_sub(info.offset);
    }
    Ok(())
}

/// What a file says that bears on the meaning and place of its tensors.
#[derive(Clone, Copy)]
struct Place<'a> {
    alignment: u32,
    architecture: Option<&'a str>,
    file_type: Option<u64>,
}

impl<'a> Place<'a> {
    fn query(self, info: &'a Info) -> SizeQuery<'a> {
        SizeQuery {
            name: &info.name,
            type_id: info.type_id,
            dims: &info.dims,
            room: info.room,
            alignment: self.alignment,
            architecture: self.architecture,
            file_type: self.file_type,
            origin: Origin::of(self.architecture, self.file_type),
        }
    }
}

impl Place<'_> {
    /// Asks for the sizes, and checks that every tensor lies in the section of so many bytes, aligned.
    fn check(
        &self,
        section: u64,
        tensors: &mut [Info],
        sizes: &dyn Fn(&SizeQuery<'_>) -> SizeAnswer,
    ) -> Result<(), GgufError> {
        for info in &mut *tensors {
            if unquantized(info.type_id).is_none() {
                info.size = sizes(&self.query(info)).into_result();
            }
            self.check_bounds(section, info)?;
        }
        Ok(())
    }

    fn check_bounds(&self, section: u64, info: &Info) -> Result<(), GgufError> {
        let (offset, size) = (info.offset, info.least_size());
        let problem = if !offset.is_multiple_of(u64::from(self.alignment)) {
            Problem::Misaligned { offset, alignment: self.alignment }
        } else if offset.checked_add(size).is_none_or(|end| end > section) {
            Problem::BeyondEnd { offset, size, section }
        } else {
            return Ok(());
        };
        Err(GgufError::at(info.at, problem).within(|| format!("tensor `{}`", info.name)))
    }
}

impl Info {
    /// Bytes it takes at least: one for elements of a type whose size nobody knows.
    fn least_size(&self) -> u64 {
        match self.size {
            Ok(size) => size,
            Err(_) => self.elements.min(1),
        }
    }
}

/// Refuses tensors that share bytes. All ends are within the section here, so nothing overflows.
fn check_apart(cursor: &Cursor<'_>, tensors: &[Info]) -> Result<(), GgufError> {
    let mut order: Vec<&Info> = room(cursor, tensors.len())?;
    order.extend(tensors.iter().filter(|info| info.least_size() > 0));
    // Of those at one place in the file's order.
    order.sort_unstable_by_key(|info| (info.offset, info.at));
    for pair in order.windows(2) {
        let (before, info) = (pair[0], pair[1]);
        let end = before.offset + before.least_size();
        if info.offset < end {
            let problem = Problem::Overlap { offset: info.offset, other: before.name.to_string(), end };
            return Err(GgufError::at(info.at, problem).within(|| format!("tensor `{}`", info.name)));
        }
    }
    Ok(())
}
