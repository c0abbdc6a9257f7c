//! gristmill for Python: the module `gristmill` (its types are in `gristmill.pyi`).
//!
//! Arrays are numpy's and are read where they lie; one that can't be (another type, not C-contiguous) is an exception that
//! says how to convert it. Layers are strict: without a kernel they are an exception with the reasons, and nothing is read
//! from the environment. Products release the GIL.

mod array;
mod blocks;
mod detached;
mod error;
mod linear;
mod model;
mod query;

use pyo3::prelude::*;

/// Low-bit matrix products on numpy arrays.
#[pymodule]
#[pyo3(name = "gristmill")]
mod module {
    #[pymodule_export]
    use super::blocks::{dequantize, quantize, tensor_bytes};
    #[pymodule_export]
    use super::error::{DataError, Error, FileError, NoKernelError, ShapeError};
    #[pymodule_export]
    use super::linear::{PyLinear, PyThreads};
    #[pymodule_export]
    use super::model::PyModel;
    #[pymodule_export]
    use super::query::{decide, explain, formats, kernels};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::detached::watch(module)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
