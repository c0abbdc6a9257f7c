//! A layer: weights packed once, products of any number of tokens.

use crate::array::{bytes, overlap, read, written, zeros};
use crate::detached::detached;
use crate::error::{ShapeError, exception};
use crate::guard::PyGuard;
use crate::query::{device_named, objects};
use gristmill::languages::{self, Layer};
use gristmill::{LinearOptions, QuantizedMatrix, REGISTRY, Threads, Workspace};
use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Threads that products are divided among. May be shared by layers and by threads of Python; a child of os.fork() works alone
/// with them.
#[pyclass(name = "Threads", module = "gristmill", frozen)]
pub(crate) struct PyThreads(Threads);

#[pymethods]
impl PyThreads {
    #[new]
    fn new(count: usize) -> PyResult<PyThreads> {
        if count == 0 {
            let message = "count is 0\n  help: the calling thread is one of them, so 1 at least";
            return Err(pyo3::exceptions::PyValueError::new_err(message));
        }
        Threads::new(count).map(PyThreads).map_err(exception)
    }

    #[getter]
    fn count(&self) -> usize {
        self.0.count()
    }

    fn __repr__(&self) -> String {
        format!("gristmill.Threads({})", self.0.count())
    }
}

/// The calling thread alone.
static SINGLE: Threads = Threads::single();

/// The threads that were given, or the calling one.
pub(crate) fn threads(given: Option<&Py<PyThreads>>) -> &Threads {
    given.map_or(&SINGLE, |threads| &threads.get().0)
}

/// What layers on a device are made with.
pub(crate) fn options(device: &str) -> PyResult<LinearOptions> {
    languages::layer_on(device_named(device)?).map_err(exception)
}

/// A layer: `y = x w^T + bias` with quantized weights. May be called by several threads at a time.
#[pyclass(name = "Linear", module = "gristmill", frozen)]
pub(crate) struct PyLinear {
    layer: Layer,
    threads: Option<Py<PyThreads>>,
    /// Those that no call uses. Taken and given back with the GIL held, so that no fork meets a locked one.
    workspaces: Mutex<Vec<Workspace>>,
}

impl PyLinear {
    pub(crate) fn of(layer: Layer, threads: Option<Py<PyThreads>>) -> PyLinear {
        PyLinear { layer, threads, workspaces: Mutex::default() }
    }
}

#[pymethods]
impl PyLinear {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    #[pyo3(signature = (format, n, k, blocks, *, threads=None, device="cpu", guard=None))]
    fn new(
        py: Python<'_>,
        format: &str,
        n: usize,
        k: usize,
        blocks: &Bound<'_, PyAny>,
        threads: Option<Py<PyThreads>>,
        device: &str,
        guard: Option<Py<PyGuard>>,
    ) -> PyResult<PyLinear> {
        let blocks = bytes(blocks, "blocks")?;
        let format = REGISTRY.format(format).map_err(exception)?.1;
        let matrix = QuantizedMatrix::new(format, n, k, blocks.as_slice()?).map_err(exception)?;
        let options = options(device)?;
        let used = self::threads(threads.as_ref());
        let guard = guard.as_ref().map(|guard| &guard.get().0);
        let layer = detached(py, || Layer::of_matrix(&REGISTRY, &matrix, options, guard, used));
        Ok(PyLinear::of(layer.map_err(exception)?, threads))
    }

    #[getter]
    fn n(&self) -> usize {
        self.layer.n()
    }

    #[getter]
    fn k(&self) -> usize {
        self.layer.k()
    }

    #[getter]
    fn weight_bytes(&self) -> usize {
        self.layer.weight_bytes()
    }

    #[getter]
    fn kept_bytes(&self) -> usize {
        self.layer.kept_bytes()
    }

    #[getter]
    fn receipt<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        objects(py, &self.layer.receipt().to_json())
    }

    fn __repr__(&self) -> String {
        format!("<gristmill.Linear n={} k={}>", self.layer.n(), self.layer.k())
    }

    #[pyo3(signature = (x, *, bias=None, out=None))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        bias: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let (n, k) = (self.layer.n(), self.layer.k());
        let x = read::<f32>(x, "x")?;
        let [tokens @ .., last] = x.shape() else {
            return Err(ShapeError::new_err(format!("x has no dimensions, expected rows of {k}")));
        };
        if *last != k {
            let shape = x.shape();
            return Err(ShapeError::new_err(format!("x has shape {shape:?}, expected rows of {k}")));
        }
        // What an array has fits the address space.
        let m = tokens.iter().product();
        let bias = bias.map(|bias| read::<f32>(bias, "bias")).transpose()?;
        let shape: Vec<usize> = tokens.iter().copied().chain([n]).collect();
        let y = match out {
            Some(out) => {
                let out = written::<f32>(out, "out")?;
                if out.shape() != shape {
                    let found = out.shape();
                    return Err(ShapeError::new_err(format!("out has shape {found:?}, expected {shape:?}")));
                }
                out
            }
            None => zeros(py, shape)?,
        };
        let mut place = y
            .try_readwrite()
            .map_err(|_| PyValueError::new_err("out can't be written, or is read or written elsewhere"))?;
        let (x, bias) = (x.as_slice()?, bias.as_ref().map(|bias| bias.as_slice()).transpose()?);
        let values = place.as_slice_mut()?;
        if overlap(x, values) || bias.is_some_and(|bias| overlap(bias, values)) {
            return Err(PyValueError::new_err("out shares memory with an input"));
        }
        let threads = self::threads(self.threads.as_ref());
        let free = || self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut workspace = free().pop().unwrap_or_default();
        let done = detached(py, || self.layer.forward(x, m, bias, values, &mut workspace, threads));
        free().push(workspace);
        done.map_err(exception)?;
        drop(place);
        Ok(y)
    }
}
