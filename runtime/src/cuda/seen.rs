//! The driver's errors so far, device by device. They outlive what was opened there.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Errors of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) errors: u64,
    pub(super) last: Option<String>,
    /// What it was lost by, until it is opened again.
    pub(super) lost: Option<String>,
}

static SEEN: Mutex<BTreeMap<u32, Seen>> = Mutex::new(BTreeMap::new());

fn of<R>(index: u32, act: impl FnOnce(&mut Seen) -> R) -> R {
    // What is in there is whole whenever the lock is free.
    act(SEEN.lock().unwrap_or_else(PoisonError::into_inner).entry(index).or_default())
}

/// Counts an error; the first one that a device is lost by is why it is.
pub(super) fn error(index: u32, error: &str, lost: bool) {
    of(index, |seen| {
        seen.errors = seen.errors.saturating_add(1);
        seen.last = Some(error.to_owned());
        if lost {
            seen.lost.get_or_insert_with(|| error.to_owned());
        }
    });
}

/// A device was opened, and answers.
pub(super) fn opened(index: u32) {
    of(index, |seen| seen.lost = None);
}

pub(super) fn so_far(index: u32) -> Seen {
    of(index, |seen| seen.clone())
}
