//! How a run of a guarded layer can end other than well.

use super::device::is_of_device;
use super::seen::Seen;
use crate::error::Error;

/// Why a run did not end well.
pub(super) enum Failure {
    /// By no fault of a kernel or a device.
    Refused(Error),
    Kernel(Seen),
    Device(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        if is_of_device(&error) { Failure::Device(error) } else { Failure::Refused(error) }
    }
}
