//! Times of a device that are not known yet.

use super::context::Restoring;
use cudarc::driver::CudaEvent;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

/// Times that are not known yet.
#[derive(Debug, Default)]
pub(super) struct Later {
    /// How many they are, so that a launch looks without a lock.
    pub(super) count: AtomicUsize,
    /// In the order of the stream.
    pub(super) waiting: Mutex<VecDeque<Waiting>>,
}

/// A time that will be known when its second event is reached.
pub(super) struct Waiting {
    pub(super) begin: Restoring<CudaEvent>,
    pub(super) end: Restoring<CudaEvent>,
    pub(super) tell: Box<dyn FnOnce(Duration) + Send>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}
