//! gristmill for Python: the module `gristmill` (its types are in `gristmill.pyi`).
//!
//! Arrays are numpy's and are read where they lie; one that can't be (another type, not C-contiguous) is an exception that
//! says how to convert it. Layers are strict: without a kernel they are an exception with the reasons, and of the environment nothing
//! is read but `GRISTMILL_QUARANTINE`. Products release the GIL.

mod array;
mod blocks;
mod detached;
mod error;
mod guard;
mod linear;
mod model;
mod query;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicI64, Ordering};

/// Classes of exceptions, and the count of calls that the end of the interpreter waits for, are those of one interpreter.
fn in_one_interpreter(_: Python<'_>) -> PyResult<()> {
    static FIRST: AtomicI64 = AtomicI64::new(-1);
    // SAFETY: a thread that is attached has an interpreter.
    let this = unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) };
    match FIRST.compare_exchange(-1, this, Ordering::Relaxed, Ordering::Relaxed) {
        Err(first) if first != this => Err(PyImportError::new_err(format!(
            "interpreter {first} of this process has imported gristmill, which serves one of them\n  help: use it there, or in a process of \
             its own"
        ))),
        _ => Ok(()),
    }
}

/// Low-bit matrix products on numpy arrays.
// The count in `detached` and the workspaces of `linear` rely on a held GIL. Without this, pyo3 tells a free-threaded interpreter that the
// module needs none.
#[pymodule(gil_used = true)]
#[pyo3(name = "gristmill")]
mod module {
    #[pymodule_export]
    use super::blocks::{dequantize, quantize, tensor_bytes};
    #[pymodule_export]
    use super::error::{DataError, Error, FileError, NoKernelError, ShapeError};
    #[pymodule_export]
    use super::guard::PyGuard;
    #[pymodule_export]
    use super::linear::{PyLinear, PyThreads};
    #[pymodule_export]
    use super::model::PyModel;
    #[pymodule_export]
    use super::query::{decide, explain, formats, kernels};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::in_one_interpreter(module.py())?;
        super::detached::watch(module)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
