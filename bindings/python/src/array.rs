//! Arrays of numpy as slices, without a copy, or an exception that says what to do.

use numpy::ndarray::{Dimension, IntoDimension};
use numpy::npyffi::{NpyTypes, PY_ARRAY_API, get_type_object, npy_intp};
use numpy::{
    Element, PyArray, PyArrayDescr, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use std::ffi::c_int;
use std::ptr::null_mut;

/// What an array is for: whoever reads it may be given a copy that is right; results would be lost in one.
#[derive(Clone, Copy)]
enum Use {
    Read,
    Write,
}

impl Use {
    /// What makes a right array: for values that are read `copy`.
    fn help(self, what: &str, wanted: &Bound<'_, PyArrayDescr>, copy: String) -> String {
        match self {
            Use::Read => copy,
            Use::Write => format!("give one that is made by numpy.empty({what}.shape, numpy.{wanted})"),
        }
    }
}

/// `any` as an array of `T`: one of numpy, or whatever lends its memory through DLPack (a tensor of torch on the processor).
fn array<'py, T: Element>(
    any: &Bound<'py, PyAny>,
    what: &str,
    used: Use,
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    if let Ok(array) = any.cast::<PyArrayDyn<T>>() {
        return checked(array.clone(), what, used);
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
        Ok(array) => checked(array.clone(), what, used),
        Err(_) => {
            let found = lent.dtype();
            let order = if found.byteorder() == b'>' { " in big-endian order" } else { "" };
            // Numbers that are made bytes are no blocks of a format.
            let copy = match lent.dtype().kind() {
                b'f' | b'c' if wanted.kind() == b'u' => {
                    format!("gristmill.quantize(format, {what}) makes blocks of a format of it")
                }
                _ => format!("{what}.astype(numpy.{wanted})"),
            };
            let help = used.help(what, &wanted, copy);
            Err(PyTypeError::new_err(format!(
                "{what} is an array of {found}{order}, expected {wanted}\n  help: {help}"
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
    used: Use,
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    let refused = |why: &str, copy: String| {
        let help = used.help(what, &numpy::dtype::<T>(array.py()), copy);
        PyValueError::new_err(format!("{what} is not {why}\n  help: {help}"))
    };
    if !array.is_c_contiguous() {
        return Err(refused("C-contiguous", format!("numpy.ascontiguousarray({what})")));
    }
    if !array.data().is_aligned() {
        return Err(refused(&format!("aligned to {} bytes", align_of::<T>()), format!("{what}.copy()")));
    }
    Ok(array)
}

/// An array that results are written to.
pub(crate) fn written<'py, T: Element>(
    any: &Bound<'py, PyAny>,
    what: &str,
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    array(any, what, Use::Write)
}

/// Values of an array that is read.
pub(crate) fn read<'py, T: Element>(
    any: &Bound<'py, PyAny>,
    what: &str,
) -> PyResult<PyReadonlyArrayDyn<'py, T>> {
    let array = array(any, what, Use::Read)?;
    array.try_readonly().map_err(|_| PyValueError::new_err(format!("{what} is being written elsewhere")))
}

/// Bytes: an array of uint8, or whatever lends its memory as bytes do (bytes, bytearray, memoryview).
pub(crate) fn bytes<'py>(any: &Bound<'py, PyAny>, what: &str) -> PyResult<PyReadonlyArrayDyn<'py, u8>> {
    if any.cast::<numpy::PyUntypedArray>().is_ok() || any.hasattr("__dlpack__")? {
        return read(any, what);
    }
    let refused = |why: &dyn std::fmt::Display| {
        let found = any.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("{what} is a {found}, expected bytes or a numpy array of uint8: {why}"))
    };
    let lent = PyMemoryView::from(any).map_err(|error| refused(&error.value(any.py())))?;
    let item: usize = lent.getattr("itemsize")?.extract()?;
    if item != 1 {
        return Err(refused(&format!("its items have {item} bytes")));
    }
    let numpy = any.py().import("numpy")?;
    let lent = numpy.call_method1("frombuffer", (lent, "uint8"));
    read(&lent.map_err(|error| refused(&error.value(any.py())))?, what)
}

/// Whether two slices share memory. numpy's flags do not tell where one of them came through DLPack.
pub(crate) fn overlap<A, B>(a: &[A], b: &[B]) -> bool {
    let (a, b) = (a.as_ptr_range(), b.as_ptr_range());
    a.start.addr() < b.end.addr() && b.start.addr() < a.end.addr()
}

/// A new array of zeros, or numpy's error: no memory, or more than an address space. numpy's own function for this releases the GIL, which
/// is not for a thread that the end of the interpreter would meet there (see `detached`).
pub(crate) fn zeros<T: Element + Copy, D: IntoDimension>(
    py: Python<'_>,
    shape: D,
) -> PyResult<Bound<'_, PyArray<T, D::Dim>>> {
    let shape = shape.into_dimension();
    // numpy refuses what does not fit.
    let mut sizes: Vec<npy_intp> =
        shape.slice().iter().map(|size| npy_intp::try_from(*size).unwrap_or(npy_intp::MAX)).collect();
    // SAFETY: so many sizes, a type of element that numpy takes over, and its own memory; null is its error.
    let array = unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            get_type_object(py, NpyTypes::PyArray_Type),
            T::get_dtype(py).into_dtype_ptr(),
            sizes.len() as c_int,
            sizes.as_mut_ptr(),
            null_mut(),
            null_mut(),
            0,
            null_mut(),
        );
        Bound::from_owned_ptr_or_err(py, array)?
    };
    let array = array.cast_into::<PyArray<T, D::Dim>>()?;
    // SAFETY: it has so many elements, which nobody else has seen; all bits zero is a number.
    unsafe { array.data().write_bytes(0, array.len()) };
    Ok(array)
}
