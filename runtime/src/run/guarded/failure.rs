//! How a run of a guarded layer can end other than well.

use super::seen::Seen;
use crate::error::Error;
use crate::registry::Entry;

/// Whether an error is one of a GPU, in which no kernel and no input is to blame.
pub(super) fn is_of_device(error: &Error) -> bool {
    match error {
        #[cfg(feature = "cuda")]
        Error::Gpu(_) => true,
        Error::OutOfDeviceMemory { .. } | Error::NoGpu { .. } => true,
        _ => false,
    }
}

/// Why a run did not end well.
pub(super) enum Failure {
    /// By no fault of a kernel or a device.
    Refused(Error),
    Kernel(Seen),
    Device(Error),
}

impl Failure {
    /// A run with a wrong output: `to_blame`, if it is found, else `kernel`. Where an error of the device hides it, that may be why it is wrong.
    pub(super) fn wrong(
        to_blame: Result<Option<&'static Entry>, Error>,
        kernel: &'static Entry,
        why: String,
    ) -> Failure {
        match to_blame {
            Err(error) if is_of_device(&error) => Failure::Device(error),
            to_blame => Failure::Kernel(Seen::wrong(to_blame.ok().flatten().unwrap_or(kernel), why)),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        if is_of_device(&error) { Failure::Device(error) } else { Failure::Refused(error) }
    }
}
