//! The oracle: what every format means, computed from its spec one element at a time.
//!
//! It interprets the specs that the binary carries ([`RegistryFacts::sources`](gristmill_runtime::registry::RegistryFacts)), bit
//! address by bit address, in integers and f64 or in single f32 operations in the order that the spec states. It shares no code
//! with the compiler, the generated kernels or the runtime's arithmetic, and it is slow. `gristmill verify` and
//! `gristmill run` compare kernels against it. What it is not: a kernel, or a fallback for one.
//!
//! ```
//! use gristmill_kernels::REGISTRY;
//! use gristmill_oracle::Oracle;
//!
//! let oracle = Oracle::new(&REGISTRY)?;
//! // One row of 128 weights of i2_s, codes 0, 1, 2, 0 in each byte; the scale lies behind the rows.
//! let row = oracle.format("i2_s")?.decode(&[0b00_01_10_00; 32], 0.5)?;
//! assert_eq!([0, 32, 64, 96].map(|i| row.f32s[i]), [-0.5, 0.0, 0.5, -0.5]);
//! # Ok::<(), gristmill_oracle::OracleError>(())
//! ```

mod compare;
mod fp4;
mod layout;
mod product;
mod prologue;
mod quantize;
mod random;
mod row;

pub use compare::{Halves, first_difference};
pub use prologue::{PrologueRow, PrologueSteps};
pub use quantize::{Int8Row, Refused};
pub use random::Random;
pub use row::Row;

use gristmill_runtime::Registry;
use gristmill_spec::model::{Activations, Factor, Format, Scalar, SpecSet, ValueMap};
use gristmill_spec::{SourceFile, check, render};
use layout::{Place, Raw as _, places};

/// Why the oracle can't answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OracleError {
    /// The specs in the binary don't check.
    #[error("the specs that this binary carries don't check:\n{0}")]
    Specs(String),
    /// No spec in the binary describes the name.
    #[error("the specs that this binary carries don't describe `{0}`")]
    Unknown(String),
    /// Bytes that are not a tensor of the shape.
    #[error("{n} rows of {k} elements of `{format}` take {expected} bytes, found {found}")]
    Size {
        /// The format.
        format: String,
        /// Rows.
        n: usize,
        /// Elements of a row.
        k: usize,
        /// Bytes that the shape takes; 0 where rows are not whole blocks.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
    /// A code that the format gives no meaning.
    #[error("row {row}, column {column}: the code there means nothing")]
    InvalidCode {
        /// The row.
        row: usize,
        /// The first element that the code stands for.
        column: usize,
    },
}

/// Every format that a registry knows, as described.
#[derive(Clone, Debug)]
pub struct Oracle {
    set: SpecSet,
}

impl Oracle {
    /// Reads the specs in `registry` again.
    ///
    /// # Errors
    /// [`OracleError::Specs`].
    pub fn new(registry: &Registry) -> Result<Oracle, OracleError> {
        let sources: Vec<SourceFile> = registry
            .sources
            .iter()
            .map(|source| SourceFile { path: source.path.to_owned(), bytes: source.bytes.to_vec() })
            .collect();
        let report = check(&sources);
        match report.set {
            Some(set) => Ok(Oracle::of(set)),
            None => Err(OracleError::Specs(render(&sources, &report.diagnostics, false))),
        }
    }

    /// The oracle of specs that were checked, which need not be those of a registry.
    pub fn of(set: SpecSet) -> Oracle {
        Oracle { set }
    }

    /// The weight format of this name.
    ///
    /// # Errors
    /// [`OracleError::Unknown`].
    pub fn format(&self, name: &str) -> Result<FormatOracle<'_>, OracleError> {
        let format = self.set.formats.iter().find(|format| format.name == name);
        let unknown = || OracleError::Unknown(name.to_owned());
        let format = format.ok_or_else(unknown)?;
        let activations = self.set.activations.get(format.activations).ok_or_else(unknown)?;
        Ok(FormatOracle::new(format, activations))
    }

    /// The activation format of this name.
    ///
    /// # Errors
    /// [`OracleError::Unknown`].
    pub fn activations(&self, name: &str) -> Result<&Activations, OracleError> {
        let found = self.set.activations.iter().find(|activations| activations.name == name);
        found.ok_or_else(|| OracleError::Unknown(name.to_owned()))
    }
}

