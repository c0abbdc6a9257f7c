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
use crate::registry::{Entry, FormatInfo, Registry};
use crate::request::Shape;

/// The weight format of an entry, with what the handles rely on checked.
fn format_of(registry: &'static Registry, entry: &Entry) -> Result<&'static FormatInfo, Error> {
    let broken = |at, what| Error::BrokenRegistry { package: registry.package, at, what };
    let format = registry
        .formats
        .get(entry.format)
        .ok_or_else(|| broken("entries", "an entry names no format of it"))?;
    if format.elements == 0 || format.bytes == 0 {
        return Err(broken(format.name, "a block is empty"));
    }
    if format.row_header.is_some() && format.tensor_tail.is_some() {
        return Err(broken(format.name, "it has both a row header and a tensor tail"));
    }
    Ok(format)
}

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
