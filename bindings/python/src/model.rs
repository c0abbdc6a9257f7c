//! GGUF files.

use crate::detached::detached;
use crate::error::{exception, model_exception};
use crate::guard::PyGuard;
use crate::linear::{PyLinear, PyThreads, options, threads};
use crate::query::{device_named, objects_of};
use gristmill::gguf::{LayerOptions, Model};
use gristmill::json;
use gristmill::languages::Layer;
use pyo3::prelude::*;
use std::path::PathBuf;

/// A GGUF file. Its header is in memory; a tensor is read when a layer is made of it.
#[pyclass(name = "Model", module = "gristmill", frozen)]
pub(crate) struct PyModel(Model);

#[pymethods]
impl PyModel {
    #[new]
    fn new(path: PathBuf) -> PyResult<PyModel> {
        Model::open(path).map(PyModel).map_err(model_exception)
    }

    #[pyo3(signature = (*, m=1, device="cpu"))]
    fn plan<'py>(&self, py: Python<'py>, m: usize, device: &str) -> PyResult<Bound<'py, PyAny>> {
        let plan = json::plan(&self.0, device_named(device)?, m).map_err(exception)?;
        objects_of(py, &plan)
    }

    #[pyo3(signature = (name, *, threads=None, device="cpu", guard=None))]
    fn linear(
        &self,
        py: Python<'_>,
        name: &str,
        threads: Option<Py<PyThreads>>,
        device: &str,
        guard: Option<Py<PyGuard>>,
    ) -> PyResult<PyLinear> {
        let used = self::threads(threads.as_ref());
        let options = LayerOptions { threads: used, linear: options(device)? };
        let guard = guard.as_ref().map(|guard| &guard.get().0);
        let layer = detached(py, || Layer::of_model(&self.0, name, options, guard));
        Ok(PyLinear::of(layer.map_err(model_exception)?, threads))
    }
}
