//! What this build holds, and how it decides.

use crate::error::{Error, exception};
use gristmill::{Device, Prepared, REGISTRY, Request, Shape, json, languages};
use pyo3::prelude::*;
use serde::Serialize;

/// JSON as the objects that Python makes of it.
pub(crate) fn objects<'py>(py: Python<'py>, json: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (json,))
}

/// The same of what has a JSON form.
pub(crate) fn objects_of<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let json = serde_json::to_string(value).map_err(|error| Error::new_err(error.to_string()))?;
    objects(py, &json)
}

/// What a request for a kernel comes to.
pub(crate) fn prepared(request: &Request<'_>) -> PyResult<Prepared> {
    languages::prepared(&REGISTRY, request).map_err(exception)
}

pub(crate) fn device_named(name: &str) -> PyResult<Device> {
    name.parse().map_err(exception)
}

#[pyfunction]
pub(crate) fn formats(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    objects_of(py, &json::formats(&REGISTRY))
}

#[pyfunction]
#[pyo3(signature = (format=None))]
pub(crate) fn kernels<'py>(py: Python<'py>, format: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
    objects_of(py, &json::kernels(&REGISTRY, format).map_err(exception)?)
}

fn asked(op: &str, format: &str, shape: Shape, input: &str, device: &str) -> PyResult<Prepared> {
    prepared(&languages::request(op, format, input, device, shape).map_err(exception)?)
}

#[pyfunction]
#[pyo3(signature = (op, format, n, k, *, m=1, input="f32", device="cpu"))]
pub(crate) fn explain(
    op: &str,
    format: &str,
    n: usize,
    k: usize,
    m: usize,
    input: &str,
    device: &str,
) -> PyResult<String> {
    Ok(asked(op, format, Shape::new(m, n, k), input, device)?.decide_as_asked().to_string())
}

#[pyfunction]
#[pyo3(signature = (op, format, n, k, *, m=1, input="f32", device="cpu"))]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn decide<'py>(
    py: Python<'py>,
    op: &str,
    format: &str,
    n: usize,
    k: usize,
    m: usize,
    input: &str,
    device: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let prepared = asked(op, format, Shape::new(m, n, k), input, device)?;
    objects_of(py, &json::decision(&prepared.decide_as_asked()))
}