/// A number of a tensor that makes the weights it is for NaN or infinite.
#[derive(Clone, Debug, PartialEq)]
pub struct BadScale {
    /// The row.
    pub row: usize,
    /// The block in the row; `None` for the scale of the row or of the tensor.
    pub block: Option<usize>,
    /// Where it is, in bytes from the start of the tensor's data.
    pub byte: usize,
    /// What it is: the field's name, with an index where it has several values.
    pub name: String,
    /// NaN or an infinity.
    pub value: f32,
}

impl std::fmt::Display for BadScale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BadScale { row, block, byte, name, value } = self;
        write!(f, "row {row}")?;
        if let Some(block) = block {
            write!(f, ", block {block}")?;
        }
        write!(f, ", byte {byte} of the tensor: {name} is {value}")
    }
}

/// One format, interpreted.
#[derive(Clone, Debug)]
pub struct FormatOracle<'a> {
    format: &'a Format,
    activations: &'a Activations,
    /// Where the bits of each value of each field are.
    fields: Vec<Vec<Place>>,
}

/// The three terms of a weight, for elements that share their factors.
#[derive(Clone, Copy, Default)]
struct Terms {
    scale: (f32, f64),
    add: Option<(f32, f64)>,
    subtract: Option<(f32, f64)>,
}

