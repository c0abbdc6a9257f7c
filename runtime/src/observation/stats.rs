//! Statistics of launches. What was not measured is `None`.

use crate::registry::{Entry, KernelId, Registry};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static TIMING: AtomicBool = AtomicBool::new(false);

/// Turns the clock of launches on or off, for the whole program. It is off at first. On the processor, two readings of the
/// clock cost some 50 ns a launch. On a GPU each launch is put between two events and waited for, so that nothing overlaps any
/// more and a step takes longer by what its launches had hidden of one another: for looking closely, not for every day. Launches
/// in a graph are counted without a time. An [observer](crate::observe) may have the time of single launches taken besides.
pub fn measure_time(on: bool) {
    TIMING.store(on, Ordering::Relaxed);
}

#[inline]
pub(crate) fn timing() -> bool {
    TIMING.load(Ordering::Relaxed)
}

/// What the launches of one kernel did since the program started. A launch is one run of a handle,
/// whatever the number of threads that shared it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelStats {
    /// Identity.
    pub id: KernelId,
    /// Name.
    pub name: &'static str,
    /// Launches.
    pub launches: u64,
    /// Launches whose time was taken.
    pub timed_launches: u64,
    /// Wall time of the timed launches; `None` if there are none.
    pub time: Option<Duration>,
    /// Bytes that the launches had to read, each operand once.
    pub bytes_in: u64,
    /// Bytes that the launches wrote.
    pub bytes_out: u64,
}

impl KernelStats {
    /// Mean wall time of the timed launches.
    pub fn mean_time(&self) -> Option<Duration> {
        let nanoseconds = self.time?.as_nanos().checked_div(u128::from(self.timed_launches))?;
        u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
    }
}

impl Entry {
    /// What this kernel's launches did so far.
    pub fn stats(&self) -> KernelStats {
        let timed_launches = self.counters.timed.load(Ordering::Relaxed);
        let nanoseconds = self.counters.nanoseconds.load(Ordering::Relaxed);
        KernelStats {
            id: self.id,
            name: self.name,
            launches: self.counters.launches.load(Ordering::Relaxed),
            timed_launches,
            time: (timed_launches > 0).then(|| Duration::from_nanos(nanoseconds)),
            bytes_in: self.counters.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.counters.bytes_out.load(Ordering::Relaxed),
        }
    }
}

impl Registry {
    /// What each kernel did so far, in the order of the registry.
    pub fn stats(&self) -> Vec<KernelStats> {
        self.entries.iter().map(Entry::stats).collect()
    }
}
