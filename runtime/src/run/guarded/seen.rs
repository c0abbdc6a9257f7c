//! What was seen of a kernel.

use crate::registry::Entry;
use std::any::Any;

/// What was seen of a kernel.
#[derive(Clone)]
pub(super) struct Seen {
    pub(super) kernel: &'static Entry,
    pub(super) panicked: bool,
    pub(super) why: String,
}

impl Seen {
    /// An output that the portable kernel computes otherwise.
    pub(super) fn wrong(kernel: &'static Entry, why: String) -> Seen {
        Seen { kernel, panicked: false, why }
    }
}

/// What a panic says.
pub(super) fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
