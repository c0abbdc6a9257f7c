//! The importance of a model's columns, as llama.cpp's `llama-imatrix` measures it: its GGUF files.
//!
//! Such a file has the metadata `general.type = "imatrix"`, `imatrix.datasets`, `imatrix.chunk_count` and `imatrix.chunk_size`, and for
//! each tensor `NAME` of the model two of f32: `NAME.in_sum2` with the sums of x^2 over the inputs of each column (`k`, or for stacked
//! experts `k` by the number of experts), and `NAME.counts` with the number of inputs (one, or one for each expert). Sum by count is
//! the mean square of what a column is multiplied by, which is what a squared error of its weights costs. Source: `tools/imatrix` and
//! `common/imatrix-loader.cpp` of llama.cpp. The older form without a container (`.dat`) is refused.

use super::error::{GgufError, NoData, NoDataReason, Problem};
use super::file::{FileBytes, Store};
use super::read::{Gguf, Tensor};
use super::size::unquantized_only;
use super::value::Value;
use crate::text::Printable;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Ends of the names of the two tensors.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// f32 among GGUF's types.
const F32: u32 = 0;

/// Why a file gives no importance.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportanceError {
    /// It can't be read, or has a defect.
    #[error(transparent)]
    File(#[from] GgufError),
    /// It is no GGUF file.
    #[error(
        "{0}\n  help: `llama-imatrix --in-file OLD.dat -o NEW.gguf` of llama.cpp makes one of its older files"
    )]
    NotGguf(GgufError),
    /// It is another GGUF file.
    #[error(
        "the file holds no importance of columns: metadata `general.type` is {}, not `imatrix`\n  help: `llama-imatrix` of llama.cpp measures \
         one and writes such a file",
        Found(.0)
    )]
    NotImportance(Option<String>),
    /// It has no entry.
    #[error("the file has no tensor `NAME{SUMS}`, so it holds the importance of nothing")]
    Empty,
    /// One of the two tensors of an entry is not there.
    #[error("there is a tensor `{}`, but no `{}`", Printable(there), Printable(missing))]
    Alone {
        /// The one that is there.
        there: String,
        /// The other one.
        missing: String,
    },
    /// A tensor is not of f32.
    #[error("tensor `{}` is of type number {number}, expected f32 ({F32})", Printable(tensor))]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type number.
        number: u32,
    },
    /// The dimensions of an entry contradict each other.
    #[error(
        "tensor `{}` has the dimensions {sums:?} and its counts {counts:?}, contiguous one first: expected `k` and as many counts as \
         rows of `k`",
        Printable(tensor)
    )]
    Dimensions {
        /// The tensor of the model.
        tensor: String,
        /// Those of the sums.
        sums: Vec<u64>,
        /// Those of the counts.
        counts: Vec<u64>,
    },
    /// A number that is NaN, infinite or negative.
    #[error(
        "tensor `{}`: value {index} is {value}, expected a number that is finite and not negative",
        Printable(tensor)
    )]
    Value {
        /// The tensor of the file.
        tensor: String,
        /// Which value of it.
        index: usize,
        /// What it is.
        value: f32,
    },
    /// A sum by its count is no f32.
    #[error(
        "tensor `{}`: value {index}, {sum} by a count of {count}, is too large for an f32",
        Printable(tensor)
    )]
    Quotient {
        /// The tensor of the file.
        tensor: String,
        /// Which value of it.
        index: usize,
        /// The sum.
        sum: f32,
        /// The count.
        count: f32,
    },
    /// The bytes of a tensor cannot be had.
    #[error(transparent)]
    NoData(#[from] NoData),
}

struct Found<'a>(&'a Option<String>);

impl std::fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(found) => write!(f, "`{}`", Printable(found)),
            None => f.write_str("missing or no text"),
        }
    }
}

/// The importance of the columns of a model's tensors.
#[derive(Clone, Debug)]
pub struct Importance {
    tensors: BTreeMap<String, Columns>,
    datasets: Vec<String>,
    chunks: Option<u64>,
}

/// The importance of the columns of one tensor.
#[derive(Clone, Debug)]
pub struct Columns {
    k: usize,
    values: Vec<f32>,
    measured: Vec<bool>,
}

