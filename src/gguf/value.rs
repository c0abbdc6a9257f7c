//! Metadata values: typed, and arrays decoded only when they are asked for.

use super::cursor::Cursor;
use super::error::{GgufError, Problem};
use super::value_type::ValueType;

/// A metadata value, borrowing its strings and arrays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Unsigned byte.
    U8(u8),
    /// Signed byte.
    I8(i8),
    /// Unsigned, 16 bits.
    U16(u16),
    /// Signed, 16 bits.
    I16(i16),
    /// Unsigned, 32 bits.
    U32(u32),
    /// Signed, 32 bits.
    I32(i32),
    /// IEEE binary32.
    F32(f32),
    /// Truth value.
    Bool(bool),
    /// Text.
    String(&'a str),
    /// Scalars or strings of one type.
    Array(Array<'a>),
    /// Unsigned, 64 bits.
    U64(u64),
    /// Signed, 64 bits.
    I64(i64),
    /// IEEE binary64.
    F64(f64),
}

impl<'a> Value<'a> {
    /// Type of the value.
    pub const fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The text, if it is a string.
    pub const fn as_str(&self) -> Option<&'a str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The number, if it is an integer of any width that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            Value::F32(_) | Value::F64(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
        }
    }

    /// The number, if it is a floating-point one.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }

    /// The truth value, if it is one.
    pub const fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// The array, if it is one.
    pub const fn as_array(&self) -> Option<Array<'a>> {
        match *self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// Reads one value of the given type.
    pub(super) fn read(cursor: &mut Cursor<'a>, value_type: ValueType) -> Result<Value<'a>, GgufError> {
        const WHAT: &str = "metadata value";
        Ok(match value_type {
            ValueType::U8 => Value::U8(cursor.u8(WHAT)?),
            ValueType::I8 => Value::I8(cursor.u8(WHAT)?.cast_signed()),
            ValueType::U16 => Value::U16(cursor.u16(WHAT)?),
            ValueType::I16 => Value::I16(cursor.u16(WHAT)?.cast_signed()),
            ValueType::U32 => Value::U32(cursor.u32(WHAT)?),
            ValueType::I32 => Value::I32(cursor.u32(WHAT)?.cast_signed()),
            ValueType::F32 => Value::F32(f32::from_bits(cursor.u32(WHAT)?)),
            ValueType::U64 => Value::U64(cursor.u64(WHAT)?),
            ValueType::I64 => Value::I64(cursor.u64(WHAT)?.cast_signed()),
            ValueType::F64 => Value::F64(f64::from_bits(cursor.u64(WHAT)?)),
            ValueType::String => Value::String(cursor.string(WHAT)?),
            ValueType::Array => Value::Array(Array::read(cursor)?),
            ValueType::Bool => {
                let at = cursor.offset();
                match cursor.u8(WHAT)? {
                    0 => Value::Bool(false),
                    1 => Value::Bool(true),
                    other => return Err(GgufError::at(at, Problem::Bool(other))),
                }
            }
        })
    }

    /// Appends the value (without its type) as it stands in a file.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Value::U8(v) => out.push(*v),
            Value::I8(v) => out.extend(v.to_le_bytes()),
            Value::U16(v) => out.extend(v.to_le_bytes()),
            Value::I16(v) => out.extend(v.to_le_bytes()),
            Value::U32(v) => out.extend(v.to_le_bytes()),
            Value::I32(v) => out.extend(v.to_le_bytes()),
            Value::F32(v) => out.extend(v.to_le_bytes()),
            Value::Bool(v) => out.push(u8::from(*v)),
            Value::String(v) => encode_string(v, out),
            Value::U64(v) => out.extend(v.to_le_bytes()),
            Value::I64(v) => out.extend(v.to_le_bytes()),
            Value::F64(v) => out.extend(v.to_le_bytes()),
            Value::Array(array) => {
                out.extend(array.element.id().to_le_bytes());
                out.extend(array.count.to_le_bytes());
                out.extend(array.bytes);
            }
        }
    }
}

/// Appends a string: u64 length, then its bytes.
pub(super) fn encode_string(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// An array of scalars or strings, as its bytes; [`Array::elements`] decodes.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    pub(super) element: ValueType,
    pub(super) count: u64,
    pub(super) bytes: &'a [u8],
    /// Where `bytes` lies in the file, for errors.
    pub(super) at: u64,
}

impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        // Not `at`: an array is the same one wherever it stands.
        self.element == other.element && self.count == other.count && self.bytes == other.bytes
    }
}

impl<'a> Array<'a> {
    /// Type of the elements; never [`ValueType::Array`].
    pub const fn element_type(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements in order.
    ///
    /// They were checked when the file was read; an error means that a mapped file has changed since.
    pub fn elements(&self) -> Elements<'a> {
        Elements { cursor: Cursor::new(self.bytes, self.at), element: self.element, left: self.count }
    }

    /// Walks over an array and checks each element, so that what lies behind it can be found.
    fn read(cursor: &mut Cursor<'a>) -> Result<Array<'a>, GgufError> {
        let at = cursor.offset();
        let id = cursor.u32("element type of an array")?;
        let element = ValueType::from_id(id).ok_or_else(|| GgufError::at(at, Problem::ValueType(id)))?;
        if element == ValueType::Array {
            return Err(GgufError::at(at, Problem::NestedArray));
        }
        let at = cursor.offset();
        let count = cursor.u64("length of an array")?;
        cursor.check_count(at, count, element.least_bytes(), "number of array elements")?;
        let at = cursor.offset();
        let mut walk = cursor.clone();
        let length = match element {
            // Scalars of a fixed size that are valid whatever their bits: nothing to look at.
            ValueType::U8
            | ValueType::I8
            | ValueType::U16
            | ValueType::I16
            | ValueType::U32
            | ValueType::I32
            | ValueType::F32
            | ValueType::U64
            | ValueType::I64
            | ValueType::F64 => count * element.least_bytes(),
            ValueType::Bool | ValueType::String | ValueType::Array => {
                for _ in 0..count {
                    Value::read(&mut walk, element)?;
                }
                walk.offset() - at
            }
        };
        Ok(Array { element, count, bytes: cursor.take(length, "array")?, at })
    }
}

/// Iterator over the elements of an [`Array`].
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    cursor: Cursor<'a>,
    element: ValueType,
    left: u64,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Value<'a>, GgufError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let value = Value::read(&mut self.cursor, self.element);
        if value.is_err() {
            self.left = 0; // What follows a defect has no known place.
        }
        Some(value)
    }
}

/// An array to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayBuf {
    element: ValueType,
    count: u64,
    bytes: Vec<u8>,
}

impl ArrayBuf {
    /// An array of strings.
    pub fn strings<'s>(items: impl IntoIterator<Item = &'s str>) -> ArrayBuf {
        ArrayBuf::encode(ValueType::String, items.into_iter().map(Value::String))
    }

    /// An array of f32.
    pub fn f32s(items: impl IntoIterator<Item = f32>) -> ArrayBuf {
        ArrayBuf::encode(ValueType::F32, items.into_iter().map(Value::F32))
    }

    /// An array of i8.
    pub fn i8s(items: impl IntoIterator<Item = i8>) -> ArrayBuf {
        ArrayBuf::encode(ValueType::I8, items.into_iter().map(Value::I8))
    }

    /// An array of i32.
    pub fn i32s(items: impl IntoIterator<Item = i32>) -> ArrayBuf {
        ArrayBuf::encode(ValueType::I32, items.into_iter().map(Value::I32))
    }

    /// An array of u32.
    pub fn u32s(items: impl IntoIterator<Item = u32>) -> ArrayBuf {
        ArrayBuf::encode(ValueType::U32, items.into_iter().map(Value::U32))
    }

    /// An array of u64.
    pub fn u64s(items: impl IntoIterator<Item = u64>) -> ArrayBuf {
        ArrayBuf::encode(ValueType::U64, items.into_iter().map(Value::U64))
    }

    /// An array of bools.
    pub fn bools(items: impl IntoIterator<Item = bool>) -> ArrayBuf {
        ArrayBuf::encode(ValueType::Bool, items.into_iter().map(Value::Bool))
    }

    fn encode<'s>(element: ValueType, items: impl Iterator<Item = Value<'s>>) -> ArrayBuf {
        let mut array = ArrayBuf { element, count: 0, bytes: Vec::new() };
        for item in items {
            item.encode(&mut array.bytes);
            array.count += 1;
        }
        array
    }

    /// The array as a value for [`super::GgufWriter::metadata`].
    pub fn value(&self) -> Value<'_> {
        Value::Array(Array { element: self.element, count: self.count, bytes: &self.bytes, at: 0 })
    }
}
