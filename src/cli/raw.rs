//! Raw files: rows of f32 on one side, a format's bytes on the other.

use super::environment::Environment;
use super::error::{CliError, Outcome};
use super::memory::{self, Need};
use super::table::counted;
use super::{limited, output, request};
use gristmill::oracle::Oracle;
use gristmill::runtime::import::Importer;
use gristmill::{Dequantizer, QuantizedMatrix, Quantizer, REGISTRY, Request, Threads};
use std::io::Write;
use std::path::Path;

/// What would take less memory.
const LESS: &str = "the file is converted as a whole; divide it by rows";

/// Bytes of a file; 0 where it is a pipe, whose length nobody knows.
fn length(path: &Path) -> Result<usize, CliError> {
    let length = std::fs::metadata(path).map_err(CliError::file("read", path))?.len();
    Ok(usize::try_from(length).unwrap_or(usize::MAX))
}

/// The bytes of a file that there is memory for `times` times.
fn read(path: &Path, times: usize) -> Result<Vec<u8>, CliError> {
    Need::new().and(&[length(path)?], times).check(|| format!("`{}`", path.display()), LESS)?;
    // What has no length, a pipe or a device, may have no end.
    let most = memory::available().unwrap_or(u64::MAX) / (times as u64 + 1);
    limited::read(path, most, "the memory that is left")
}

/// Reads a file of f32.
fn read_f32(path: &Path) -> Result<Vec<f32>, CliError> {
    // The bytes, their values, and no more in the format.
    let bytes = read(path, 3)?;
    let (values, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(CliError::usage(
            format!("`{}` has {} bytes, which is not a whole number of f32", path.display(), bytes.len()),
            "the input of `quantize --raw` is little-endian f32, row after row",
        ));
    }
    Ok(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// Rows of `row` elements in a file of `elements`.
fn rows(path: &Path, elements: usize, row: usize) -> Result<usize, CliError> {
    match elements.checked_rem(row) {
        Some(0) => Ok(elements / row),
        Some(_) | None => Err(CliError::usage(
            format!("`{}` holds {elements} values, which are not rows of {row}", path.display()),
            "--row gives the number of elements of a row",
        )),
    }
}

/// f32 to a format's bytes.
///
/// # Errors
/// If there is no kernel, the file does not hold whole rows, or its values are refused.
pub fn quantize(
    format: &str,
    quantizer: Option<&str>,
    row: usize,
    [input, output]: [&Path; 2],
    threads: &Threads,
    out: &mut dyn Write,
) -> Result<Outcome, CliError> {
    let info = request::format(format)?;
    let values = read_f32(input)?;
    let n = rows(input, values.len(), row)?;
    let prepared = Environment::read()?.prepare(&Request::quantize(format, quantizer, n, row))?;
    let kernel = Quantizer::new(&prepared.decide_as_asked())?;
    let mut bytes = vec![0; info.tensor_bytes(n, row)?];
    kernel.run_on(&values, n, row, &mut bytes, threads)?;
    output::write(output, &bytes)?;
    let (rows, name) = (counted(n, "row"), kernel.entry().name);
    writeln!(out, "{}: {} bytes of {format}, {rows} of {row}, by {name}", output.display(), bytes.len())?;
    Ok(Outcome::Yes)
}

/// The bytes of a format, or of a named import layout of one, to f32.
///
/// # Errors
/// If there is no kernel, the file does not hold whole rows, a code in it means nothing, or a scale in it is NaN or infinite.
pub fn dequantize(
    format: &str,
    row: usize,
    [input, output]: [&Path; 2],
    threads: &Threads,
    out: &mut dyn Write,
) -> Result<Outcome, CliError> {
    let importer = match REGISTRY.imports.iter().any(|import| import.name == format) {
        true => Some(Importer::new(&REGISTRY, format)?),
        false => None,
    };
    let info = match &importer {
        Some(importer) => importer.format(),
        None => request::format(format)?,
    };
    let bytes = read(input, 2)?;
    let tail = info.tensor_bytes(0, row)?;
    let row_bytes = info.row_bytes(row)?;
    let n = match bytes.len().checked_sub(tail).and_then(|rows| Some((rows, rows.checked_rem(row_bytes)?))) {
        Some((rows, 0)) => rows / row_bytes,
        Some(_) | None => {
            let tail =
                if tail > 0 { format!(", with {tail} bytes behind the last one") } else { String::new() };
            return Err(CliError::usage(
                format!(
                    "`{}` has {} bytes, which are not rows of {row} elements of {format}",
                    input.display(),
                    bytes.len()
                ),
                format!("such a row takes {row_bytes} bytes{tail}"),
            ));
        }
    };
    // The values, and their bytes.
    Need::new().and(&[n, row], 8).check(|| format!("{n} rows of {row} f32"), LESS)?;
    let bytes = match &importer {
        Some(importer) => importer.convert(n, row, &bytes)?,
        None => bytes,
    };
    let prepared = Environment::read()?.prepare(&Request::dequantize(info.name, n, row))?;
    let kernel = Dequantizer::new(&prepared.decide_as_asked())?;
    let mut values = vec![0.0; n * row];
    kernel.run_on(&QuantizedMatrix::new(info, n, row, &bytes)?, &mut values, threads)?;
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        let (at_row, column) = (at / row, at % row);
        let oracle = Oracle::new(&REGISTRY)?;
        let bad = oracle.format(info.name)?.bad_scale(&bytes, n, row, at_row)?;
        let what = bad.map_or_else(
            || format!("row {at_row}, column {column}: the value is {}, beyond f32", values[at]),
            |bad| bad.to_string(),
        );
        return Err(CliError::usage(
            format!("`{}` holds no weights of {format}: {what}", input.display()),
            "a damaged file, another format or another --row? Nothing was written",
        ));
    }
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    output::write(output, &raw)?;
    let (rows, name) = (counted(n, "row"), kernel.entry().name);
    writeln!(out, "{}: {rows} of {row} f32 values, by {name}", output.display())?;
    Ok(Outcome::Yes)
}
