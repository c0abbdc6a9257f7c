//! Arrays of numpy as slices, without a copy, or an exception that says what to do.

use numpy::ndarray::IntoDimension;
use numpy::{
    Element, PyArray, PyArrayDescr, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// `any` as an array of `T`: one of numpy, or whatever lends its memory through DLPack (a tensor of torch on the processor).
pub(crate) fn array<'py, T: Element>(
    any: &Bound<'py, PyAny>,
    what: &str,
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    if let Ok(array) = any.cast::<PyArrayDyn<T>>() {
        return checked(array.clone(), what);
    }
    let py = any.py();
    let wanted = numpy::dtype::<T>(py);
    let lent = match any.cast::<numpy::PyUntypedArray>() {
        Ok(array) => array.clone(),
        Err(_) if any.hasattr("__dlpack__")? => {
            let lent = py.import("numpy")?.call_method1("from_dlpack", (any,));
            lent.map_err(|error| not_lent(py, what, &wanted, error))?.cast_into::<numpy::PyUntypedArray>()?
        }
        Err(_) => {
            let found = any.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "{what} is a {found}, expected a numpy array of {wanted}"
            )));
        }
    };
    match lent.cast::<PyArrayDyn<T>>() {
        Ok(array) => checked(array.clone(), what),
        Err(_) => {
            let found = lent.dtype();
            let order = if found.byteorder() == b'>' { " in big-endian order" } else { "" };
            Err(PyTypeError::new_err(format!(
                "{what} is an array of {found}{order}, expected {wanted}\n  help: {what}.astype(numpy.{wanted})"
            )))
        }
    }
}

/// What lends its memory and does not do so here: a type that numpy has not, another device, gradients.
fn not_lent(py: Python<'_>, what: &str, wanted: &Bound<'_, PyArrayDescr>, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyException>(py) {
        return error;
    }
    let said = PyTypeError::new_err(format!(
        "{what} does not lend its memory to numpy: {}\n  help: {what} has to be {wanted} on the processor without gradients; of a tensor of \
         torch, {what}.detach().float().cpu() is",
        error.value(py)
    ));
    said.set_cause(py, Some(error));
    said
}

/// Refuses what can't be a slice.
fn checked<'py, T: Element>(
    array: Bound<'py, PyArrayDyn<T>>,
    what: &str,
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    if !array.is_c_contiguous() {
        return Err(PyValueError::new_err(format!(
            "{what} is not C-contiguous\n  help: numpy.ascontiguousarray({what})"
        )));
    }
    if !array.data().is_aligned() {
        return Err(PyValueError::new_err(format!(
            "{what} is not aligned to {} bytes\n  help: {what}.copy()",
            align_of::<T>()
        )));
    }
    Ok(array)
}

/// Values of an array that is read.
pub(crate) fn read<'py, T: Element>(
    any: &Bound<'py, PyAny>,
    what: &str,
) -> PyResult<PyReadonlyArrayDyn<'py, T>> {
    let array = array(any, what)?;
    array.try_readonly().map_err(|_| PyValueError::new_err(format!("{what} is being written elsewhere")))
}

/// Bytes: an array of uint8, or whatever lends its memory as bytes do (bytes, bytearray, memoryview).
pub(crate) fn bytes<'py>(any: &Bound<'py, PyAny>, what: &str) -> PyResult<PyReadonlyArrayDyn<'py, u8>> {
    if any.cast::<numpy::PyUntypedArray>().is_ok() || any.hasattr("__dlpack__")? {
        return read(any, what);
    }
    let numpy = any.py().import("numpy")?;
    let lent = numpy.call_method1("frombuffer", (any, "uint8")).map_err(|_| {
        let found = any.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("{what} is a {found}, expected bytes or a numpy array of uint8"))
    })?;
    read(&lent, what)
}

/// Whether two slices share memory. numpy's flags do not tell where one of them came through DLPack.
pub(crate) fn overlap<A, B>(a: &[A], b: &[B]) -> bool {
    let (a, b) = (a.as_ptr_range(), b.as_ptr_range());
    a.start.addr() < b.end.addr() && b.start.addr() < a.end.addr()
}

/// A new array of zeros. numpy's own function releases the GIL, which is not for a thread that the end of the interpreter would
/// meet there (see `detached`).
pub(crate) fn zeros<D: IntoDimension>(py: Python<'_>, shape: D) -> Bound<'_, PyArray<f32, D::Dim>> {
    // SAFETY: every element is written before anybody sees the array; all bits zero is a number.
    unsafe {
        let array = PyArray::<f32, D::Dim>::new(py, shape, false);
        array.data().write_bytes(0, array.len());
        array
    }
}
