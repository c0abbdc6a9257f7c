//! f32 to the bytes of a format, and back.

use crate::array::{bytes, read, zeros};
use crate::detached::detached;
use crate::error::{ShapeError, exception};
use crate::linear::PyThreads;
use crate::query::prepared;
use gristmill::{Dequantizer, QuantizedMatrix, Quantizer, REGISTRY, Request};
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

#[pyfunction]
pub(crate) fn tensor_bytes(format: &str, n: usize, k: usize) -> PyResult<usize> {
    REGISTRY.format(format).and_then(|(_, format)| format.tensor_bytes(n, k)).map_err(exception)
}

#[pyfunction]
#[pyo3(signature = (format, values, *, quantizer=None, threads=None))]
pub(crate) fn quantize<'py>(
    py: Python<'py>,
    format: &str,
    values: &Bound<'py, PyAny>,
    quantizer: Option<&str>,
    threads: Option<Py<PyThreads>>,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let values = read::<f32>(values, "values")?;
    let &[n, k] = values.shape() else {
        let shape = values.shape();
        return Err(ShapeError::new_err(format!("values have shape {shape:?}, expected [n, k]")));
    };
    let prepared = prepared(&Request::quantize(format, quantizer, n, k))?;
    let quantizer = Quantizer::new(&prepared.decide_as_asked()).map_err(exception)?;
    let blocks = zeros(py, tensor_bytes(format, n, k)?)?;
    let mut place = blocks.readwrite();
    let (values, slice) = (values.as_slice()?, place.as_slice_mut()?);
    let used = crate::linear::threads(threads.as_ref());
    detached(py, || quantizer.run_on(values, n, k, slice, used)).map_err(exception)?;
    drop(place);
    Ok(blocks)
}

#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are those of Python, most of them by name")]
#[pyo3(signature = (format, n, k, blocks, *, first_row=0, rows=None, threads=None))]
pub(crate) fn dequantize<'py>(
    py: Python<'py>,
    format: &str,
    n: usize,
    k: usize,
    blocks: &Bound<'py, PyAny>,
    first_row: usize,
    rows: Option<usize>,
    threads: Option<Py<PyThreads>>,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let blocks = bytes(blocks, "blocks")?;
    let info = REGISTRY.format(format).map_err(exception)?.1;
    let matrix = QuantizedMatrix::new(info, n, k, blocks.as_slice()?).map_err(exception)?;
    let rows = rows.unwrap_or_else(|| n.saturating_sub(first_row));
    // Before memory is asked for.
    let last = first_row.checked_add(rows).filter(|last| *last <= n);
    let Some(last) = last else {
        return Err(ShapeError::new_err(format!("rows {first_row} and {rows} from there on, of {n}")));
    };
    let prepared = prepared(&Request::dequantize(format, n, k))?;
    let dequantizer = Dequantizer::new(&prepared.decide_as_asked()).map_err(exception)?;
    let values = zeros(py, [rows, k])?;
    let mut place = values.readwrite();
    let slice = place.as_slice_mut()?;
    let used = crate::linear::threads(threads.as_ref());
    detached(py, || dequantizer.rows_on(&matrix, first_row..last, slice, used)).map_err(exception)?;
    drop(place);
    Ok(values)
}
