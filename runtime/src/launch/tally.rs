//! Counting launches.

use crate::receipt::Ledger;
use crate::registry::Entry;
#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[inline]
pub(super) fn count(
    entry: &'static Entry,
    index: usize,
    ledger: Option<&Ledger>,
    [bytes_in, bytes_out]: [usize; 2],
    time: Option<Duration>,
) {
    let counters = entry.counters;
    if let Some(time) = time {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        counters.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        counters.timed.fetch_add(1, Ordering::Relaxed);
    }
    counters.launches.fetch_add(1, Ordering::Relaxed);
    counters.bytes_in.fetch_add(bytes_in as u64, Ordering::Relaxed);
    counters.bytes_out.fetch_add(bytes_out as u64, Ordering::Relaxed);
    if let Some(ledger) = ledger {
        ledger.note(index);
    }
}

/// A launch in a graph: it counts each time that the graph is launched.
#[cfg(feature = "cuda")]
#[derive(Debug)]
pub(crate) struct Tally {
    pub(super) entry: &'static Entry,
    pub(super) index: usize,
    pub(super) ledger: Option<Arc<Ledger>>,
    pub(super) bytes: [usize; 2],
}

#[cfg(feature = "cuda")]
impl Tally {
    pub(crate) fn kernel(&self) -> &'static str {
        self.entry.name
    }

    pub(crate) fn count(&self) {
        count(self.entry, self.index, self.ledger.as_deref(), self.bytes, None);
    }
}
