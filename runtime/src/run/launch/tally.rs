//! Counting launches.

#[cfg(feature = "cuda")]
use crate::observe::observer;
use crate::observe::{Launch, Observer};
use crate::receipt::Ledger;
#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Counts a launch where somebody may look: in the kernel's counters, in `ledger`, and by the observer.
#[inline]
pub(super) fn count(launch: &Launch, ledger: Option<&Ledger>, observer: Option<&dyn Observer>) {
    let counters = launch.entry.counters;
    if let Some(time) = launch.time {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        counters.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        counters.timed.fetch_add(1, Ordering::Relaxed);
    }
    counters.launches.fetch_add(1, Ordering::Relaxed);
    counters.bytes_in.fetch_add(launch.bytes_in as u64, Ordering::Relaxed);
    counters.bytes_out.fetch_add(launch.bytes_out as u64, Ordering::Relaxed);
    if let Some(ledger) = ledger {
        ledger.note(launch.index);
    }
    if let Some(observer) = observer {
        observer.launched(launch);
    }
}

/// A launch in a graph: it counts each time that the graph is launched.
#[cfg(feature = "cuda")]
#[derive(Debug)]
pub(crate) struct Tally {
    pub(super) launch: Launch,
    pub(super) ledger: Option<Arc<Ledger>>,
}

#[cfg(feature = "cuda")]
impl Tally {
    pub(crate) fn kernel(&self) -> &'static str {
        self.launch.entry.name
    }

    pub(crate) fn count(&self) {
        count(&self.launch, self.ledger.as_deref(), observer());
    }
}
