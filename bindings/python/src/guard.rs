//! How layers go on where a kernel or their device fails.

use crate::error::exception;
use crate::query::objects_of;
use gristmill::languages::Guard;
use gristmill::{REGISTRY, json};
use pyo3::prelude::*;

/// How layers go on where a kernel or their device fails, and which kernels are not to be used any more: one for all layers of a program.
#[pyclass(name = "Guard", module = "gristmill", frozen)]
pub(crate) struct PyGuard(pub(crate) Guard);

#[pymethods]
impl PyGuard {
    #[new]
    #[pyo3(signature = (*, check_every=0, to_processor=false, return_every=0))]
    fn new(check_every: u64, to_processor: bool, return_every: u64) -> PyResult<PyGuard> {
        Guard::new(check_every, to_processor, return_every).map(PyGuard).map_err(exception)
    }

    /// Whether the kernel was not in quarantine before.
    fn forbid(&self, kernel: &str, why: &str) -> PyResult<bool> {
        self.0.forbid(&REGISTRY, kernel, why).map_err(exception)
    }

    #[getter]
    fn quarantined<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        objects_of(py, &json::quarantined(self.0.quarantine()))
    }
}
