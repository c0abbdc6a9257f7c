//! Why a model gives no layer, matrix or values: each error names the tensor.

use super::error::{GgufError, NoData};
use super::transforms::TransformError;
use super::types::TypeError;
use crate::text::Printable;
use gristmill_runtime::ErrorClass;
use gristmill_runtime::import::ImportError;
use std::fmt::{Display, Formatter};
use std::ops::Range;

/// Why a [`Model`](super::Model) could not be read, or has not what was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file could not be opened, or has a defect.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The file declares a transform that is not understood.
    #[error(transparent)]
    Transform(#[from] TransformError),
    /// A tensor was asked for as it is stored, which is not as its weights are: the file declares a transform.
    #[error(
        "tensor `{}` is stored transformed (metadata `{key}`), so its rows are no weights by themselves\n  help: `Model::linear`, \
         `linear_rows` and `stacked` apply the transform to inputs; who applies `Model::transforms` alone says so by \
         `Model::transformed_by_caller`",
        Printable(tensor)
    )]
    Transformed {
        /// The tensor.
        tensor: String,
        /// The key that names it.
        key: String,
    },
    /// Experts whose inputs would have to be transformed.
    #[error(
        "tensor `{}`: experts whose inputs are to be transformed (metadata `{key}`) are not supported\n  help: \
         `Model::linear_rows` makes one layer of each expert, which applies the transform",
        Printable(tensor)
    )]
    TransformedExperts {
        /// The tensor.
        tensor: String,
        /// The key that names it.
        key: String,
    },
    /// The file has no tensor of this name.
    #[error("there is no tensor `{}`{}", Printable(tensor), Help(instead))]
    NoTensor {
        /// What was asked for.
        tensor: String,
        /// Where its values may be instead.
        instead: Option<Instead>,
    },
    /// It is not known which format the tensor is in.
    #[error("tensor `{}` (type number {number}): {why}", Printable(tensor))]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type number.
        number: u32,
        /// Why.
        why: TypeError,
    },
    /// A tensor that is not quantized was asked for as a matrix of a format.
    #[error(
        "tensor `{}` is of type {found}, which is no quantized format\n  help: `Model::floats` reads f32, f16 and bf16; \
         `gristmill quantize` makes a file of quantized matrices",
        Printable(tensor)
    )]
    NotQuantized {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: &'static str,
    },
    /// A tensor of another type than f32, f16 or bf16 was asked for as values.
    #[error(
        "tensor `{}` is of type {found}, not f32, f16 or bf16\n  help: `Model::matrix` with a `Dequantizer` reads quantized \
         ones",
        Printable(tensor)
    )]
    NotFloats {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: &'static str,
    },
    /// The dimensions are not those of what was asked for.
    #[error("tensor `{}` has the dimensions {dims:?}, contiguous one first: {why}", Printable(tensor))]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// Its dimensions, the contiguous one first.
        dims: Vec<u64>,
        /// Why they do not do.
        why: &'static str,
    },
    /// A vector has another length than was asked for.
    #[error("tensor `{}` is a vector of {found} values, expected {expected}", Printable(tensor))]
    Length {
        /// The tensor.
        tensor: String,
        /// Values that were asked for.
        expected: usize,
        /// Values that it has.
        found: u64,
    },
    /// Rows were asked for that the tensor has not.
    #[error("tensor `{}` has {n} rows; {} to {} were asked for", Printable(tensor), rows.start, rows.end)]
    Rows {
        /// The tensor.
        tensor: String,
        /// What was asked for.
        rows: Range<usize>,
        /// Rows that it has.
        n: usize,
    },
    /// Tensors that differ in format or row length cannot be one layer.
    #[error(
        "tensors `{}` ({first_is}) and `{}` ({other_is}) can't be one layer: rows must be of one format and length, with the same transform of inputs",
        Printable(first),
        Printable(other)
    )]
    NotAlike {
        /// The first of those to be stacked.
        first: String,
        /// Its format and row length.
        first_is: String,
        /// One that differs from it.
        other: String,
        /// That one's format and row length.
        other_is: String,
    },
    /// A tensor in a layout that depends on tile sizes can't be read.
    #[error("tensor `{}`: {why}", Printable(tensor))]
    Import {
        /// The tensor.
        tensor: String,
        /// Why.
        why: ImportError,
    },
    /// Nothing was named to be stacked.
    #[error("no tensor was named: a stacked layer has one at least")]
    Nothing,
    /// The bytes of a tensor cannot be had.
    #[error(transparent)]
    NoData(#[from] NoData),
    /// More values than memory has room for.
    #[error("tensor `{}`: no memory for {elements} values of 4 bytes", Printable(tensor))]
    Memory {
        /// The tensor.
        tensor: String,
        /// Values that it has.
        elements: u64,
    },
    /// Tensors can't be divided over devices.
    #[error("the model's tensors can't be divided over these devices: {why}")]
    Devices {
        /// Why.
        why: String,
    },
    /// A layer could not be made of the tensors: no kernel, defective data, no memory.
    #[error("{}: {error}", Names(tensors))]
    Layer {
        /// The tensors, in order.
        tensors: Vec<String>,
        /// Why.
        error: gristmill_runtime::Error,
    },
}

