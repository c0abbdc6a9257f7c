//! Handles: the safe way to run an entry. Taken once from a decision, then used for every run.

mod blocks;
mod embed;
mod matmul;

pub use blocks::{Dequantizer, Quantizer};
pub use embed::Embedder;
pub use matmul::Matmul;

use crate::activations::Input;
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

pub(crate) fn check_len(
    what: &'static str,
    unit: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::ShapeMismatch { what, unit, expected, found }) }
}

pub(crate) fn product_of(what: &'static str, a: usize, b: usize) -> Result<usize, Error> {
    a.checked_mul(b).ok_or(Error::TooLarge { what })
}

/// Compares the lengths of all operands of a product with its shape.
pub(crate) fn check_operands(
    input: Input<'_>,
    m: usize,
    n: usize,
    k: usize,
    blocks: usize,
    bias: Option<&[f32]>,
    y: &[f32],
) -> Result<(), Error> {
    check_input(input, m, k, blocks)?;
    check_outputs(m, n, bias, y)
}

/// Compares the lengths of activations with their shape.
pub(crate) fn check_input(input: Input<'_>, m: usize, k: usize, blocks: usize) -> Result<(), Error> {
    check_len("activations", "values", product_of("activations", m, k)?, input.len())?;
    if let Input::I8 { scales, .. } = input {
        check_len("activation scales", "values", product_of("activations", m, blocks)?, scales.len())?;
    }
    Ok(())
}

/// Compares the lengths of bias and output with the shape.
pub(crate) fn check_outputs(m: usize, n: usize, bias: Option<&[f32]>, y: &[f32]) -> Result<(), Error> {
    if let Some(bias) = bias {
        check_len("the bias", "values", n, bias.len())?;
    }
    check_len("the output", "values", product_of("the output", m, n)?, y.len())
}

/// The product over nothing: the bias, or 0.
pub(crate) fn fill(bias: Option<&[f32]>, y: &mut [f32], n: usize) -> Result<(), Error> {
    match bias {
        Some(bias) if n > 0 => y.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(bias)),
        Some(_) | None => y.fill(0.0),
    }
    Ok(())
}