impl Importance {
    /// Reads a file as a whole.
    ///
    /// # Errors
    /// Where it can't be read, is no such file, or has anything in an entry that can't be meant.
    pub fn open(path: &Path) -> Result<Importance, ImportanceError> {
        match Gguf::<FileBytes>::open(path, &unquantized_only) {
            Ok(file) => Importance::of(&file),
            Err(error) if matches!(error.problem(), Some(Problem::Magic { .. })) => {
                Err(ImportanceError::NotGguf(error))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What a file holds. Tensors of other names than described above are not looked at.
    ///
    /// # Errors
    /// As [`Importance::open`].
    pub fn of<B: Store>(file: &Gguf<B>) -> Result<Importance, ImportanceError> {
        let kind = file.value("general.type").and_then(|value| value.as_str());
        if kind != Some("imatrix") {
            return Err(ImportanceError::NotImportance(kind.map(str::to_owned)));
        }
        let mut tensors = BTreeMap::new();
        for tensor in file.tensors() {
            let (name, other) = match (tensor.name().strip_suffix(SUMS), tensor.name().strip_suffix(COUNTS)) {
                (Some(name), _) => (name, COUNTS),
                (None, Some(name)) => (name, SUMS),
                (None, None) => continue,
            };
            let missing = format!("{name}{other}");
            let Some(found) = file.tensor(&missing) else {
                return Err(ImportanceError::Alone { there: tensor.name().to_owned(), missing });
            };
            if other == COUNTS {
                tensors.insert(name.to_owned(), Columns::of(name, &tensor, &found)?);
            }
        }
        if tensors.is_empty() {
            return Err(ImportanceError::Empty);
        }
        let mut datasets = Vec::new();
        if let Some(Value::Array(array)) = file.value("imatrix.datasets") {
            let no_memory =
                |_| GgufError::Memory { path: PathBuf::new(), bytes: array.len().saturating_mul(8) };
            for text in array.elements().filter_map(|value| value.ok()?.as_str()) {
                datasets.try_reserve(1).map_err(no_memory)?;
                datasets.push(text.to_owned());
            }
        }
        let chunks = file.value("imatrix.chunk_count").and_then(|value| value.as_u64());
        Ok(Importance { tensors, datasets, chunks })
    }

    /// What was measured for a tensor of the model; `None`: nothing.
    pub fn tensor(&self, name: &str) -> Option<&Columns> {
        self.tensors.get(name)
    }

    /// Names of tensors of the model, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The texts that it was measured with, as the file has them.
    pub fn datasets(&self) -> &[String] {
        &self.datasets
    }

    /// How many chunks of text it was measured with, if the file says so.
    pub fn chunks(&self) -> Option<u64> {
        self.chunks
    }
}

impl Columns {
    /// Elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Matrices: 1, or experts.
    pub fn matrices(&self) -> usize {
        self.measured.len()
    }

    /// The importance of the `k` columns of a matrix, finite and not negative; `None`: no input reached it (its count is zero), or
    /// there is no such matrix.
    pub fn matrix(&self, index: usize) -> Option<&[f32]> {
        self.measured.get(index).filter(|measured| **measured)?;
        self.values.chunks_exact(self.k).nth(index)
    }

    fn of(name: &str, sums: &Tensor<'_>, counts: &Tensor<'_>) -> Result<Columns, ImportanceError> {
        for tensor in [sums, counts] {
            if tensor.type_id() != F32 {
                let (tensor, number) = (tensor.name().to_owned(), tensor.type_id());
                return Err(ImportanceError::Type { tensor, number });
            }
        }
        let dimensions = || ImportanceError::Dimensions {
            tensor: name.to_owned(),
            sums: sums.dims().to_vec(),
            counts: counts.dims().to_vec(),
        };
        let k = sums.dims().first().and_then(|k| usize::try_from(*k).ok()).unwrap_or(1);
        let (mut values, counted) = (floats(sums)?, floats(counts)?);
        if k == 0 || counted.is_empty() || counted.len().checked_mul(k) != Some(values.len()) {
            return Err(dimensions());
        }
        for (row, (values, count)) in values.chunks_exact_mut(k).zip(&counted).enumerate() {
            for (column, value) in values.iter_mut().enumerate().filter(|_| *count > 0.0) {
                let mean = *value / count;
                if !mean.is_finite() {
                    let (tensor, index) = (sums.name().to_owned(), row * k + column);
                    return Err(ImportanceError::Quotient { tensor, index, sum: *value, count: *count });
                }
                *value = mean;
            }
        }
        let mut measured = room(counts, counted.len())?;
        measured.extend(counted.iter().map(|count| *count > 0.0));
        Ok(Columns { k, values, measured })
    }
}

/// A vector that has room for something of each of so many values of a tensor.
fn room<T>(tensor: &Tensor<'_>, count: usize) -> Result<Vec<T>, NoData> {
    let mut room = Vec::new();
    room.try_reserve_exact(count).map_err(|_| NoData {
        tensor: tensor.name().to_owned(),
        type_id: tensor.type_id(),
        dims: tensor.dims().to_vec(),
        reason: NoDataReason::Memory(count.saturating_mul(size_of::<T>()) as u64),
    })?;
    Ok(room)
}

/// The values of a tensor of f32, which have to be finite and not negative.
fn floats(tensor: &Tensor<'_>) -> Result<Vec<f32>, ImportanceError> {
    let bytes = tensor.data()?;
    let (words, _) = bytes.as_chunks::<4>();
    let mut values = room(tensor, words.len())?;
    for (index, word) in words.iter().enumerate() {
        let value = f32::from_le_bytes(*word);
        if !(value.is_finite() && value >= 0.0) {
            return Err(ImportanceError::Value { tensor: tensor.name().to_owned(), index, value });
        }
        values.push(value);
    }
    Ok(values)
}
