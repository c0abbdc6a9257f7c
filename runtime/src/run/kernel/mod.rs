//! Handles: the safe way to run an entry. Taken once from a decision, then used for every run.

mod blocks;
mod embed;
mod matmul;

pub use blocks::{Dequantizer, Quantizer};
pub use embed::Embedder;
pub use matmul::Matmul;
#[cfg(feature = "cuda")]
pub(crate) use matmul::QuantizedProduct;

use crate::decide::broken_rule;
use crate::error::Error;
use crate::registry::{Entry, FormatInfo};
use crate::request::Shape;

fn check_format(
    entry: &'static Entry,
    expected: &'static FormatInfo,
    found: &'static FormatInfo,
) -> Result<(), Error> {
    if expected.same_as(found) {
        return Ok(());
    }
    Err(Error::WrongFormat { kernel: entry.name, expected: expected.name, found: found.name })
}

fn check_shape(entry: &'static Entry, shape: Shape) -> Result<(), Error> {
    match broken_rule(&entry.shape, shape) {
        Some(rule) => Err(Error::ShapeRule { kernel: entry.name, rule }),
        None => Ok(()),
    }
}
