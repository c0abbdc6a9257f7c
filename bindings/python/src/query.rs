//! What this build holds, and how it decides.

use crate::error::{Error, exception};
use gristmill::vocab::{DType, Op};
use gristmill::{
    CpuProfile, Device, PrecisionMode, Prepared, REGISTRY, Request, Restrict, Shape, Tuning, json,
};
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

/// What a request for a kernel comes to, whatever the environment says but for kernels in quarantine.
pub(crate) fn prepared(request: &Request<'_>) -> PyResult<Prepared> {
    let restrict = Restrict::of_quarantine().map_err(exception)?;
    REGISTRY.prepare_tuned(request, CpuProfile::detect(), &restrict, &Tuning::none()).map_err(exception)
}

pub(crate) fn device_named(name: &str) -> PyResult<Device> {
    name.parse().map_err(exception)
}

#[pyfunction]
pub(crate) fn formats(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let formats: Vec<_> = REGISTRY.formats.iter().map(|format| json::format(&REGISTRY, format)).collect();
    objects_of(py, &formats)
}

#[pyfunction]
#[pyo3(signature = (format=None))]
pub(crate) fn kernels<'py>(py: Python<'py>, format: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
    if let Some(format) = format {
        REGISTRY.format(format).map_err(exception)?;
    }
    let kernels: Vec<_> = REGISTRY
        .entries
        .iter()
        .filter(|entry| format.is_none_or(|format| json::format_name(&REGISTRY, entry) == format))
        .map(|entry| json::kernel(&REGISTRY, entry))
        .collect();
    objects_of(py, &kernels)
}

fn asked(op: &str, format: &str, shape: Shape, input: &str, device: &str) -> PyResult<Prepared> {
    let unknown = |what: &str, name: &str, known: Vec<&str>| {
        Error::new_err(format!("unknown {what} `{name}`\n  help: there are {}", known.join(", ")))
    };
    let op =
        Op::from_name(op).ok_or_else(|| unknown("op", op, Op::ALL.iter().map(|op| op.name()).collect()))?;
    let input = DType::from_name(input)
        .ok_or_else(|| unknown("type", input, DType::ALL.iter().map(|dtype| dtype.name()).collect()))?;
    let (device, precision) = (device_named(device)?, PrecisionMode::Int8);
    prepared(&Request {
        op,
        format,
        quantizer: None,
        input,
        device,
        shape,
        precision,
        working_set: None,
        threads: 1,
    })
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