impl ModelError {
    /// What kind of error it is, for languages and engines that tell few of them apart: of the file, of what was asked of a sound one, or
    /// of what the machine and the build have.
    pub fn class(&self) -> ErrorClass {
        match self {
            ModelError::File(error) => error.class(),
            ModelError::NoData(error) => error.class(),
            ModelError::Type { why, .. } => match why {
                TypeError::NotCompiled { .. } => ErrorClass::NoKernel,
                TypeError::Unknown { .. } | TypeError::Undecided { .. } | TypeError::BadShape(_) => {
                    ErrorClass::File
                }
            },
            ModelError::Import { why, .. } => why.class(),
            ModelError::Layer { error, .. } => error.class(),
            ModelError::Transform(_) => ErrorClass::File,
            ModelError::NoTensor { .. } => ErrorClass::Name,
            ModelError::Memory { .. } => ErrorClass::Memory,
            ModelError::Dimensions { .. }
            | ModelError::Length { .. }
            | ModelError::Rows { .. }
            | ModelError::NotAlike { .. } => ErrorClass::Shape,
            ModelError::Transformed { .. }
            | ModelError::TransformedExperts { .. }
            | ModelError::NotQuantized { .. }
            | ModelError::NotFloats { .. }
            | ModelError::Nothing
            | ModelError::Devices { .. } => ErrorClass::Request,
        }
    }
}

/// Where the values of a tensor that a file has not may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// The output layer shares the weights of this tensor.
    Tied(String),
    /// They are some of the rows of this tensor, in which several are stacked.
    StackedIn(String),
    /// They are in these, in this order.
    SplitInto(Vec<String>),
    /// A name that may have been meant.
    Meant(String),
}

struct Help<'a>(&'a Option<Instead>);

impl Display for Help<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(Instead::Tied(tensor)) => {
                write!(f, "\n  help: the output layer is tied to the embedding, `{}`", Printable(tensor))
            }
            Some(Instead::StackedIn(tensor)) => {
                write!(f, "\n  help: `{}` has it among its rows: `Model::linear_rows`", Printable(tensor))
            }
            Some(Instead::SplitInto(tensors)) => {
                write!(f, "\n  help: the file has {} apart: `Model::stacked`", Names(tensors))
            }
            Some(Instead::Meant(tensor)) => write!(f, " (did you mean `{}`?)", Printable(tensor)),
        }
    }
}

struct Names<'a>(&'a [String]);

impl Display for Names<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        for (index, name) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}`{}`", Printable(name))?;
        }
        Ok(())
    }
}