impl<'a> FormatOracle<'a> {
    fn new(format: &'a Format, activations: &'a Activations) -> FormatOracle<'a> {
        FormatOracle { format, activations, fields: format.fields.iter().map(places).collect() }
    }

    /// The format as described.
    pub fn format(&self) -> &'a Format {
        self.format
    }

    /// How its activations are described.
    pub fn activations(&self) -> &'a Activations {
        self.activations
    }

    /// Whether a product is one integer sum a row followed by a few f32 operations: nothing but those is rounded.
    pub fn is_exact(&self) -> bool {
        let value = &self.format.value;
        let in_block = value.scale.iter().any(|factor| matches!(factor, Factor::Field(_)));
        !in_block && value.add.is_empty() && value.subtract.is_empty() && self.activations.block.is_none()
    }

    /// The raw bits of value `index` of field `field` (an index into [`Format::fields`]).
    pub fn raw(&self, block: &[u8], field: usize, index: usize) -> u32 {
        self.fields[field][index].read(block)
    }

    /// Sets the raw bits of value `index` of field `field`.
    pub fn set_raw(&self, block: &mut [u8], field: usize, index: usize, raw: u32) {
        self.fields[field][index].write(block, raw);
    }

    /// How many values field `field` holds.
    pub fn count(&self, field: usize) -> usize {
        self.fields[field].len()
    }

    /// The number that raw bits of field `field` are as a factor.
    pub fn factor(&self, field: usize, raw: u32) -> f64 {
        let field = &self.format.fields[field];
        field.ty.number(raw).unwrap_or_else(|| f64::from(field.times * field.ty.signed(raw) + field.plus))
    }

    /// The integer that code `code` gives to element `within` of its group, before signs and shift; `None`
    /// if the code means nothing.
    pub fn mapped(&self, code: u32, within: usize) -> Option<i32> {
        let value = &self.format.value;
        match &value.map {
            ValueMap::Affine { times, zero } => {
                Some(times * self.format.fields[value.code].ty.signed(code) - zero)
            }
            ValueMap::Levels(levels) => levels.get(code as usize).copied(),
            ValueMap::Codebook { times, entries, .. } => {
                entries.get(code as usize).and_then(|entry| entry.get(within)).map(|v| times * v)
            }
        }
    }

    /// The code of element `element` of a block, and which of its code's elements it is.
    pub fn code_of(&self, element: usize) -> (usize, usize) {
        let (group, stride) = (self.format.value.group as usize, self.format.value.stride as usize);
        // As many codes are interleaved as an element is from the next one of its code.
        let (span, at) = (element / (group * stride), element % (group * stride));
        (span * stride + at % stride, at / stride)
    }

    /// The integer of element `element`; `None` if its code means nothing.
    fn integer(&self, block: &[u8], element: usize) -> Option<i32> {
        let value = &self.format.value;
        let (code, within) = self.code_of(element);
        let mut v = self.mapped(self.raw(block, value.code, code), within)?;
        if let Some(signs) = &value.signs {
            let run = self.run(signs.field);
            let mut mask = self.raw(block, signs.field, element / run);
            if signs.parity && mask.count_ones() % 2 == 1 {
                mask |= 1 << (run - 1);
            }
            if mask >> (element % run) & 1 == 1 {
                v = -v;
            }
        }
        if let Some(shift) = &value.shift {
            let raw = self.raw(block, shift.field, element / self.run(shift.field));
            v += shift.values.get(raw as usize)?;
        }
        Some(v)
    }

    /// Elements that share a value of field `field`.
    fn run(&self, field: usize) -> usize {
        self.format.elements as usize / self.count(field)
    }

    /// Elements that share all their factors.
    fn common_run(&self) -> usize {
        let value = &self.format.value;
        let fields =
            value.scale.iter().chain(&value.add).chain(&value.subtract).filter_map(|factor| match factor {
                Factor::Field(field) => Some(self.run(*field)),
                Factor::Row | Factor::Tensor => None,
            });
        fields.fold(self.format.elements as usize, gcd)
    }

    fn product(&self, block: &[u8], element: usize, outer: f32, factors: &[Factor]) -> Option<(f32, f64)> {
        let mut values = factors.iter().map(|factor| match factor {
            Factor::Row | Factor::Tensor => (outer, f64::from(outer)),
            Factor::Field(index) => {
                let number = self.factor(*index, self.raw(block, *index, element / self.run(*index)));
                (number as f32, number)
            }
        });
        let first = values.next()?;
        Some(values.fold(first, |product, factor| (product.0 * factor.0, product.1 * factor.1)))
    }

    fn terms(&self, block: &[u8], element: usize, outer: f32) -> Terms {
        let value = &self.format.value;
        let (s32, s64) = self.product(block, element, outer, &value.scale).unwrap_or((1.0, 1.0));
        Terms {
            scale: (s32 * value.unit, s64 * f64::from(value.unit)),
            add: self.product(block, element, outer, &value.add),
            subtract: self.product(block, element, outer, &value.subtract),
        }
    }

    /// Decodes the blocks of one row, without its header.
    ///
    /// # Errors
    /// [`OracleError::InvalidCode`] in row 0, [`OracleError::Size`].
    pub fn decode(&self, blocks: &[u8], outer: f32) -> Result<Row, OracleError> {
        let (elements, bytes) = (self.format.elements as usize, self.format.bytes as usize);
        if !blocks.len().is_multiple_of(bytes) {
            let (n, k) = (1, blocks.len() / bytes * elements);
            let expected = blocks.len() / bytes * bytes;
            return Err(self.size_error(n, k, expected, blocks.len()));
        }
        let run = self.common_run();
        let k = blocks.len() / bytes * elements;
        let mut row = Row {
            integers: Vec::with_capacity(k),
            f32s: Vec::with_capacity(k),
            f64s: Vec::with_capacity(k),
            outer,
            steps: self.steps(blocks),
        };
        for block in blocks.chunks_exact(bytes) {
            let mut terms = Terms::default();
            for element in 0..elements {
                if element % run == 0 {
                    terms = self.terms(block, element, outer);
                }
                let Some(v) = self.integer(block, element) else {
                    // Elements come in order, so this one is the first of its code.
                    return Err(OracleError::InvalidCode { row: 0, column: row.integers.len() });
                };
                let (mut w32, mut w64) = (terms.scale.0 * v as f32, terms.scale.1 * f64::from(v));
                match (terms.add, terms.subtract) {
                    (None, None) => {}
                    (Some(add), None) => (w32, w64) = (w32 + add.0, w64 + add.1),
                    (None, Some(low)) => (w32, w64) = (w32 - low.0, w64 - low.1),
                    (Some(add), Some(low)) => (w32, w64) = (w32 - (low.0 - add.0), w64 - (low.1 - add.1)),
                }
                row.integers.push(v);
                row.f32s.push(w32);
                row.f64s.push(w64);
            }
        }
        Ok(row)
    }

    /// Elements of some blocks whose code means nothing, each at the start of its group.
    pub fn invalid_codes(&self, blocks: &[u8]) -> Vec<usize> {
        let elements = self.format.elements as usize;
        let whole = blocks.chunks_exact(self.format.bytes as usize).enumerate();
        let of_block = |(index, block): (usize, &[u8])| -> Vec<usize> {
            let starts = (0..elements).filter(|&i| self.code_of(i).1 == 0);
            starts.filter(|&i| self.integer(block, i).is_none()).map(|i| index * elements + i).collect()
        };
        whole.flat_map(of_block).collect()
    }

    /// The scale of each run of some blocks, by f32 operations.
    pub fn scales(&self, blocks: &[u8], outer: f32) -> Vec<f32> {
        let runs = (0..self.format.elements as usize).step_by(self.common_run());
        let whole = blocks.chunks_exact(self.format.bytes as usize);
        whole.flat_map(|block| runs.clone().map(move |run| self.terms(block, run, outer).scale.0)).collect()
    }

    /// The first number of row `row` of a whole tensor by which weights are multiplied or moved and which is NaN or infinite.
    ///
    /// # Errors
    /// [`OracleError::Size`].
    pub fn bad_scale(
        &self,
        tensor: &[u8],
        n: usize,
        k: usize,
        row: usize,
    ) -> Result<Option<BadScale>, OracleError> {
        let (blocks, outer) = self.blocks(tensor, n, k, row)?;
        let start = row * self.row_bytes(k);
        if !outer.is_finite() {
            let (name, byte) = match self.format.row_header {
                Some(_) => ("the scale of the row", start),
                None => ("the scale of the tensor", n * self.row_bytes(k)),
            };
            return Ok(Some(BadScale { row, block: None, byte, name: name.to_owned(), value: outer }));
        }
        let bytes = self.format.bytes as usize;
        let start = start + self.header_bytes();
        let found = blocks.chunks_exact(bytes).enumerate().find_map(|(block, of_block)| {
            let (name, byte, value) = self.bad_in_block(of_block, outer)?;
            Some(BadScale { row, block: Some(block), byte: start + block * bytes + byte, name, value })
        });
        Ok(found)
    }

    /// The first such number of a block: its name, its place and its value.
    fn bad_in_block(&self, block: &[u8], outer: f32) -> Option<(String, usize, f32)> {
        let value = &self.format.value;
        for factor in value.scale.iter().chain(&value.add).chain(&value.subtract) {
            let Factor::Field(index) = *factor else { continue };
            let field = &self.format.fields[index];
            for (at, place) in self.fields[index].iter().enumerate() {
                let Some(number) = field.ty.number(place.read(block)) else { break };
                if !number.is_finite() {
                    let name = if self.fields[index].len() > 1 {
                        format!("`{}` {at}", field.name)
                    } else {
                        format!("`{}`", field.name)
                    };
                    return Some((name, place.byte(), number as f32));
                }
            }
        }
        // Finite factors whose product is beyond f32.
        let runs = (0..self.format.elements as usize).step_by(self.common_run());
        let products = runs.flat_map(|run| {
            let Terms { scale, add, subtract } = self.terms(block, run, outer);
            [Some(scale.0), add.map(|add| add.0), subtract.map(|subtract| subtract.0)].into_iter().flatten()
        });
        let beyond = products.into_iter().find(|product| !product.is_finite())?;
        Some(("a product of scales".to_owned(), 0, beyond))
    }

    /// Bytes of the number before the blocks of a row.
    fn header_bytes(&self) -> usize {
        self.format.row_header.map_or(0, |scalar| scalar.bits() as usize / 8)
    }

    /// Bytes of a row of `k` elements, header included; 0 if it is not whole blocks.
    fn row_bytes(&self, k: usize) -> usize {
        let elements = self.format.elements as usize;
        if k.is_multiple_of(elements) {
            self.header_bytes() + k / elements * self.format.bytes as usize
        } else {
            0
        }
    }

    fn size_error(&self, n: usize, k: usize, expected: usize, found: usize) -> OracleError {
        OracleError::Size { format: self.format.name.clone(), n, k, expected, found }
    }

    /// The blocks of row `row` of a whole tensor, and the scale outside them.
    ///
    /// # Errors
    /// [`OracleError::Size`].
    pub fn blocks<'b>(
        &self,
        tensor: &'b [u8],
        n: usize,
        k: usize,
        row: usize,
    ) -> Result<(&'b [u8], f32), OracleError> {
        let row_bytes = self.row_bytes(k);
        let tail = self.format.tensor_tail.map_or(0, |(_, bytes)| bytes as usize);
        let expected = n * row_bytes + tail;
        let wrong = || self.size_error(n, k, expected, tensor.len());
        if tensor.len() != expected || row >= n || (k > 0 && row_bytes == 0) {
            return Err(wrong());
        }
        let bytes = tensor.get(row * row_bytes..(row + 1) * row_bytes).ok_or_else(wrong)?;
        let (header, blocks) = bytes.split_at(self.header_bytes());
        let outer = match (self.format.row_header, self.format.tensor_tail) {
            (Some(scalar), _) => little_endian(scalar, header),
            (None, Some((scalar, _))) => little_endian(scalar, &tensor[n * row_bytes..]),
            (None, None) => 1.0,
        };
        Ok((blocks, outer))
    }

    /// Decodes row `row` of a whole tensor of `n` rows of `k` elements, headers and tail included.
    ///
    /// # Errors
    /// [`OracleError::Size`], [`OracleError::InvalidCode`].
    pub fn row(&self, tensor: &[u8], n: usize, k: usize, row: usize) -> Result<Row, OracleError> {
        let (blocks, outer) = self.blocks(tensor, n, k, row)?;
        self.decode(blocks, outer).map_err(|error| match error {
            OracleError::InvalidCode { column, .. } => OracleError::InvalidCode { row, column },
            other => other,
        })
    }

    /// Activations in f64: what `q` and its scales stand for.
    pub fn activations_f64(&self, q: &[i8], scales: &[f32]) -> Vec<f64> {
        let block = self.activations.block.map_or(q.len().max(1), |block| block as usize);
        let one = |(i, q): (usize, &i8)| {
            let scale = scales.get(i / block).map_or(0.0, |scale| f64::from(*scale));
            if self.activations.keeps_multiplier { f64::from(*q) / scale } else { f64::from(*q) * scale }
        };
        q.iter().enumerate().map(one).collect()
    }

    /// One output of a product in f64, from activations in f64.
    pub fn product_f64(&self, row: &Row, x: &[f64], bias: Option<f32>) -> f64 {
        let sum: f64 = row.f64s.iter().zip(x).map(|(w, x)| w * x).sum();
        sum + bias.map_or(0.0, f64::from)
    }
}

fn little_endian(scalar: Scalar, bytes: &[u8]) -> f32 {
    let raw =
        bytes.iter().take(scalar.bits() as usize / 8).rev().fold(0, |raw, byte| raw << 8 | u32::from(*byte));
    layout::number(scalar, raw) as f32
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
