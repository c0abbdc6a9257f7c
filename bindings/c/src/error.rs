//! What goes wrong, as C is told: a status, and a message for each thread.

use gristmill::gguf::ModelError;
use gristmill::{Error, ErrorClass};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a function says of its success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum gm_status {
    /// It did what was asked.
    GM_OK = 0,
    /// A pointer is null, misaligned or overlaps another, a text is not UTF-8, or something was asked for that can't be.
    GM_INVALID_ARGUMENT = 1,
    /// No format, device, quantizer or tensor is called that.
    GM_UNKNOWN_NAME = 2,
    /// No kernel of this build does it here; the message has the reason for each.
    GM_NO_KERNEL = 3,
    /// Lengths and shapes contradict each other, or a shape is impossible.
    GM_SHAPE = 4,
    /// The values are the error: not finite, too large for the format, or codes that mean nothing.
    GM_DATA = 5,
    /// The system has no more memory.
    GM_MEMORY = 6,
    /// Threads could not be started.
    GM_THREADS = 7,
    /// A file can't be read, or what stands in it is wrong.
    GM_FILE = 8,
    /// The device reports an error.
    GM_DEVICE = 9,
    /// The workspace is in use by another call.
    GM_BUSY = 10,
    /// An error in gristmill: please report the message.
    GM_INTERNAL = 11,
}

/// A status and its message.
pub(crate) struct Failure {
    pub(crate) status: gm_status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: gm_status, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into() }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Failure {
        Failure::new(gm_status::GM_INVALID_ARGUMENT, message)
    }
}

/// The status of errors of a kind.
fn status_of(class: ErrorClass) -> gm_status {
    match class {
        ErrorClass::Name => gm_status::GM_UNKNOWN_NAME,
        ErrorClass::NoKernel => gm_status::GM_NO_KERNEL,
        ErrorClass::Shape => gm_status::GM_SHAPE,
        ErrorClass::Data => gm_status::GM_DATA,
        ErrorClass::Memory => gm_status::GM_MEMORY,
        ErrorClass::Threads => gm_status::GM_THREADS,
        ErrorClass::Device => gm_status::GM_DEVICE,
        ErrorClass::Request => gm_status::GM_INVALID_ARGUMENT,
        ErrorClass::File => gm_status::GM_FILE,
        ErrorClass::Internal => gm_status::GM_INTERNAL,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(status_of(error.class()), error.to_string())
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Failure {
        Failure::new(status_of(error.class()), error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// A text for C: what is behind a zero byte would be lost, so such bytes are left out.
pub(crate) fn c_text(text: String) -> CString {
    CString::new(text).unwrap_or_else(|error| {
        let mut bytes = error.into_vec();
        bytes.retain(|byte| *byte != 0);
        CString::new(bytes).unwrap_or_default()
    })
}

/// Runs `run`, keeps the message of a failure for this thread, and makes a panic a failure.
pub(crate) fn attempt(run: impl FnOnce() -> Result<(), Failure>) -> gm_status {
    // Handles stay sound whatever a panic leaves in them: workspaces are written before they are read, and nothing else that
    // a call can reach is changed in place.
    let done = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Failure::new(gm_status::GM_INTERNAL, format!("gristmill panicked: {what}")))
    });
    match done {
        Ok(()) => gm_status::GM_OK,
        Err(Failure { status, message }) => {
            let message = c_text(message);
            // A thread that is ending has no place for it any more.
            let _ = LAST.try_with(|last| *last.borrow_mut() = message);
            status
        }
    }
}

/// Says what went wrong in the last call of this thread that returned another status than GM_OK; empty if none did. The
/// library owns the text, which stays until the next such call of this thread. It may have several lines.
#[unsafe(no_mangle)]
pub extern "C" fn gm_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill::gguf::{GgufError, NoData, NoDataReason, TypeError};
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: a text of this thread, which no call changes here.
        unsafe { CStr::from_ptr(gm_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_and_the_next_success_keeps_its_message() {
        assert_eq!(attempt(|| panic!("a {} one", "bad")), gm_status::GM_INTERNAL);
        assert_eq!(last(), "gristmill panicked: a bad one");
        assert_eq!(attempt(|| Ok(())), gm_status::GM_OK);
        assert_eq!(last(), "gristmill panicked: a bad one");
        let zero = "a text\0with a zero byte";
        assert_eq!(attempt(|| Err(Failure::argument(zero))), gm_status::GM_INVALID_ARGUMENT);
        assert_eq!(last(), "a textwith a zero byte");
    }

    /// A sound file is not at fault where the machine has no memory, the build no format, or another tensor was meant.
    #[test]
    fn errors_of_models_have_the_status_of_their_kind() {
        let tensor = || "w".to_owned();
        let no_data =
            |reason| ModelError::NoData(NoData { tensor: tensor(), type_id: 36, dims: vec![128, 2], reason });
        let of_type = |why| ModelError::Type { tensor: tensor(), number: 22, why };
        let dims = || vec![128];
        for (error, status) in [
            (ModelError::Memory { tensor: tensor(), elements: 1 << 40 }, gm_status::GM_MEMORY),
            (no_data(NoDataReason::Memory(1 << 40)), gm_status::GM_MEMORY),
            (GgufError::Memory { path: "m.gguf".into(), bytes: 1 << 30 }.into(), gm_status::GM_MEMORY),
            (no_data(NoDataReason::Changed), gm_status::GM_FILE),
            (of_type(TypeError::NotCompiled { format: "iq2_s", feature: "iq" }), gm_status::GM_NO_KERNEL),
            (of_type(TypeError::BadShape("rows of 3".to_owned())), gm_status::GM_FILE),
            (ModelError::NotQuantized { tensor: tensor(), found: "f32" }, gm_status::GM_INVALID_ARGUMENT),
            (ModelError::NotFloats { tensor: tensor(), found: "i2_s" }, gm_status::GM_INVALID_ARGUMENT),
            (ModelError::Dimensions { tensor: tensor(), dims: dims(), why: "a vector" }, gm_status::GM_SHAPE),
            (ModelError::Rows { tensor: tensor(), rows: 2..4, n: 3 }, gm_status::GM_SHAPE),
            (ModelError::NoTensor { tensor: tensor(), instead: None }, gm_status::GM_UNKNOWN_NAME),
            (
                ModelError::Layer { tensors: vec![tensor()], error: Error::NothingStacked },
                gm_status::GM_INVALID_ARGUMENT,
            ),
        ] {
            let text = error.to_string();
            assert_eq!(Failure::from(error).status, status, "{text}");
        }
    }
}
