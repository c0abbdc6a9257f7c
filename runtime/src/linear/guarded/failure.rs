//! How a run of a guarded layer can end other than well.

use super::device::is_of_device;
use crate::error::Error;
use crate::registry::Entry;

/// Why a run did not end well.
pub(super) enum Failure {
    /// By no fault of a kernel or a device.
    Refused(Error),
    Kernel(Seen),
    Device(Error),
}

/// What was seen of a kernel.
#[derive(Clone)]
pub(super) struct Seen {
    pub(super) kernel: &'static Entry,
    pub(super) panicked: bool,
    pub(super) why: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        if is_of_device(&error) { Failure::Device(error) } else { Failure::Refused(error) }
    }
}
