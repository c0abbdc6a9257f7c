//! Errors of the library as exceptions of the module, with the library's messages.

use gristmill::ErrorClass;
use gristmill::gguf::ModelError;
use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::{PyErr, create_exception};

create_exception!(gristmill, Error, PyException, "An error of gristmill.");
create_exception!(
    gristmill,
    NoKernelError,
    Error,
    "No kernel of this build does it here; the message has the reasons."
);
create_exception!(
    gristmill,
    ShapeError,
    Error,
    "Lengths and shapes contradict each other, or a shape is impossible."
);
create_exception!(
    gristmill,
    DataError,
    Error,
    "The values are the error: not finite, too large for the format, or codes that mean nothing."
);
create_exception!(gristmill, FileError, Error, "A file can't be read, or what stands in it is wrong.");

/// The exception of an error of the library.
pub(crate) fn exception(error: gristmill::Error) -> PyErr {
    of_class(error.class(), error.to_string())
}

/// The exception of an error of a model file, or of what was asked of it.
pub(crate) fn model_exception(error: ModelError) -> PyErr {
    of_class(error.class(), error.to_string())
}

fn of_class(class: ErrorClass, message: String) -> PyErr {
    match class {
        ErrorClass::NoKernel => NoKernelError::new_err(message),
        ErrorClass::Shape => ShapeError::new_err(message),
        ErrorClass::Data => DataError::new_err(message),
        ErrorClass::Memory => PyMemoryError::new_err(message),
        ErrorClass::File => FileError::new_err(message),
        ErrorClass::Name
        | ErrorClass::Threads
        | ErrorClass::Device
        | ErrorClass::Request
        | ErrorClass::Internal => Error::new_err(message),
    }
}
